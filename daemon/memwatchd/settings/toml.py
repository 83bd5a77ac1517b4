"""Read the configuration file: values, and the line of each key for error messages."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from memwatch.core.options import KeyPath
from memwatch.core.runtime.regular_file import NOT_REGULAR, NotRegularError, open_regular
from memwatchd.settings.toml_errors import describe_toml_error
from memwatchd.settings.values import why_unreadable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
        return TomlFile(tomllib.loads(text), line_numbers(text), public, text)
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
        return tuple(_single_path(tomllib.loads(f"{text} = 0")))
    except (ValueError, RecursionError):
        return ()


def _single_path(table: object) -> Iterator[str]:
    while isinstance(table, dict) and len(table) == 1:
        ((name, table),) = table.items()
        yield name


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key, or of the nearest table or list around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)
