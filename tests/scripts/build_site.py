"""Build the site: collect the pages under out/pages, then run Zensical on them: python -m scripts.build_site.

A link to a file of the repository that is no page becomes one to a copy of it, a link to a folder becomes text. The
build fails for a link to a file that does not exist, for a page that the navigation lacks, for an entry of the
navigation without a page, and for each warning of Zensical, such as an anchor that does not exist.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.pages import ROOT, fences

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Pages at the top of the repository, and their places on the site. A README.md would be taken for the front page.
TOP = {
    Path("README.md"): Path("overview.md"),
    **{Path(name): Path(name) for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
}
COPIES = "files"
_TARGET = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_LINK_TO_FOLDER = re.compile(r"\[(?P<text>[^\[\]]+)\]\((?P<target>[^)\s]+)\)")


class SiteError(Exception):
    """The site cannot be built from these pages."""


def place_of(page: Path) -> Path:
    """Return the place of a page on the site, from its place in the repository."""
    return TOP[page] if page in TOP else page.relative_to("docs")


def is_page(file: Path) -> bool:
    """Return if a file of the repository has its own place on the site."""
    return file in TOP or file.parts[0] == "docs"


def rewrite(root: Path, page: Path, text: str, copies: set[Path]) -> str:
    """Return the text of a page with links as the site needs them, and add files to copy to `copies`."""
    here = place_of(page).parent

    def replace(match: re.Match[str]) -> str:
        path, mark, anchor = match["target"].partition("#")
        if not path or ":" in path:
            return match.group()
        file = Path(os.path.normpath(page.parent / path))
        if not (root / file).exists():
            raise SiteError(f"{page}: there is no {file}")
        if is_page(file):
            place = place_of(file)
        else:
            copies.add(file)
            place = COPIES / file
        return f"]({os.path.relpath(place, here)}{mark}{anchor})"

    def unlink_folder(match: re.Match[str]) -> str:
        is_address = ":" in match["target"]
        is_folder = not is_address and (root / os.path.normpath(page.parent / match["target"])).is_dir()
        return match["text"] if is_folder else match.group()

    return "".join(
        part if is_code else _TARGET.sub(replace, _LINK_TO_FOLDER.sub(unlink_folder, part))
        for part, is_code in _split(text)
    )


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Split a page into prose and fenced blocks."""
    lines = text.splitlines(keepends=True)
    done = 0
    for fence in fences(text):
        first, last = fence.line - 1, fence.line - 1 + fence.code.count("\n")
        yield "".join(lines[done:first]), False
        yield "".join(lines[first:last]), True
        done = last
    yield "".join(lines[done:]), False


def navigation(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of the navigation."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from navigation(value)


def check_navigation(config: Path, places: set[Path]) -> None:
    """Raise SiteError where navigation and pages differ."""
    listed = list(navigation(tomllib.loads(config.read_text())["project"]["nav"]))
    named = set(map(Path, listed))
    if len(named) < len(listed):
        raise SiteError(f"{config.name}: a page is listed twice")
    if missing := sorted(map(str, named - places)):
        raise SiteError(f"{config.name}: there is no page {', '.join(missing)}")
    if unlisted := sorted(map(str, places - named)):
        raise SiteError(f"{config.name}: the navigation lacks {', '.join(unlisted)}")


def collect(root: Path, folder: Path) -> None:
    """Write the pages, their pictures, and copies of the files that they link to."""
    shutil.rmtree(folder, ignore_errors=True)
    copies: set[Path] = set()
    places: set[Path] = set()
    for file in [*(root / name for name in TOP), *sorted((root / "docs").rglob("*"))]:
        source = file.relative_to(root)
        if file.is_dir() or file.name == "zensical.toml":
            continue
        target = folder / place_of(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            places.add(place_of(source))
            target.write_text(rewrite(root, source, file.read_text(), copies))
        else:
            shutil.copy(file, target)
    for copy in copies:
        (folder / COPIES / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / copy, folder / COPIES / copy)
    check_navigation(root / "docs" / "zensical.toml", places)


def build(root: Path, out: Path) -> int:
    """Build the site of a repository under `out`/site; return the exit code of Zensical."""
    collect(root, out / "pages")
    shutil.copy(root / "docs" / "zensical.toml", out)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file"]
    return subprocess.run([*command, str(out / "zensical.toml")], check=False).returncode


def main() -> None:
    """Build the site of this repository."""
    parser = argparse.ArgumentParser(prog="build_site", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="the folder to build in")
    out = parser.parse_args().out
    try:
        code = build(ROOT, out)
    except SiteError as error:
        sys.exit(f"make docs: {error}")
    if code == 0:
        print(f"{out / 'site' / 'index.html'}")
    sys.exit(code)


if __name__ == "__main__":
    main()
