"""HTML pages parsed into text and tags."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from memwatch.core.snapshot import Snapshot
from memwatch_web.pages.renderer import Pages

VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}
WITHIN_A_LINE = {"a", "b", "data", "i", "small", "span", "time", "wbr"}


class Reader(HTMLParser):
    """Parser of a page: its text, its tags, and the check that they close."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in WITHIN_A_LINE:
            self.words.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(attribute)) is not None]


def read(snapshot: Snapshot, name: str = "overview") -> Reader:
    return Reader(Pages().page(name, snapshot))
