"""systemd/memwatchd.toml: every key with its default, from the declarations. `make reference` writes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from msgspec import NODEFAULT

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.doc import Doc
from memwatch.core.options import Accepts, Section
from memwatchd.settings.diff import find_effect
from memwatchd.settings.keys import Key, TakesEffect, documentation, is_section, section_keys, setting_text, unwrap
from memwatchd.settings.schema import Sections, collectors_section
from support.paths import SYSTEMD

SHIPPED = SYSTEMD / "memwatchd.toml"
WIDTH = 116
HEAD = """
# Configuration of memwatchd, read from /etc/memwatchd/memwatchd.toml.
#
# Lists every key with its default, commented out. Remove the # before a key to change it.
# Durations are written "500ms", "1s", "5m", "1h"; a plain number means seconds. Percentages are 0 to 100.
# A key can also be set in the environment, as MEMWATCHD_<SECTION>_<KEY> (MEMWATCHD_SAMPLING_INTERVAL=500ms),
# which wins over this file; flags win over both. Lists are written there with commas.
#
#   memwatchd --check-config      report mistakes, and print the settings in force and their origin
#   systemctl reload memwatchd    apply the changed file; keys marked "Restart" take effect at the next start
"""
RESTART, REQUIRED, NONE, REPEATED = "Restart.", "Required.", "None by default.", "As above."

Path = tuple[str, ...]


def render(kinds: Iterable[type[BaseCollector]] | None = None) -> str:
    """Return the file, with a section for each of these collectors; by default for all."""
    sections = dict(section_keys(Sections))
    if kinds is not None:
        options = collectors_section(kinds)
        sections["collectors"] = Key("collectors", type(options), sections["collectors"].extras, options)
    return HEAD.strip() + "".join(text for key in sections.values() for text in tables(key, (), set())) + "\n"


def tables(key: Key, around: Path, written: set[str], is_marked: bool = False) -> Iterator[str]:
    """Yield the tables of a key, each with the empty lines before it.

    `written`: comments above keys of before. `is_marked`: a comment around says that changes need a restart.
    """
    path = (*around, key.name)
    inner = inner_section(key)
    examples = examples_of(key)
    gap = "\n\n\n" if is_section(key.kind) or not around else "\n\n"
    keys: list[Key] = []
    if is_section(key.kind):
        header, keys = f"[{'.'.join(path)}]", list(section_keys(key.kind).values())
    elif inner is None:
        header = f"#[{'.'.join(path)}]\n#{examples[0]} = {examples[1]}"
    elif get_origin(key.kind) is tuple:
        header, path = f"#[[{'.'.join(path)}]]", (*path, "NAME")
        keys = sorted(section_keys(inner).values(), key=lambda one: one.default is not NODEFAULT)
    else:
        path = (*path, str(examples[0]))
        header, keys = f"#[{'.'.join(path)}]", list(section_keys(inner).values())
    effect = next((extra for extra in key.extras if isinstance(extra, TakesEffect)), None)
    starts = not is_marked and bool(documentation(key)) and effect is not None and effect.at == "start"
    text = comment(remarks(key, starts))
    is_marked = is_marked or starts
    own = [one for one in keys if not is_table(one)]
    if own or not keys:
        yield gap + "\n".join([*text, header, *lines_of(own, path, is_marked, written)])
        gap = ""
    elif text:
        yield gap + "\n".join(text)
    for one in keys:
        if is_table(one):
            nested = "".join(tables(one, path, set() if is_section(one.kind) else written, is_marked))
            yield nested if own else "\n\n" + nested.lstrip("\n")


def lines_of(keys: Iterable[Key], path: Path, is_marked: bool, written: set[str]) -> Iterator[str]:
    """Yield the lines of a table. A key without a comment belongs to the one before it."""
    is_repeated = False
    for key in keys:
        text, was_repeated = documentation(key), is_repeated
        if text in written:
            is_repeated = True
            yield from () if was_repeated else ("", f"# {REPEATED}")
        elif text:
            is_repeated = False
            written.add(text)
            starts = find_effect((*path, key.name)).at == "start" and not is_marked
            yield from ("", *comment(remarks(key, starts)))
        yield f"#{key.name} = {value_text(key)}"


def remarks(key: Key, starts: bool) -> str:
    """Return the comment of a key, with what its declaration says."""
    text = documentation(key)
    if not text:
        return ""
    more = []
    if key.default is NODEFAULT:
        more.append(REQUIRED)
    elif key.default in (None, {}) and "default" not in text.lower():
        more.append(NONE)
    if starts and RESTART not in text:
        more.append(RESTART)
    return " ".join([text, *more])


def is_table(key: Key) -> bool:
    return is_section(key.kind) or inner_section(key) is not None or get_origin(key.kind) is dict


def inner_section(key: Key) -> type[Section] | None:
    """Return the section that a list or a table of tables is made of."""
    parts = [unwrap(part)[0] for part in get_args(key.kind)]
    return next((part for part in parts if is_section(part)), None)


def value_text(key: Key) -> str:
    """The default; the example of a key that is not set by default."""
    if key.default is not None and key.default is not NODEFAULT:
        return setting_text(key.default)
    if get_origin(key.kind) is Literal:
        return setting_text(get_args(key.kind)[0])
    documented = [setting_text(example) for example in examples_of(key)]
    return next(iter(documented), "") or next(one.example for one in key.extras if isinstance(one, Accepts))


def examples_of(key: Key) -> tuple[Any, ...]:
    return next((extra.examples for extra in key.extras if isinstance(extra, Doc)), ())


def comment(text: str) -> list[str]:
    layout = textwrap.TextWrapper(WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return [line for part in text.splitlines() for line in layout.wrap(part)]
