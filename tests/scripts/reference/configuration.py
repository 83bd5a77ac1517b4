"""docs/reference/configuration.md: every key of memwatchd.toml, from the schema and the file that ships."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path as FilePath
from typing import Any, Literal, NamedTuple, get_args, get_origin

from msgspec import NODEFAULT

from memwatch.core.options import Accepts, Bounds, Section, Size
from memwatchd.settings.diff import find_effect
from memwatchd.settings.keys import Key, is_section, section_keys, setting_text, unwrap
from memwatchd.settings.load import FLAGS, PREFIX, variables
from memwatchd.settings.schema import Sections
from scripts.reference.markdown import code, codes, first_sentence, page, prose, table

SHIPPED = FilePath(__file__).parents[3] / "systemd" / "memwatchd.toml"

INTRO = """
memwatchd reads `/etc/memwatchd/memwatchd.toml`, or the file that `--config` names. Every key is optional unless
the table says otherwise. Command line options override environment variables, these override the file, and the
file overrides the defaults.

A key of the file is also an environment variable: `MEMWATCHD_<SECTION>_<KEY>`, for example
`MEMWATCHD_PRESSURE_HIGH_PERCENT=75`. Lists are separated by commas. Tables that repeat, and tables with names
of your own, can be set in the file only.

`memwatchd --check-config` reports mistakes with the line, the key and a value that works, and prints the
settings in force. [`memwatchd.toml`](../../systemd/memwatchd.toml) lists every key with its default.

- *Duration*: a number with `ms`, `s`, `m`, `h` or `d`, such as `"500ms"` or `"1.5h"`.
- *Size*: a number with `KiB`, `MiB`, `GiB`, `TiB` or `kB`, `MB`, `GB`, `TB`, such as `"20GiB"`; without a unit,
  bytes.
- *Reload*: **yes** if `systemctl reload memwatchd` (SIGHUP) applies a change; **restart** if it takes effect at
  the next start.
"""

COLLECTORS_INTRO = """
One table for each collector. A collector whose source this machine lacks turns itself off. `enabled = false`
turns off one that works. Changes take effect at the next start.
"""


# Sentences of comments that columns of the tables say.
_IN_COLUMNS = r"(?<![,;:] )\b(?:None|Not set|No targets|Required)( by default)?\.|(?<=\. )Restart\."


class Comment(NamedTuple):
    """A comment of the shipped file, and the first key that it stands above."""

    text: str
    key: str


class Shipped(NamedTuple):
    """The comments of the shipped file: those above tables, and those above keys, by the path of either."""

    tables: dict[str, str]
    keys: dict[str, Comment]


def read_shipped(text: str) -> Shipped:
    """Parse the shipped file. A comment above several keys without an empty line between them is that of all."""
    shipped = Shipped({}, {})
    section = ""
    above: list[str] = []
    comment = Comment("", "")
    for line in text.splitlines():
        if header := re.fullmatch(r"#?\[+([a-z_.0-9\"]+)\]+", line):
            section = header[1]
            shipped.tables[section] = _sentence(above)
            above, comment = [], Comment("", "")
        elif key := re.fullmatch(r"#?([a-z_]+) = .*", line):
            if above or not comment.text:
                comment = Comment(_sentence(above), key[1])
            shipped.keys[f"{section}.{key[1]}"] = comment
            above = []
        elif line.startswith("# "):
            above.append(line[2:])
        elif not line:
            above, comment = [], Comment("", "")
    return shipped


def _sentence(lines: list[str]) -> str:
    """Return a comment on one line, without what the columns of the table say."""
    text = re.sub(r"\s+", " ", " ".join(lines))
    return re.sub(r"\s+", " ", re.sub(_IN_COLUMNS, "", text)).strip()


def type_text(kind: Any, extras: tuple[object, ...]) -> str:
    """Return the type of a value, and the values that it can have."""
    bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
    accepts = next((extra for extra in extras if isinstance(extra, Accepts)), None)
    if get_origin(kind) is Literal:
        return "one of " + codes(f'"{one}"' for one in get_args(kind))
    words = accepts.words if accepts else ""
    if kind is bool:
        return "`true` or `false`"
    if get_origin(kind) is tuple:
        return words if words.startswith("a list") else f"list; each {words}"
    if not words:
        names = {timedelta: "duration", Size: "size", int: "integer", float: "number"}
        words = names.get(kind, "text")
    if bounds is None:
        return words
    limits = re.sub(r"^from ", "", str(bounds))
    return f"{words}, {'above ' if bounds.above else ''}{limits}"


def reload_text(path: tuple[str, ...]) -> str:
    """Return what a change of the key needs to take effect."""
    return "restart" if find_effect(path).at == "start" else "yes"


def default_text(key: Key) -> str:
    """Return the default as the file writes it."""
    if key.default is NODEFAULT:
        return "**required**"
    text = setting_text(key.default)
    return "not set" if text == "not set" else code(text)


def key_rows(section: type[Section], path: str, shipped: Shipped) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a section's own values."""
    flags = {".".join(where): flag for flag, where in FLAGS.items()}
    for name, key in section_keys(section).items():
        if is_section(key.kind) or inner_section(key) or get_origin(key.kind) is dict:
            continue
        full = f"{path}.{name}"
        comment = shipped.keys.get(full, Comment("", name))
        meaning = comment.text if comment.key == name else f"See `{comment.key}`."
        if flag := flags.get(full):
            meaning += f" Option: `--{flag.replace('_', '-')}`."
        reload = reload_text(tuple(full.split(".")))
        yield code(name), default_text(key), type_text(key.kind, key.extras), reload, prose(meaning)


def inner_section(key: Key) -> type[Section] | None:
    """Return the section that a list or a table of tables is made of."""
    parts = [unwrap(part)[0] for part in get_args(key.kind)]
    return next((part for part in parts if is_section(part)), None)


def sections(section: type[Section], path: str) -> Iterator[tuple[str, str, type[Section] | None, Key | None]]:
    """Yield heading, path in the shipped file, and class of each table; for a table of other values its key."""
    for name, key in section_keys(section).items():
        full = f"{path}.{name}" if path else name
        if is_section(key.kind):
            yield full, full, key.kind, None
            yield from sections(key.kind, full)
        elif inner := inner_section(key):
            is_list = get_origin(key.kind) is tuple
            yield full if is_list else f"{full}.NAME", full, inner, None
        elif get_origin(key.kind) is dict:
            yield full, full, None, key


def section_part(heading: str, path: str, section: type[Section] | None, key: Key | None, shipped: Shipped) -> str:
    """Return one section of the page."""
    where = next((one for one in shipped.tables if one == path or one.startswith(f"{path}.")), path)
    intro = prose(shipped.tables.get(where, ""))
    if section:
        body = table(("key", "default", "value", "reload", "meaning"), key_rows(section, where, shipped))
    elif key:
        reload = reload_text(tuple(path.split(".")))
        body = table(("key", "value", "reload"), [("a name", type_text(*unwrap(get_args(key.kind)[1])), reload)])
    return f"## {heading}\n\n" + "\n\n".join(part for part in (intro, body) if part)


def collectors_part(section: type[Section], shipped: Shipped) -> str:
    """Return the tables of collectors: all of them, then the keys that only some have."""
    names = section_keys(section)
    rows = [(code(name), source_of(name), prose(shipped.tables.get(f"collectors.{name}", ""))) for name in names]
    further = [
        (code(f"{name}.{row[0].strip('`')}"), *row[1:3], *row[4:])
        for name, key in names.items()
        for row in key_rows(key.kind, f"collectors.{name}", shipped)
        if row[0] != "`enabled`"
    ]
    return "\n\n".join(
        [
            "## collectors",
            COLLECTORS_INTRO.strip(),
            table(("collector", "reads", "notes"), rows),
            "Further keys of some collectors:",
            table(("key", "default", "value", "meaning"), further),
        ]
    )


def source_of(collector: str) -> str:
    """Return the first sentence about a collector, from its module."""
    return prose(first_sentence(importlib.import_module(f"memwatch.core.collectors.{collector}").__doc__))


def render() -> str:
    """Return the page."""
    shipped = read_shipped(SHIPPED.read_text())
    parts = []
    for heading, path, section, key in sections(Sections, ""):
        if path == "collectors" and section:
            parts.append(collectors_part(section, shipped))
        elif not path.startswith("collectors."):
            parts.append(section_part(heading, path, section, key, shipped))
    return page("Configuration", INTRO, *parts, environment_part())


def environment_part() -> str:
    """Return the variables that set what a command line option sets."""
    rows = [
        (code(f"{PREFIX}{flag.upper()}"), code(f"--{flag.replace('_', '-')}"), code(".".join(path)))
        for flag, path in FLAGS.items()
    ]
    intro = f"These variables have the names of options; {len(variables()) - len(FLAGS)} others have those of keys."
    return "## Environment variables\n\n" + intro + "\n\n" + table(("variable", "option", "key"), rows)
