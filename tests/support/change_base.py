"""Commit with which a change is compared, and the files that differ from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from support.function_changes import Versions

NEEDED_PROGRAMS = ("git",)

MIN_COMMITS = 20
MIN_HOURS = 6
UPSTREAM = ("upstream/main", "origin/main", "origin/HEAD", "main")


class Base(Struct, frozen=True):
    """Commit, and the reason why it was taken. Without a commit everything counts as changed."""

    commit: str
    reason: str

    def __str__(self) -> str:
        return f"{self.commit[:10]} ({self.reason})" if self.commit else self.reason


class Repository(Struct, frozen=True):
    """Checkout of git."""

    root: Path

    def git(self, *arguments: str) -> str:
        """Return the output of a git command; empty if it fails."""
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip("\n") if done.returncode == 0 else ""

    def commit(self, revision: str) -> str:
        return self.git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")

    def text(self, revision: str, path: str) -> str:
        return self.git("show", f"{revision}:{path}") + "\n"


def find_base(repository: Repository, named: str | None = None) -> Base:
    """Return the commit before the change: CHANGE_BASE, or the merge base with the upstream main branch.

    In a clone of one branch the upstream is HEAD itself, and the extent of the change is not known. Then the
    last 20 commits, and all of the last six hours, count as the change.
    """
    named = os.environ.get("CHANGE_BASE") if named is None else named
    if named:
        commit = repository.commit(named)
        if not commit:
            raise SystemExit(f"CHANGE_BASE={named} names no commit of {repository.root}; name one, or unset it")
        return Base(commit, f"CHANGE_BASE={named}")
    head = repository.commit("HEAD")
    if not head:
        return Base("", "no commit to compare with: everything counts as changed")
    for branch in UPSTREAM:
        commit = repository.git("merge-base", "HEAD", branch) if repository.commit(branch) else ""
        if commit not in ("", head):
            return Base(commit, f"merge base with {branch}")
    return _some_time_ago(repository, head)


def _some_time_ago(repository: Repository, head: str) -> Base:
    history = [line.split() for line in repository.git("log", "--first-parent", "--format=%H %ct").splitlines()]
    newest = int(history[0][1])
    for commit, seconds in history[MIN_COMMITS:]:
        if newest - int(seconds) >= MIN_HOURS * 3600:
            return Base(commit, f"no upstream: at least {MIN_COMMITS} commits and {MIN_HOURS} hours before HEAD")
    if history[-1][0] == head:
        return Base("", "a single commit: everything counts as changed")
    return Base(history[-1][0], "no upstream: the oldest commit of this clone")


def changed_files(repository: Repository, base: Base, folder: str = "tests") -> dict[str, Versions]:
    """Return both texts of each Python file under `folder` that is not as in the base, also when it was renamed."""
    if not base.commit:
        paths = repository.root.glob(f"{folder}/**/*.py")
        return {str(path.relative_to(repository.root)): Versions("", path.read_text()) for path in paths}
    listed = repository.git("diff", "-M", "--name-status", "-z", base.commit, "--", folder)
    pairs = renamed_paths(listed.split("\0"))
    untracked = repository.git("ls-files", "--others", "--exclude-standard", "-z", "--", folder)
    pairs |= dict.fromkeys(filter(None, untracked.split("\0")), "")
    return {
        now: Versions(repository.text(base.commit, before) if before else "", (repository.root / now).read_text())
        for now, before in pairs.items()
        if now.endswith(".py") and (repository.root / now).is_file()
    }


def renamed_paths(fields: Sequence[str]) -> dict[str, str]:
    """Parse `git diff --name-status -z`: path now, and path before, which is empty for a new file."""
    found: dict[str, str] = {}
    waiting = iter(fields)
    for status in waiting:
        if status[:1] in ("R", "C"):
            before = next(waiting)
            found[next(waiting)] = before
        elif status:
            path = next(waiting)
            found[path] = "" if status == "A" else path
    return found
