"""Find files by pattern below a folder that is never left, with the symbolic links on the way."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

MAX_LINKS = 40


class Walk:
    """A search below one root. `links` collects symbolic links, `unread` folders that cannot be listed.

    Both are keyed by the path relative to the root; `unread` has the reason.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.links: dict[str, str] = {}
        self.unread: dict[str, str] = {}

    def find(self, pattern: str, follow_last: bool = True) -> Iterator[str]:
        """Yield the paths of existing files that match, with links resolved. The last is kept if not followed."""
        yield from self._step("", pattern.split("/"), follow_last, MAX_LINKS)

    def _step(self, folder: str, parts: Sequence[str], follow_last: bool, links_left: int) -> Iterator[str]:
        if not parts:
            yield folder
            return
        first, rest = parts[0], parts[1:]
        if first in ("", "."):
            yield from self._step(folder, rest, follow_last, links_left)
        elif first == "..":
            if folder:
                yield from self._step(posixpath.dirname(folder), rest, follow_last, links_left)
        else:
            for name in self._names(folder, first):
                yield from self._enter(f"{folder}/{name}".lstrip("/"), rest, follow_last, links_left)

    def _enter(self, path: str, rest: Sequence[str], follow_last: bool, links_left: int) -> Iterator[str]:
        full = self._root / path
        if not os.path.lexists(full):
            self._note_hidden(full, path)
            return
        if not full.is_symlink():
            yield from self._step(path, rest, follow_last, links_left)
            return
        target = os.readlink(full)
        if not links_left or target.startswith("/"):
            return
        self.links[path] = target
        if rest or follow_last:
            parts = (*target.split("/"), *rest)
            yield from self._step(posixpath.dirname(path), parts, follow_last, links_left - 1)
        else:
            yield path

    def _names(self, folder: str, pattern: str) -> Sequence[str]:
        if not any(mark in pattern for mark in "*?["):
            return (pattern,)
        try:
            names = os.listdir(self._root / folder)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                self.unread[folder] = reason_of(error)
            return ()
        return sorted(name for name in names if fnmatchcase(name, pattern))

    def _note_hidden(self, full: Path, path: str) -> None:
        """Note a file in a folder without access: `lexists` is false for it as well."""
        try:
            os.lstat(full)
        except PermissionError as error:
            self.unread[path] = reason_of(error)
        except OSError:
            return


def reason_of(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
