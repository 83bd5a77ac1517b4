"""Sentences about files that are not valid TOML: the line, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatchd.settings.toml import ConfigFileError, read_toml

REPEATED = "remove one of the two, or put all keys of a section under one header"


def why_refused(folder: Path, text: str) -> str:
    file = folder / "memwatchd.toml"
    file.write_text(text)
    with pytest.raises(ConfigFileError) as caught:
        read_toml(file)
    return str(caught.value).removeprefix(f"{file} ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[alerts]\nx = 1\n\n[web]\n[alerts]\n", "line 5: alerts is declared again, first on line 1"),
        ("[a]\nb = 1\nc = 2\nb = 3\n", "line 4: a.b is declared again, first on line 2"),
        ("a.b = 1\n[a]\nc = 1\n", "line 2: a is already declared in another way on line 1"),
        ("[[a]]\n[a]\n", "line 2: a is already declared in another way on line 1"),
        ("a = { b = 1 }\na.c = 2\n", "line 2: a.c is already declared in another way on line 1"),
        ("[a]\nb = 1\n[a.b]\n", "line 3: a.b is declared again, first on line 2"),
    ],
)
def test_what_is_declared_twice_is_named_with_both_lines(tmp_path: Path, text: str, sentence: str) -> None:
    assert why_refused(tmp_path, text) == f"{sentence}; {REPEATED}"


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("x\n", 1, "write KEY = VALUE; put a key with spaces in quotes"),
        ("a b = 1\n", 1, "write KEY = VALUE; put a key with spaces in quotes"),
        ("\nx = abc\n", 2, "a text needs quotes; others are numbers, true, false and lists"),
        ('x = "abc\n', 1, "close the text with a quote on the same line"),
        ('x = "a\\q"\n', 1, "write \\\\ for a backslash, or put the text in single quotes"),
        ("x = {a = 1", 1, None),
        ("[x\n", 1, "close the header of the section: [NAME]"),
        ("[[x]\n", 1, "close the header of the table: [[NAME]]"),
        ("x = 1 y = 2\n", 1, "begin a new line after a value"),
        ("é = 1\n", 1, "a line is KEY = VALUE, [SECTION] or a comment that begins with #"),
        ('x = """abc\n', 2, "close the text with a quote on the same line"),
        ("x = [1,\n", 2, None),
    ],
)
def test_other_errors_have_their_line_and_a_remedy(
    tmp_path: Path, text: str, line: int, remedy: str | None
) -> None:
    sentence = why_refused(tmp_path, text)

    assert sentence.startswith(f"line {line} is not valid TOML: ")
    assert "; " in sentence
    assert remedy is None or sentence.endswith(f"; {remedy}")
