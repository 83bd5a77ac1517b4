"""The checker of pages finds a violation of each of its rules. `make lint` applies them to this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_pages
from scripts.check_language import RULES
from scripts.check_pages import (
    CONTRIBUTING,
    FRONT,
    PAGE_CHECKS,
    README,
    TREE_CHECKS,
    WITH_TESTS,
    Texts,
    is_whole,
    read_pages,
)
from support.pages import pages

PAGE = Path("docs/howto/a.md")
GUIDE = Path("docs/reference/a.md")
TEXTS = read_pages(pages())


def rules_of(text: str) -> list[tuple[int, str]]:
    """Return lines and rules of the findings in one page."""
    return [(one.line, one.rule) for check in PAGE_CHECKS for one in check(PAGE, text)]


def tree_rules_of(texts: Texts) -> list[str]:
    """Return the rules that a tree of pages breaks, with these in place of the real ones."""
    return [one.rule for check in TREE_CHECKS for one in check({**TEXTS, **texts})]


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n\n[b](nothing.md)\n", [(3, "link")]),
        ("Text.\n", [(1, "title")]),
        ("# A\n\n# B\n", [(1, "title")]),
        ("# A\n\n`memwatch_nothing_bytes` is one.\n", [(3, "metric")]),
        ("# A\n\nRun `make nothing`.\n", [(3, "target")]),
        ("# A\n\n```cobol\nSTOP RUN.\n```\n", [(4, "block")]),
        ("# A\n\n<!-- runs: sometimes -->\n```sh\ntrue\n```\n", [(5, "directive")]),
        ("# A\n\n<!-- checked: a sample -->\n```text\na\n```\n", [(5, "directive")]),
        ("# A\n\n```sh\nmemwatch --nonsense\n```\n", [(4, "block")]),
        ("# A\n\n```console\nno prompt\n```\n", [(4, "block")]),
        ("# A\n\n```console\n$ memwatch nonsense\n```\n", [(4, "block")]),
        ("# A\n\n```python\ndef\n```\n", [(4, "block")]),
        ("# A\n\n```toml\na = \n```\n", [(4, "block")]),
        ("# A\n\n```yaml\na: [\n```\n", [(4, "block")]),
        ("# A\n\n```json\n{\n```\n", [(4, "block")]),
    ],
)
def test_fault_of_a_page_is_found(text: str, found: list[tuple[int, str]]) -> None:
    assert rules_of(text) == found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("# A\n\nText:\n- a\n- b\n", 1),
        ("# A\n\nText:\n| a |\n|---|\n", 1),
        ("# A\n\nText:\n```sh\ntrue\n```\n", 1),
        ("# A\n\nText:\n<!-- checked: root -->\n```sh\ntrue\n```\n", 1),
        ("# A\n\nText:\n\n- a\n  more\n- b\n\n| a |\n|---|\n\n<!-- checked: root -->\n```sh\n- x\n```\n", 0),
    ],
)
def test_line_that_does_not_render_is_found(text: str, count: int) -> None:
    assert [rule for _, rule in rules_of(text)] == ["rendering"] * count


def test_clean_page_has_no_finding() -> None:
    text = (
        "# A\n\n[b](install.md) and `memwatch_pool_`, by `make test`.\n\n<!-- checked: root -->\n```sh\ntrue\n```\n"
    )

    assert rules_of(text.replace("install.md", "../start/install.md")) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "text", "rules"),
    [
        (PAGE, "# A\n\n```sh\nif true; then\n```\n", ["block", "front-page"]),
        (PAGE, "# A\n\n```console\n$ echo 'a\n```\n", ["block", "front-page"]),
        (PAGE, "# A\n\n```sh\ncat <<EOF\n```\n", ["block", "front-page"]),
        (README, "# A\n", ["picture"]),
        (README, "# A\n\n![a](web/memwatch_web/templates)\n" * 5, ["picture"]),
        (FRONT, "# A\n", ["front-page"] * (len(TEXTS) - 1)),
        (GUIDE, "# A\n\n## B\n\n## B\n", ["front-page", "anchor"]),
        (GUIDE, "# A\n", ["front-page", "anchor"]),
        (CONTRIBUTING, "# A\n", ["rule"] * len(RULES)),
        *((page, f"{TEXTS[page]}\n`test_nothing`\n", ["test"]) for page in WITH_TESTS),
    ],
)
def test_fault_of_the_tree_is_found(page: Path, text: str, rules: list[str]) -> None:
    assert tree_rules_of({page: text}) == rules


@pytest.mark.process
def test_picture_that_is_too_large_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pages, "MAX_PICTURE_BYTES", 100)

    assert set(tree_rules_of({})) == {"picture"}


@pytest.mark.process
def test_program_fails_with_its_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_pages, "MAX_PICTURES", 0)

    with pytest.raises(SystemExit) as ended:
        check_pages.main()

    assert ended.value.code == 1
    assert "README.md:1: picture: " in capsys.readouterr().out
