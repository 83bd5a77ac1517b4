"""docs/reference/configuration.md: every key of memwatchd.toml, from the schema."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin

from msgspec import NODEFAULT

from memwatch.core.collectors import COLLECTORS
from memwatch.core.options import Accepts, Bounds, Section, Size
from memwatchd.settings.diff import find_effect
from memwatchd.settings.keys import Key, documentation, is_section, section_keys, setting_text, unwrap
from memwatchd.settings.load import FLAGS, PREFIX, variables
from memwatchd.settings.schema import Sections
from scripts.reference.markdown import code, codes, first_sentence, page, prose, table
from scripts.shipped_configuration import inner_section, is_table

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


def key_rows(section: type[Section], path: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a section's own values. A key without documentation has that of the one before it."""
    flags = {".".join(where): flag for flag, where in FLAGS.items()}
    documented = ""
    for name, key in section_keys(section).items():
        if is_table(key):
            continue
        full, text = f"{path}.{name}", words_of(key)
        documented = name if text else documented
        text = text or (f"See `{documented}`." if documented else "")
        if flag := flags.get(full):
            text += f" Option: `--{flag.replace('_', '-')}`."
        reload = reload_text(tuple(full.split(".")))
        yield code(name), default_text(key), type_text(key.kind, key.extras), reload, prose(text)


def words_of(key: Key) -> str:
    return " ".join(documentation(key).split())


def sections(section: type[Section], path: str) -> Iterator[tuple[str, type[Section] | None, Key]]:
    """Yield path, class and key of each table; no class for a table of other values."""
    for name, key in section_keys(section).items():
        full = f"{path}.{name}" if path else name
        if is_section(key.kind):
            yield full, key.kind, key
            yield from sections(key.kind, full)
        elif inner := inner_section(key):
            yield full if get_origin(key.kind) is tuple else f"{full}.NAME", inner, key
        elif get_origin(key.kind) is dict:
            yield full, None, key


def section_part(path: str, section: type[Section] | None, key: Key) -> str:
    """Return one section of the page."""
    if section:
        body = table(("key", "default", "value", "reload", "meaning"), key_rows(section, path))
    else:
        reload = reload_text(tuple(path.split(".")))
        body = table(("key", "value", "reload"), [("a name", type_text(*unwrap(get_args(key.kind)[1])), reload)])
    return f"## {path}\n\n" + "\n\n".join(part for part in (prose(words_of(key)), body) if part)


def collectors_part(section: type[Section]) -> str:
    """Return the tables of collectors: all of them, then the keys that only some have."""
    names = section_keys(section)
    rows = [(code(name), source_of(name), prose(words_of(key))) for name, key in names.items()]
    further = [
        (code(f"{name}.{row[0].strip('`')}"), *row[1:3], *row[4:])
        for name, key in names.items()
        for row in key_rows(key.kind, f"collectors.{name}")
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
    """Return the first sentence about a collector, from its module, or from its class where it shares a module."""
    kind = next(one for one in COLLECTORS if one.name == collector).load()
    source = sys.modules[kind.__module__] if kind.__name__ == "Collector" else kind
    return prose(first_sentence(source.__doc__))


def render() -> str:
    """Return the page."""
    parts = []
    for path, section, key in sections(Sections, ""):
        if path == "collectors" and section:
            parts.append(collectors_part(section))
        elif not path.startswith("collectors."):
            parts.append(section_part(path, section, key))
    return page("Configuration", INTRO, *parts, environment_part())


def environment_part() -> str:
    """Return the variables that set what a command line option sets."""
    rows = [
        (code(f"{PREFIX}{flag.upper()}"), code(f"--{flag.replace('_', '-')}"), code(".".join(path)))
        for flag, path in FLAGS.items()
    ]
    intro = f"These variables have the names of options; {len(variables()) - len(FLAGS)} others have those of keys."
    return "## Environment variables\n\n" + intro + "\n\n" + table(("variable", "option", "key"), rows)
