"""Test the strict build of the site and that pages load nothing from other hosts. Run by `make docs`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from scripts.build_site import SiteError, build
from support.paths import ROOT

# Attributes that make a browser load a file at once. A link to another site does not.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """Collector of the addresses that a page loads and of its links within the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if one := found.get("id"):
            self.ids.add(one)
        if address := found.get(LOADED.get(tag, "")):
            # rel=canonical and rel=next only name pages.
            if tag != "link" or (found.get("rel") or "") in ("stylesheet", "icon", "preload", "preconnect"):
                self.loaded.append(address)
        elif tag == "a" and (address := found.get("href")):
            self.linked.append(address)


@pytest.fixture(scope="module")
def site() -> Path:
    """The site that `make docs` has just built."""
    return ROOT / "out" / "site"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the repository's pages and all files that they link to."""
    for name in ("docs", "deploy", "systemd"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    for folder in ("daemon", "web", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def built_pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for file in sorted(site.rglob("*.html")):
        if file.name != "404.html":
            yield file, Page(file.read_text())


def test_every_page_of_the_repository_is_built(site: Path) -> None:
    sources = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]

    assert len(sources) >= 18
    assert [str(page) for page in sources if not (site / page).exists()] == []


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    for file, page in built_pages(site):
        assert [one for one in page.loaded if re.match(r"(https?:)?//", one)] == [], file
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style
        assert "@import" not in style.read_text(), style


def test_every_link_within_the_site_has_a_target(site: Path) -> None:
    pages = dict(built_pages(site))
    for file, page in pages.items():
        for link in page.linked + page.loaded:
            path, _, anchor = unquote(link).partition("#")
            if ":" in path or path.startswith("/"):
                continue
            target = (file.parent / path).resolve() if path else file
            if target.is_dir():
                target /= "index.html"
            assert target.exists(), f"{file}: {link}"
            assert not anchor or target not in pages or anchor in pages[target].ids, f"{file}: {link}"


def test_unbroken_copy_is_built(copy: Path) -> None:
    assert build(copy, copy / "out") == 0
    assert (copy / "out" / "site" / "index.html").exists()


def break_index(copy: Path, link: str) -> None:
    with (copy / "docs" / "index.md").open("a") as page:
        page.write(f"\n[broken]({link})\n")


def test_link_to_a_page_that_does_not_exist_fails_the_build(copy: Path) -> None:
    break_index(copy, "start/nothing.md")

    with pytest.raises(SiteError, match=r"docs/index\.md: there is no docs/start/nothing\.md"):
        build(copy, copy / "out")


def test_link_to_an_anchor_that_does_not_exist_fails_the_build(copy: Path) -> None:
    break_index(copy, "reference/metrics.md#nothing")

    assert build(copy, copy / "out") != 0


def test_page_that_the_navigation_lacks_fails_the_build(copy: Path) -> None:
    (copy / "docs" / "howto" / "further.md").write_text("# Further\n")

    with pytest.raises(SiteError, match=r"the navigation lacks howto/further\.md"):
        build(copy, copy / "out")


def test_entry_of_the_navigation_without_a_page_fails_the_build(copy: Path) -> None:
    config = copy / "docs" / "zensical.toml"
    config.write_text(config.read_text().replace("howto/alerts.md", "howto/alarms.md"))

    with pytest.raises(SiteError, match=r"there is no page howto/alarms\.md"):
        build(copy, copy / "out")
