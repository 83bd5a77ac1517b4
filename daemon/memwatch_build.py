"""Version of a build, and the hatchling hook that writes it to memwatch/_build.py of each distribution.

A build of the commit with the tag of BASE_VERSION has that version. A build of any other commit has a development
version with the number of commits and the commit. It sorts after all earlier ones and before the next release.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent.parent
PACKAGE = Path(__file__).parent / "memwatch"
UNKNOWN = "unknown"
TEXT = '''"""Version of this build, written by memwatch_build.py."""

VERSION = {version!r}
REVISION = {revision!r}
SOURCE_DATE_EPOCH = {epoch!r}
'''


class Build(NamedTuple):
    """Version (PEP 440), commit, and time of the commit in seconds, None if not known."""

    version: str
    revision: str = UNKNOWN
    epoch: int | None = None


def read_base() -> str:
    found = re.search(r'^BASE_VERSION = "(.+)"$', (PACKAGE / "build_info.py").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f'{PACKAGE / "build_info.py"} has no line BASE_VERSION = "…"; add it')
    return found[1]


def read_build() -> Build:
    """Return the build of this folder: of a source distribution, of the environment, or of a checkout."""
    written = PACKAGE / "_build.py"
    if written.exists():
        values = runpy.run_path(str(written))
        return Build(values["VERSION"], values["REVISION"], values["SOURCE_DATE_EPOCH"])
    # An image is built without .git; deploy/Dockerfile sets these from its arguments.
    if version := os.environ.get("MEMWATCHD_BUILD_VERSION"):
        return Build(version, os.environ.get("MEMWATCHD_BUILD_REVISION") or UNKNOWN)
    if not (ROOT / ".git").exists():
        return Build(read_base())
    try:
        return read_git(ROOT, read_base())
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        print(f"memwatch_build: the commit is not known, because git failed: {why.strip()}", file=sys.stderr)
        return Build(f"{read_base()}.dev0")


def read_git(root: Path, base: str) -> Build:
    """Return the build of a checkout. A shallow clone has no number of commits, so that its builds sort first."""

    def git(*arguments: str) -> str:
        command = ("git", "--no-optional-locks", "-C", str(root), *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    tag = f"v{base}"
    commit, epoch = git("log", "-1", "--format=%H %ct").split()
    changed = ".dirty" if git("status", "--porcelain") else ""
    if tag in git("tag", "--points-at", "HEAD").split() and not changed:
        return Build(base, commit, int(epoch))
    is_shallow = git("rev-parse", "--is-shallow-repository") == "true"
    count = "0" if is_shallow else git("rev-list", "--count", "HEAD")
    upcoming = next_version(base) if git("tag", "--list", tag) else base
    revision = commit + changed.replace(".", "-")
    return Build(f"{upcoming}.dev{count}+g{commit[:12]}{changed}", revision, int(epoch))


def next_version(base: str) -> str:
    """Return the version with its last number one higher: 0.1.1 after 0.1.0, 0.2.0rc2 after 0.2.0rc1."""
    return re.sub(r"\d+$", lambda found: str(int(found[0]) + 1), base)


def debian_version(version: str) -> str:
    """Convert a version for dpkg, which sorts 1.0~dev3 before 1.0 only with a tilde. The commit stays as it is."""
    public, plus, commit = version.partition("+")
    return re.sub(r"\.?(dev|a|b|rc)", r"~\1", public) + plus + commit


class BuildFile(BuildHookInterface):  # type: ignore[type-arg]
    """Adds memwatch/_build.py. An editable installation uses the checkout, which has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._file: Path | None = None
        if version == "editable" or (PACKAGE / "_build.py").exists():
            return
        descriptor, name = tempfile.mkstemp(suffix=".py")
        self._file = Path(name)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(TEXT.format(**read_build()._asdict()))
        build_data["force_include"][name] = self.config["file"]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if self._file is not None:
            self._file.unlink()
