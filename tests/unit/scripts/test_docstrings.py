"""Every error that a docstring of the product names exists: a renamed one must not stay in the words."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from pathlib import Path

from support.paths import ROOT

NAME = r"(?:\w+\.)*[A-Z]\w+"
NAMED = re.compile(rf"\b(?:Raises|Also raises|[Mm]ay raise) ({NAME}(?:(?:, | or | and ){NAME})*)")
# Where a name of code is: declared, imported, or a part of something.
USED = re.compile(r"(?:\bclass |\bimport .*?\b|\.)([A-Z]\w+)")


def missing_in(texts: Iterable[str]) -> set[str]:
    """Return the errors that are named without a prefix and are neither built in nor in the code."""
    named, known = set[str](), set(dir(builtins))
    for text in texts:
        named |= {one for found in NAMED.findall(text) for one in re.findall(NAME, found) if "." not in one}
        code = re.sub(r'"""[^"]*"""', "", text)
        known |= set(USED.findall(code)) | set(re.findall(r"^class (\w+)", code, re.MULTILINE))
    return named - known


def product() -> list[str]:
    files: list[Path] = [*(ROOT / "daemon").rglob("*.py"), *(ROOT / "web").rglob("*.py")]
    return [file.read_text() for file in files]


def test_errors_of_docstrings_exist() -> None:
    texts = product()

    assert len(texts) > 400
    assert missing_in(texts) == set()


def test_unknown_error_is_found() -> None:
    text = '"""Raises Gone or OSError."""\n\n\nclass GoneError(Exception): ...\n'

    assert missing_in([text]) == {"Gone"}
    assert missing_in([text.replace("Raises Gone ", "Raises GoneError ")]) == set()
