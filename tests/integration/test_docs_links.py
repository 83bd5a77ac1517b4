"""Pages hold together: links, anchors, pictures, names of metrics and make targets, and Markdown that renders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from memwatch_web.metrics.samples import PREFIX
from scripts.check_language import RULES
from support.exported_metrics import exported_names
from support.pages import anchors, fences, headings, links, pages, slug, without_fences
from support.paths import ROOT

PAGES = pages()
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
README = Path("README.md")
MAX_PICTURES, MAX_PICTURE_BYTES = 4, 80_000
each_page = pytest.mark.parametrize("page", PAGES, ids=str)

_LIST = re.compile(r" *(?:[-*]|\d+\.) ")


@each_page
def test_every_link_ends_at_a_file_and_an_anchor(page: Path) -> None:
    broken = [f"line {link.line}: {link.target}" for link in links(TEXTS[page]) if not is_whole(page, link.target)]

    assert broken == []


def is_whole(page: Path, target: str) -> bool:
    """Return if a link of a page ends at something. Addresses of other sites are not tried."""
    path, mark, anchor = unquote(target).partition("#")
    if re.match(r"(?:https?|mailto):", path):
        return True
    file = (ROOT / page.parent / path).resolve() if path else ROOT / page
    if not file.exists() or not file.is_relative_to(ROOT):
        return False
    return not mark or (file.suffix == ".md" and anchor in anchors(file.read_text()))


@pytest.mark.parametrize(
    ("target", "whole"),
    [
        ("docs/start/install.md", True),
        ("docs/reference/rules.md#signals", True),
        ("https://example.org/nothing", True),
        ("systemd", True),
        ("docs/start/nothing.md", False),
        ("docs/reference/rules.md#nothing", False),
        ("#nothing", False),
        ("../", False),
        ("Makefile#nothing", False),
    ],
)
def test_broken_link_is_found(target: str, whole: bool) -> None:
    assert is_whole(README, target) is whole


@each_page
def test_page_begins_with_its_only_title(page: Path) -> None:
    titles = re.findall(r"^# .+$", without_fences(TEXTS[page]), re.MULTILINE)

    assert TEXTS[page].startswith("# ")
    assert len(titles) == 1


@each_page
def test_lists_tables_and_blocks_have_an_empty_line_before_them(page: Path) -> None:
    """Forges render them without one; the site does not."""
    assert list(glued_lines(TEXTS[page])) == []


def glued_lines(text: str) -> Iterator[str]:
    """Yield lines that begin a list, a table or a block without an empty line before them."""
    lines = text.splitlines()
    opening = {fence.line - 2 - (fence.directive is not None) for fence in fences(text)}
    prose = without_fences(text).splitlines()
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        begins_list = bool(_LIST.match(prose[number])) and not (_LIST.match(before) or before.startswith(" "))
        begins_table = prose[number].startswith("|") and not before.startswith("|")
        if before.strip() and (begins_list or begins_table or number in opening):
            yield f"line {number + 1}: {line}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Text:\n- a\n- b\n", 1),
        ("Text:\n| a |\n|---|\n", 1),
        ("Text:\n```sh\ntrue\n```\n", 1),
        ("Text:\n<!-- checked: root -->\n```sh\ntrue\n```\n", 1),
        ("Text:\n\n- a\n  more\n- b\n\n| a |\n|---|\n\n<!-- checked: root -->\n```sh\n- x\n```\n", 0),
    ],
)
def test_line_that_does_not_render_is_found(text: str, count: int) -> None:
    assert len(list(glued_lines(text))) == count


@each_page
def test_metrics_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}[a-z0-9_]+[a-z0-9]\b", TEXTS[page]))
    packages = {"memwatch_web", "memwatchd"}
    recorded = set(re.findall(rf"{PREFIX}\w+", (ROOT / "deploy/prometheus/rules/recording.yml").read_text()))
    known = {*recorded, *(PREFIX + name for name in exported_names())}
    unknown = {name for name in named - packages if not any(f"{one}_".startswith(f"{name}_") for one in known)}

    assert unknown == set()


@each_page
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z0-9-]+)", TEXTS[page]))

    assert named <= targets


def test_every_picture_of_the_readme_is_small() -> None:
    """A clone fetches each version of them."""
    pictures = [link.target for link in links(TEXTS[README]) if link.is_image]

    assert 1 <= len(pictures) <= MAX_PICTURES
    assert all(0 < (ROOT / picture).stat().st_size <= MAX_PICTURE_BYTES for picture in pictures)


def test_every_page_is_reached_from_the_front_page() -> None:
    linked = {
        (ROOT / "docs" / link.target.partition("#")[0]).resolve() for link in links(TEXTS[Path("docs/index.md")])
    }
    missing = [str(page) for page in PAGES if (ROOT / page).resolve() not in linked and page.name != "index.md"]

    assert missing == []


def test_every_rule_of_the_language_checker_is_documented() -> None:
    for rule in RULES:
        assert f"`{rule}`" in TEXTS[Path("CONTRIBUTING.md")], rule


def test_every_metric_path_command_and_rule_has_an_anchor_of_its_subject() -> None:
    """Other pages link to these; a generator that renames a heading breaks them here first."""
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        text = page.read_text()
        subjects = [slug(one) for one in re.findall(r"^## (.+)$", text, re.MULTILINE)]

        assert len(subjects) == len(set(subjects)) > 0, page
        assert len(headings(text)) > len(subjects), page


def test_tests_named_by_the_page_of_attacks_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXTS[Path("docs/quality/attacks.md")]))
    folders = [ROOT / "tests" / name for name in ("unit", "integration", "faults", "deploy")]

    assert len(named) > 20
    assert named <= {file.stem for folder in folders for file in folder.rglob("test_*.py")}
