"""Files that a wheel has and the repository has not: what is below share/ of each installation, compiled templates.

Below share/ are rules, dashboards, examples and pages. Hatchling runs the hook for the wheel of memwatchd. The
Debian package has the same files in /usr/share.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA, DOCUMENTS = "memwatchd", "doc/memwatchd"
# Files and folders of the repository, and their places below share/. The longest one that fits decides.
PLACES = {
    "README.md": f"{DOCUMENTS}/README.md",
    "CHANGELOG.md": f"{DOCUMENTS}/CHANGELOG.md",
    "SECURITY.md": f"{DOCUMENTS}/SECURITY.md",
    "docs": DOCUMENTS,
    "systemd": f"{DATA}/systemd",
    "systemd/drop-ins": f"{DOCUMENTS}/drop-ins",
    "systemd/examples": f"{DOCUMENTS}/examples",
    **{
        f"deploy/{name}": f"{DATA}/{name}"
        for name in ("alertmanager", "ansible", "grafana", "helm", "kubernetes", "launch", "otel", "prometheus")
    },
}
# Links in the repository, which are installed as copies. A source distribution would have only one of both folders.
COPIES = {
    f"{DATA}/ansible/roles/memwatchd/files/drop-ins": "systemd/drop-ins",
    f"{DATA}/helm/memwatchd/base": "deploy/kubernetes/base",
}
# For work on memwatchd itself: they need the repository.
LEFT_OUT = ("docs/contributing", "docs/zensical.toml", "deploy/prometheus/rules_test.yml")
LEFT_OUT_SUFFIXES = (".py", ".pyc", ".ansible-lint")
COMPILER = "web/memwatch_web/pages/compiled_templates.py"
_TEST_COMMENT = re.compile(r"^ *<!-- [^\n]*? -->\n", re.MULTILINE)
_TARGET = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_LINK = re.compile(r"!?\[(?P<text>[^\[\]]*)\]\((?P<path>[^)\s#:]+)(?:#[^)\s]*)?\)")


def place_of(path: str) -> str | None:
    """Return the place of a file or folder of the repository below share/, None if it is not installed."""
    if path.endswith(LEFT_OUT_SUFFIXES) or any(path == one or path.startswith(f"{one}/") for one in LEFT_OUT):
        return None
    fitting = [one for one in PLACES if path == one or path.startswith(f"{one}/")]
    if not fitting:
        return None
    longest = max(fitting, key=len)
    return PLACES[longest] + path[len(longest) :]


def list_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each installed file and its place."""
    found = {path: place for name in PLACES for path, place in _files_below(root, name)}
    yield from found.items()
    for place, folder in COPIES.items():
        for name in found:
            if name.startswith(f"{folder}/"):
                yield name, place + name.removeprefix(folder)


def _files_below(root: Path, name: str) -> Iterator[tuple[str, str]]:
    if (root / name).is_file():
        yield name, PLACES[name]
    for folder, folders, files in os.walk(root / name):
        folders.sort()
        for file in sorted(files):
            path = Path(folder, file).relative_to(root).as_posix()
            if place := place_of(path):
                yield path, place


def installed_page(root: Path, page: str, text: str) -> str:
    """Return a page with links to installed files. A link to another file of the repository becomes text."""
    here = PurePosixPath(place_of(page) or "").parent

    def find(path: str) -> tuple[bool, str | None]:
        target = os.path.normpath(PurePosixPath(page).parent / path)
        return (root / target).exists(), place_of(target)

    def unlink(match: re.Match[str]) -> str:
        exists, place = find(match["path"])
        return match["text"] if exists and place is None else match.group()

    def lead(match: re.Match[str]) -> str:
        exists, place = find(match["path"])
        if not exists or place is None:
            return match.group()
        return f"]({os.path.relpath(place, here)}{match['anchor'] or ''})"

    return _TARGET.sub(lead, _LINK.sub(unlink, _TEST_COMMENT.sub("", text)))


def write_files(root: Path, share: Path) -> None:
    """Write all files below `share`."""
    for path, place in list_files(root):
        target = share / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            target.write_text(installed_page(root, path, (root / path).read_text("utf-8")), "utf-8")
        else:
            shutil.copy(root / path, target)


class SharedFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to a wheel.

    An editable installation has the shared ones in its checkout, and compiles templates when it runs. The container
    image is built without docs/ and has no shared ones.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._written = tempfile.TemporaryDirectory()
        if version == "editable":
            return
        root, share, compiled = (
            Path(self.root),
            Path(self._written.name, "share"),
            Path(self._written.name, "compiled"),
        )
        compiled.mkdir()
        runpy.run_path(str(root / COMPILER))["write_compiled"](compiled)
        build_data["force_include"][str(compiled)] = "memwatch_web/templates/compiled"
        if (root / "docs").is_dir():
            write_files(root, share)
            build_data["shared_data"][str(share)] = "share"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        self._written.cleanup()
