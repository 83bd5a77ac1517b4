"""Sentences about files that are not valid TOML: the line, and what to do. Examples in messages work as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memwatchd.settings.load import load, variables
from memwatchd.settings.toml import ConfigFileError, read_toml
from memwatchd.settings.validation import ValueOrigin, accepted_at
from support.settings_sample import problems_from

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


@pytest.mark.parametrize(
    ("flags", "environ", "end"),
    [
        ({"listen": ("foo",)}, {}, "or unix:/PATH; use for example --listen 127.0.0.1:6360"),
        ({"interval": "0"}, {}, "from 100ms to 1m; use for example --interval 1s"),
        ({"speed": 1000.0}, {}, "from 0.1 to 100; use for example --speed 1"),
        ({}, {"MEMWATCHD_LISTEN": "foo"}, "or unix:/PATH; use for example MEMWATCHD_LISTEN=127.0.0.1:6360"),
        ({}, {"MEMWATCHD_WEB_INSECURE": "perhaps"}, "use for example MEMWATCHD_WEB_INSECURE=false"),
        ({}, {"STATE_DIRECTORY": "\0"}, "use for example STATE_DIRECTORY=/var/lib/memwatchd"),
    ],
)
def test_example_is_written_for_its_source(
    tmp_path: Path, flags: dict[str, Any], environ: dict[str, str], end: str
) -> None:
    """The brackets and quotes of a file would be rejected in a flag and in a variable."""
    assert problems_from(tmp_path, flags=flags, environ=environ)[0].endswith(end)


def test_every_example_of_a_variable_is_valid() -> None:
    """An example works as written, unless it names a file that does not exist."""
    for variable, setting in variables().items():
        words = ValueOrigin(variable, from_variable=True).written(accepted_at(setting.path).example)
        name, _, value = words.partition("=")
        assert name == variable
        if "/etc/" not in value:
            assert load({}, {name: value}, default_file=Path("/nonexistent")), words
