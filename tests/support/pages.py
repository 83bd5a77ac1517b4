"""Parse pages of documentation: fenced blocks with their directives, links, and anchors of headings."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NEEDED_PROGRAMS = ("git",)

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[\w-]*)\s*$")
_DIRECTIVE = re.compile(r"^ *<!-- (?P<verb>runs|checked): (?P<argument>.+?) -->\s*$")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|!?\[[^\]]*\](?:\([^)]*\))?)*)\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)\s*#*$", re.MULTILINE)
_CODE_SPAN = re.compile(r"`[^`\n]+`")


class Fence(NamedTuple):
    """A fenced block: its language, its text, the line of the page where that begins, and its directive."""

    language: str
    code: str
    line: int
    directive: tuple[str, str] | None


class Link(NamedTuple):
    """A link or an image of a page."""

    line: int
    target: str
    is_image: bool


def pages() -> list[Path]:
    """Return the pages of this repository, relative to it, except those that git ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    else:
        found = [ROOT / path for path in done.stdout.splitlines()]
    named = (page.relative_to(ROOT) for page in found if page.is_file())
    return sorted(page for page in named if len(page.parts) == 1 or page.parts[0] == "docs")


def fences(text: str) -> list[Fence]:
    """Return the fenced blocks of a page, in order. A block that is not closed raises ValueError."""
    found: list[Fence] = []
    lines = text.splitlines()
    opened: tuple[re.Match[str], int] | None = None
    for number, line in enumerate(lines):
        match = _FENCE.match(line)
        if opened is None and match:
            opened = match, number
        elif opened and match and match["marks"] == opened[0]["marks"] and not match["language"]:
            start, first = opened
            body = [one.removeprefix(start["indent"]) for one in lines[first + 1 : number]]
            found.append(Fence(start["language"], "\n".join(body) + "\n", first + 2, _directive(lines, first)))
            opened = None
    if opened:
        raise ValueError(f"the block that line {opened[1] + 1} opens is not closed")
    return found


def _directive(lines: list[str], fence: int) -> tuple[str, str] | None:
    match = _DIRECTIVE.match(lines[fence - 1]) if fence else None
    return (match["verb"], match["argument"]) if match else None


def without_fences(text: str) -> str:
    """Return the page with empty lines in place of fenced blocks, so that lines keep their numbers."""
    lines = text.splitlines()
    for fence in fences(text):
        count = fence.code.count("\n")
        for number in range(fence.line - 2, fence.line + count):
            lines[number] = ""
    return "\n".join(lines) + "\n"


def links(text: str) -> Iterator[Link]:
    """Yield links and images, those within the text of a link as well, outside of code."""
    prose = _CODE_SPAN.sub(lambda span: "x" * len(span.group()), without_fences(text))
    for match in _LINK.finditer(prose):
        line = prose.count("\n", 0, match.start()) + 1
        yield Link(line, match["target"], bool(match["image"]))
        for inner in _LINK.finditer(match["text"]):
            yield Link(line, inner["target"], bool(inner["image"]))


def slug(heading: str) -> str:
    """Return the anchor of a heading, by the rule of forges and of this site."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def headings(text: str) -> list[str]:
    """Return the texts of all headings, in order."""
    return [match["text"] for match in _HEADING.finditer(without_fences(text))]


def anchors(text: str) -> set[str]:
    """Return the anchors that links to this page can name."""
    explicit = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    return {slug(heading) for heading in headings(text)} | explicit
