"""Check the format, types and language of the files of a change: `make check`.

The change is all that differs from the upstream branch, committed or not; without one, from the last commit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.paths import ROOT

NEEDED_PROGRAMS = ("git",)
# Generated, or captured from machines.
FOREIGN = ("tests/machines/",)


def main() -> int:
    files = changed_files()
    python = [name for name in files if name.endswith(".py")]
    codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands(files, python)]
    print(f"{len(files)} changed files checked")
    return 1 if any(codes) else 0


def commands(files: Sequence[str], python: Sequence[str]) -> Iterator[list[str]]:
    """Yield the checks. All types of the product are checked: those of unchanged files may no longer fit."""
    binaries = Path(sys.executable).parent
    if python:
        yield [str(binaries / "ruff"), "check", *python]
        yield [str(binaries / "ruff"), "format", "--check", *python]
        yield [str(binaries / "mypy")]
        yield [str(binaries / "lint-imports")]
        yield [sys.executable, "-m", "scripts.check_opens"]
    if files:
        yield [sys.executable, "-m", "scripts.check_language", *files]


def changed_files() -> list[str]:
    """Return the files that were added or changed and still exist."""
    base = _git("merge-base", "HEAD", "@{upstream}") or ["HEAD"]
    changed = _git("diff", "--name-only", "--diff-filter=d", *base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return [name for name in changed + new if not name.startswith(FOREIGN)]


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
