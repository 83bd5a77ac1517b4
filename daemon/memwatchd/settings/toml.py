"""Read the configuration file: values, and the line of each key for error messages."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from memwatch.core.options import KeyPath
from memwatch.core.runtime.regular_file import NOT_REGULAR, NotRegularError, open_regular
from memwatchd.settings.keys import why_unreadable

# Sentences about a file that is not valid TOML: the line, the earlier line where two collide, and the remedy.

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


def parse_toml_text(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError. Its module is loaded for this: a daemon may have no file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


MAX_FILE_BYTES = 64 * 1024
MAX_LINE_CHARACTERS = 2000
HEADER = re.compile(r"\s*(\[\[?)(.+?)(\]\]?)\s*(?:#.*)?")


class ConfigFileError(Exception):
    """The file cannot be used. The message is a sentence with its name. `missing`: it does not exist."""

    def __init__(self, sentence: str, missing: bool = False) -> None:
        super().__init__(sentence)
        self.missing = missing


class TomlFile(Struct, frozen=True):
    """A parsed configuration file. `public`: every user of the machine may read it."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    public: bool = False
    text: str = ""


def read_toml(path: Path) -> TomlFile:
    """Read and parse a file. Raises ConfigFileError."""
    try:
        with open_regular(path) as (file, status):
            public = bool(status.st_mode & stat.S_IROTH)
            data = file.read(MAX_FILE_BYTES + 1)
    except NotRegularError:
        raise ConfigFileError(f"{path} cannot be read (it {NOT_REGULAR}); name a file") from None
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        raise ConfigFileError(f"{path} cannot be read {why_unreadable(error)}", is_missing) from None
    return parse_toml(path, data, public)


def parse_toml(path: Path, data: bytes, public: bool = False) -> TomlFile:
    """Parse the bytes of a file. Raises ConfigFileError."""
    if len(data) > MAX_FILE_BYTES:
        raise ConfigFileError(f"{path} is larger than 64 KiB, the maximum size of a configuration file")
    try:
        text = data.decode("utf-8-sig")
        refuse_long_lines(path, text)
        return TomlFile(parse_toml_text(text), line_numbers(text), public, text)
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
    except ValueError as error:
        raise ConfigFileError(describe_toml_error(path, text, error, declarations(text))) from None
    except RecursionError:
        raise ConfigFileError(f"{path} is not valid TOML: nested too deeply") from None


def refuse_long_lines(path: Path, text: str) -> None:
    """Reject long lines: tomllib takes 40 seconds for a key of 32,000 parts on one line (measured, Python 3.11)."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise ConfigFileError(
                f"{path} line {number} is longer than {MAX_LINE_CHARACTERS} characters; split it into several lines"
            )


def line_numbers(text: str) -> Mapping[KeyPath, int]:
    """Return the line, counted from 1, of every table and key that has its own line."""
    lines: dict[KeyPath, int] = {}
    for number, path in declarations(text):
        lines.setdefault(path, number)
    return lines


def declarations(text: str) -> Iterator[tuple[int, KeyPath]]:
    """Yield each line that declares a table or a key, also in a file that is not valid."""
    tables: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    for number, line in enumerate(text.split("\n"), start=1):
        header = HEADER.fullmatch(line.rstrip("\r"))
        if header and (keys := parse_key_path(header[2])):
            prefix = keys
            if header[1] == "[[":
                tables[keys] = tables.get(keys, -1) + 1
                prefix = (*keys, tables[keys])
            yield number, prefix
        elif "=" in line and not line.lstrip().startswith("#"):
            yield number, prefix + parse_key_path(line.partition("=")[0])


def parse_key_path(text: str) -> KeyPath:
    """Return the parts of a dotted key, such as `pressure.targets."gpu0.gtt"`, or () if it is not a key."""
    try:
        return tuple(_single_path(parse_toml_text(f"{text} = 0")))
    except (ValueError, RecursionError):
        return ()


def _single_path(table: object) -> Iterator[str]:
    while isinstance(table, dict) and len(table) == 1:
        ((name, table),) = table.items()
        yield name


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, or of the nearest table or list around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
