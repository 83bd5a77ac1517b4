"""Test the table of tasks: each public function is in it, and each row has a test that exists."""

from __future__ import annotations

import inspect
import re

import memwatch
from memwatch import training
from scripts.reference.capabilities import CAPABILITIES
from support.paths import ROOT, TESTS

NAMES = {*memwatch.__all__, *training.__all__}


def test_each_public_function_is_in_the_table() -> None:
    functions = {name for name in NAMES if inspect.isfunction(getattr(memwatch, name))}

    assert functions - {name for row in CAPABILITIES for name in row.names} == set()


def test_each_name_and_test_of_the_table_exists() -> None:
    for row in CAPABILITIES:
        file, test = row.test
        assert set(row.names) <= NAMES, row
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), row


def test_each_row_is_on_the_page_of_its_functions_and_on_no_other() -> None:
    library, of_training = ((ROOT / "docs/reference" / name).read_text() for name in ("library.md", "training.md"))

    for row in CAPABILITIES:
        line, is_training = f"| {row.task} | ", row.names[0] in training.__all__
        assert (line in library, line in of_training) == (not is_training, is_training), row
