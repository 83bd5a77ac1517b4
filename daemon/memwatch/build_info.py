"""Version and revision of this program. A build writes both to memwatch/_build.py; a checkout has no such file."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

# The next release, or the released version in the commit that is tagged with it. docs/contributing/releases.md
BASE_VERSION = "0.1.0"
UNKNOWN = "unknown"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def read_commit(root: Path) -> str | None:
    """Return the commit of a checkout from git's files. git may be missing, or refuse another user's folder."""
    try:
        folder = root / ".git"
        if folder.is_file():  # a worktree or submodule
            folder = root / folder.read_text("utf-8").removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text("utf-8").strip()
        if head.startswith("ref: "):
            head = _resolve(folder, head.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None
    return head if _COMMIT.fullmatch(head) else None


def _resolve(folder: Path, reference: str) -> str:
    """Return the commit of a branch, which has a file or a line in packed-refs."""
    shared = folder / "commondir"
    common = folder / shared.read_text("utf-8").strip() if shared.exists() else folder
    try:
        return (common / reference).read_text("utf-8").strip()
    except FileNotFoundError:
        lines = (common / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in lines if line.endswith(f" {reference}")), "")


def read_build(package: Path) -> tuple[str, str]:
    """Return version and revision of a checkout. The files may differ from the commit, so there is no count."""
    root = package.parent.parent
    commit = read_commit(root) if os.path.isfile(package.parent / "pyproject.toml") else None
    return (BASE_VERSION, UNKNOWN) if commit is None else (f"{BASE_VERSION}.dev0+checkout.g{commit[:12]}", commit)


def describe(program: str) -> str:
    """Return the answer to --version."""
    return f"{program} {__version__} (revision {REVISION})"


__version__: str
REVISION: str
try:
    _built = import_module("memwatch._build")
    __version__, REVISION = _built.VERSION, _built.REVISION
except ModuleNotFoundError:
    __version__, REVISION = read_build(Path(__file__).parent)
