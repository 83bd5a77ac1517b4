"""Files that a process names, opened with no more rights than the process has.

memwatchd may read more than the process: its own tokens, files of its groups, and everything where it is root. A
path is therefore walked one component at a time from the root folder of the process, none through a link (openat(2)
with O_NOFOLLOW, which every kernel has). Links are resolved in that root, so that none leads out of a container.
With the rights of the user, openat2(2) does the same in one call (Linux 5.6, unless a seccomp profile is older).
Only regular files are opened, and without waiting: a FIFO may take the place of a file at any time. A file that is
refused cannot be told from one that does not exist.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from memwatch.core.runtime.programs import MAX_LINKS, is_writable_by_others, walk
from memwatch.core.runtime.regular_file import READ, NotRegularError, open_descriptor, open_in_root

# Entries of a folder that are looked at.
MAX_NAMES = 8192
ROOT = 0
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class UserFiles:
    """The files below one root folder, for a process of one user.

    With a `uid`, a file must belong to that user or be readable by everyone, and so must each folder on the way.
    Without one, this process has the rights of the user, and the kernel checks. With `links_of`, no link of another
    user than that is followed.
    """

    def __init__(self, root: int, uid: int | None, links_of: int | None = None) -> None:
        """`root`: descriptor of the root folder. The caller closes it."""
        self._root = root
        self._uid = uid
        self._links_of = links_of

    def path(self, path: str) -> UserPath:
        return UserPath(self, PurePosixPath("/", path))

    def open(self, path: PurePosixPath) -> int:
        """Return the descriptor of a regular file. Raises FileNotFoundError for anything else."""
        try:
            return self._open(path)
        except OSError:
            if self._links_of is not None:  # root may know
                raise
            raise _missing(path) from None

    def names(self, path: PurePosixPath) -> list[str]:
        """Return the first names in a folder. Raises OSError if it is none, or one that the user may not list."""
        listed = self._open_listed(path)
        try:
            with os.scandir(listed) as entries:
                return [entry.name for entry in islice(entries, MAX_NAMES)]
        finally:
            os.close(listed)

    def is_folder(self, path: PurePosixPath) -> bool:
        try:
            with self._walk(path) as (_, name):
                return not name
        except OSError:
            return False

    @contextmanager
    def folder(self, path: PurePosixPath) -> Iterator[int]:
        """Yield the descriptor of a folder. Raises OSError."""
        with self._walk(path) as (folder, name):
            if name:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            yield folder

    def _open(self, path: PurePosixPath) -> int:
        found = open_in_root(self._root, str(path), READ) if self._kernel_checks else None
        if found is None:
            with self._walk(path) as (folder, name):
                found = open_descriptor(name or ".", folder, READ | os.O_NOFOLLOW)
        status = os.fstat(found)
        if stat.S_ISREG(status.st_mode) and self._may(status, stat.S_IROTH):
            return found
        os.close(found)
        raise NotRegularError(path)

    def _open_listed(self, path: PurePosixPath) -> int:
        found = open_in_root(self._root, str(path), _LISTED) if self._kernel_checks else None
        if found is not None:
            return found
        with self._walk(path) as (folder, name):
            if name or not self._may(os.fstat(folder), stat.S_IROTH):
                raise _missing(path)
            return os.open(".", _LISTED, dir_fd=folder)

    @contextmanager
    def _walk(self, path: PurePosixPath) -> Iterator[tuple[int, str]]:
        """Yield the last folder of a path and the name of the file in it, which is no link.

        The name is empty if the path leads to the folder itself.
        """
        folders, links = [os.dup(self._root)], 0
        left = list(reversed(path.parts))
        try:
            while left:
                part = left.pop()
                if part == "/":
                    _close_all(folders, 1)
                elif part == "..":
                    _close_all(folders, max(1, len(folders) - 1))
                elif stat.S_ISLNK(mode := (status := self._status(folders[-1], part)).st_mode):
                    links += 1
                    if self._links_of not in (None, status.st_uid):
                        raise OSError(errno.ELOOP, "leads through a link of another user", str(path))
                    if links > MAX_LINKS:
                        raise _missing(path)
                    left += reversed(PurePosixPath(os.readlink(part, dir_fd=folders[-1])).parts)
                elif stat.S_ISDIR(mode):
                    folders.append(_open_folder(part, folders[-1]))
                elif left:
                    raise _missing(path)
                else:
                    yield folders[-1], part
                    return
            yield folders[-1], ""
        finally:
            _close_all(folders, 0)

    @property
    def _kernel_checks(self) -> bool:
        return self._uid is None and self._links_of is None

    def _status(self, folder: int, name: str) -> os.stat_result:
        """Return the status of an entry. Raises FileNotFoundError if the user may not enter the folder."""
        if not self._may(os.fstat(folder), stat.S_IXOTH):
            raise _missing(name)
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def _may(self, status: os.stat_result, right: int) -> bool:
        return self._uid is None or status.st_uid == self._uid or bool(status.st_mode & right)


class UserPath:
    """A path of UserFiles, with those methods of pathlib.Path that a reader of files needs."""

    def __init__(self, files: UserFiles, path: PurePosixPath) -> None:
        self._files = files
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def __truediv__(self, name: str) -> UserPath:
        return UserPath(self._files, self._path / name)

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parent(self) -> UserPath:
        return UserPath(self._files, self._path.parent)

    def exists(self) -> bool:
        """Return True for a folder, and for a file that can be read."""
        return self.is_dir() or self.read(0) is not None

    def is_dir(self) -> bool:
        return self._files.is_folder(self._path)

    def glob(self, pattern: str) -> Iterator[UserPath]:
        """Yield the entries of a folder with matching names, none if it cannot be listed."""
        try:
            names = self._files.names(self._path)
        except OSError:
            return
        yield from (self / name for name in names if fnmatchcase(name, pattern))

    def open_descriptor(self) -> int:
        """Return the descriptor of a regular file. Raises OSError."""
        return self._files.open(self._path)

    def read(self, max_bytes: int) -> bytes | None:
        """Return the first bytes of a regular file, None if there is none."""
        try:
            with open(self.open_descriptor(), "rb") as file:
                return file.read(max_bytes)
        except OSError:
            return None


@contextmanager
def as_owner(path: Path) -> Iterator[Path | UserPath]:
    """Yield the path with the rights of its owner, for root. It is as it is for other users, and for root's files.

    The path is one that a user of a command names. What a folder of another user leads to is that user's choice. In
    a folder of root that others may write to, their links are not followed.
    """
    owner = find_owner(path.absolute()) if os.geteuid() == ROOT else ROOT
    is_shared = os.geteuid() == ROOT and _is_shared(path)
    if owner == ROOT and not is_shared:
        yield path
        return
    with _root_folder() as root:
        files = UserFiles(root, None, links_of=ROOT) if owner == ROOT else UserFiles(root, owner)
        yield files.path(str(path.absolute()))


@contextmanager
def folder_to_write(path: Path) -> Iterator[tuple[int | None, Path]]:
    """Yield the folder in which a command writes a file, and the path of that file in it.

    For root, no link of another user leads there: a folder on the way may be exchanged for one at any time. Raises
    OSError. The folder is None for other users, who write nowhere else than they may.
    """
    if os.geteuid() != ROOT:
        yield None, path
        return
    way = PurePosixPath(path.absolute())
    with _root_folder() as root, UserFiles(root, None, links_of=ROOT).folder(way.parent) as folder:
        yield folder, Path(way.name)


@contextmanager
def _root_folder() -> Iterator[int]:
    root = os.open("/", getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER)
    try:
        yield root
    finally:
        os.close(root)


def find_owner(path: Path) -> int:
    """Return the last user other than root to whom a folder or link on the way belongs, or the file at its end."""
    owner = ROOT
    with suppress(OSError):  # missing
        for _, found in walk(path):
            owner = found.st_uid or owner
    return owner


def _is_shared(path: Path) -> bool:
    """Return True if other users may put files into the folder, or into that of a file."""
    with suppress(OSError):
        folder = path if path.is_dir() else path.parent
        return is_writable_by_others(folder.stat())
    return False


def _open_folder(name: str, folder: int) -> int:
    """Open a folder for its entries only: it may be one that its user cannot list."""
    return os.open(name, getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER, dir_fd=folder)


def _close_all(folders: list[int], first: int) -> None:
    """Close the folders from the one at index `first` on."""
    while len(folders) > first:
        os.close(folders.pop())


def _missing(path: object) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
