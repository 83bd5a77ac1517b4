"""Pages are collected for the site with their links as the site needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.build_site import SiteError, check_navigation, rewrite

PAGE = Path("docs/howto/alerts.md")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for file in ("README.md", "SECURITY.md", "docs/index.md", "docs/start/install.md", "docs/page.webp"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "memwatchd.toml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("[a](../start/install.md#units)", "[a](../start/install.md#units)"),
        ("[a](../../README.md)", "[a](../overview.md)"),
        ("[a](../../SECURITY.md)", "[a](../SECURITY.md)"),
        ("![a](../page.webp)", "![a](../page.webp)"),
        ("[a](#units) [b](https://example.org/x.md)", "[a](#units) [b](https://example.org/x.md)"),
        ("see [drop-ins](../../systemd) there", "see drop-ins there"),
        ("```sh\necho '[a](nothing.md)'\n```\n", "```sh\necho '[a](nothing.md)'\n```\n"),
    ],
    ids=["page", "readme", "top", "picture", "elsewhere", "folder", "code"],
)
def test_link_is_rewritten(repository: Path, text: str, rewritten: str) -> None:
    copies: set[Path] = set()

    assert rewrite(repository, PAGE, text, copies) == rewritten
    assert copies == set()


def test_file_that_is_no_page_is_copied(repository: Path) -> None:
    copies: set[Path] = set()

    text = rewrite(repository, PAGE, "[a](../../systemd/memwatchd.toml)", copies)

    assert text == "[a](../files/systemd/memwatchd.toml)"
    assert copies == {Path("systemd/memwatchd.toml")}


def test_link_to_nothing_is_an_error(repository: Path) -> None:
    with pytest.raises(SiteError, match=r"docs/howto/alerts\.md: there is no docs/howto/nothing\.md"):
        rewrite(repository, PAGE, "[a](nothing.md)", set())


def test_navigation_must_name_each_page_once(tmp_path: Path) -> None:
    config = tmp_path / "zensical.toml"
    places = {Path("index.md"), Path("start/install.md")}

    config.write_text('[project]\nnav = [{ "A" = "index.md" }, { "B" = [{ "C" = "start/install.md" }] }]\n')
    check_navigation(config, places)

    with pytest.raises(SiteError, match=r"the navigation lacks start/more\.md"):
        check_navigation(config, places | {Path("start/more.md")})
    with pytest.raises(SiteError, match=r"there is no page start/install\.md"):
        check_navigation(config, {Path("index.md")})
    config.write_text('[project]\nnav = [{ "A" = "index.md" }, { "B" = "index.md" }]\n')
    with pytest.raises(SiteError, match="listed twice"):
        check_navigation(config, {Path("index.md")})
