"""Sentences about a file that is not valid TOML: the line, the earlier line where two collide, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from memwatch.core.options import KeyPath

POSITION = re.compile(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", re.DOTALL)
# Begin of a message of tomllib, and what to do. The messages are those of Python 3.10 to 3.14 and of tomli.
REMEDIES = (
    ("Invalid statement", "a line is KEY = VALUE, [SECTION] or a comment that begins with #"),
    ("Invalid initial character for a key", "put a key with such characters in quotes"),
    ("Expected '='", "write KEY = VALUE; put a key with spaces in quotes"),
    ("Expected ']]'", "close the header of the table: [[NAME]]"),
    ("Expected ']'", "close the header of the section: [NAME]"),
    ("Expected newline", "begin a new line after a value"),
    ("Unclosed array", "close the list with ]"),
    ("Unclosed inline table", "close the table with }"),
    ("Duplicate inline table key", "remove one of the two keys"),
    ("Unterminated string", "close the text with a quote on the same line"),
    ("Unescaped '\\'", "write \\\\ for a backslash, or put the text in single quotes"),
    ("Illegal character '\\n'", "close the text with a quote on the same line"),
    ("Illegal character", "put the text in quotes on one line; write a tab as \\t"),
    ("Found invalid character", "put the text in quotes on one line; write a tab as \\t"),
    ("Invalid value", "a text needs quotes; others are numbers, true, false and lists"),
    ("Invalid date", "put the text in quotes"),
    ("Invalid hex value", "write \\u and 4 hexadecimal digits, or put the text in single quotes"),
    ("Escaped character", "write the character itself in place of \\u"),
    ("Expected", "check the quotes of this text"),
)
# tomllib names a table in the first two, and a key only by its line in the others.
COLLISIONS = ("Cannot declare", "Cannot mutate", "Cannot redefine", "Cannot overwrite")
REPEATED = "remove one of the two, or put all keys of a section under one header"


def describe_toml_error(file: Path, text: str, error: ValueError, declared: Iterable[tuple[int, KeyPath]]) -> str:
    """Return a sentence for a message of the parser. `declared`: lines with the table or key that each declares."""
    match = POSITION.match(str(error))
    why, number = (match[1], int(match[2] or text.count("\n") + 1)) if match else (str(error), None)
    place = f"{file} line {number}" if number else str(file)
    if number and why.startswith(COLLISIONS):
        return f"{place}: {describe_collision(number, declared)}; {REPEATED}"
    remedy = next((f"; {words}" for begin, words in REMEDIES if why.startswith(begin)), "")
    return f"{place} is not valid TOML: {why[:1].lower()}{why[1:]}{remedy}"


def describe_collision(number: int, declared: Iterable[tuple[int, KeyPath]]) -> str:
    """Name what a line declares again, and the earlier line that declares it, or a part of it."""
    known = tuple(declared)
    mine = next((path for line, path in known if line == number), ())
    name = ".".join(str(part) for part in mine if isinstance(part, str)) or "this"
    earlier = [(line, path) for line, path in known if line < number and path]
    same = next((line for line, path in earlier if path == mine), None)
    if same is not None:
        return f"{name} is declared again, first on line {same}"
    around = next((line for line, path in reversed(earlier) if path[: len(mine)] == mine[: len(path)]), None)
    return f"{name} is already declared in another way{f' on line {around}' if around else ''}"
