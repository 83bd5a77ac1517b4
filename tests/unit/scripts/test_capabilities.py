"""Test the table of tasks: each public function is in it, and each row has a test that exists."""

from __future__ import annotations

import inspect
import re

import memwatch
from scripts.reference.capabilities import CAPABILITIES
from support.paths import ROOT, TESTS


def test_each_public_function_is_in_the_table() -> None:
    functions = {name for name in memwatch.__all__ if inspect.isfunction(getattr(memwatch, name))}

    assert functions - {name for row in CAPABILITIES for name in row.names} == set()


def test_each_name_and_test_of_the_table_exists() -> None:
    for row in CAPABILITIES:
        file, test = row.test
        assert set(row.names) <= set(memwatch.__all__), row
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), row


def test_each_row_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "library.md").read_text()

    assert [row.task for row in CAPABILITIES if f"| {row.task} | " not in page] == []
