"""Write the section of each collector into systemd/memwatchd.toml: `make shipped-config`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from memwatch.core.collectors import load_collectors
from memwatch.core.collectors.base import BaseCollector
from memwatch.core.doc import Doc
from memwatch.core.options import Accepts
from memwatchd.settings.keys import Key, section_keys, setting_text
from support.paths import SYSTEMD

SHIPPED = SYSTEMD / "memwatchd.toml"
BETWEEN_SECTIONS = "\n\n\n"
WIDTH = 116


def with_collectors(text: str, kinds: Iterable[type[BaseCollector]] | None = None) -> str:
    """Return the text with one section for each of these collectors. The comment above them all is kept."""
    parts = text.split(BETWEEN_SECTIONS)
    (number,) = (number for number, part in enumerate(parts) if "[collectors." in part)
    introduction = parts[number].partition("\n\n")[0]
    parts[number] = "\n\n".join([introduction, *map(section_text, load_collectors() if kinds is None else kinds)])
    return BETWEEN_SECTIONS.join(parts)


def section_text(kind: type[BaseCollector]) -> str:
    return "\n".join([*comment(kind.about), f"[collectors.{kind.name}]", *lines_of(kind)])


def lines_of(kind: type[BaseCollector]) -> Iterator[str]:
    for number, key in enumerate(section_keys(kind.options).values()):
        if number:
            yield ""
        yield from comment(next((extra.text for extra in key.extras if isinstance(extra, Doc)), ""))
        yield f"#{key.name} = {value_text(key)}"


def value_text(key: Key) -> str:
    """The default; the example of a key that is not set by default."""
    if key.default is not None:
        return setting_text(key.default)
    return next(extra.example for extra in key.extras if isinstance(extra, Accepts))


def comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


if __name__ == "__main__":
    SHIPPED.write_text(with_collectors(SHIPPED.read_text()))
