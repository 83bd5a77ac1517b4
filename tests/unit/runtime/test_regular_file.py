"""Only regular files are opened, none is waited for, and older kernels give the same answers."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from memwatch.core.linux.user_files import UserFiles, UserPath, as_owner, find_owner
from memwatch.core.runtime.regular_file import READ, NotRegularError, open_in_root, open_regular, read_regular
from support.forked import OPENAT2, call_in_child, refuse_call
from support.other_user import CAN_SWITCH, OTHER_UID, become_other

_PATHS = "a folder/b link /a /folder/../link out magic loop pipe folder private/c nothing a/x .."
PATHS = _PATHS.split()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_bytes(b"outside")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "private").mkdir()
    for name in ("a", "folder/b", "private/c"):
        (root / name).write_bytes(name.encode())
    links = {"link": "folder/../a", "out": "../outside", "magic": "/proc/self/cwd/a", "loop": "loop"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def opened(root: Path) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def answers(opened: int) -> list[object]:
    files = UserFiles(opened, None)
    read = [files.path(path).read(100) for path in PATHS]
    return [*read, *(sorted(one.name for one in files.path(path).glob("*")) for path in PATHS)]


def test_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert (read_regular(tmp_path / "a"), read_regular(str(tmp_path / "a"), 3)) == (b"content", b"con")


@pytest.mark.parametrize("length", [0, 1, 65535, 65536, 65537, 131072, 200_000, 200_001])
def test_first_bytes_are_read_in_parts(tmp_path: Path, length: int) -> None:
    content = bytes(range(250)) * 800
    (tmp_path / "a").write_bytes(content)
    assert read_regular(tmp_path / "a", length) == content[:length]
    assert read_regular(tmp_path / "a") == content


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_other_kind_of_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "socket":
            listener.bind(str(path))
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(NotRegularError, match="is not a regular file"), open_regular(path):
            pass


def test_missing_file_raises_the_error_of_the_kernel(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")


@pytest.mark.process
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_kernel_without_openat2_gives_the_same_answers(opened: int, error: int) -> None:
    """Before Linux 5.6 the call is missing; older seccomp profiles refuse it."""
    refuse = partial(refuse_call, OPENAT2, error)

    def with_call() -> tuple[bool, list[object]]:
        return open_in_root(opened, "/a", READ) is not None, answers(opened)

    has_call, found = call_in_child(with_call, refuse)
    assert not has_call
    assert found == answers(opened)
    assert [path for path, content in zip(PATHS, found, strict=False) if content is not None] == [
        *PATHS[:5],
        "private/c",
    ]


def test_magic_link_of_proc_leads_nowhere() -> None:
    """/proc/PID/root would lead out of the root folder, and a descriptor to a file that has no path."""
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{descriptor}/proc/self/status"
        assert UserFiles(descriptor, None).path(path).read(10) is None
    finally:
        os.close(descriptor)


@pytest.mark.process
@pytest.mark.parametrize("own_links", [False, True])
def test_root_reads_a_users_folder_with_the_rights_of_that_user(tmp_path: Path, own_links: bool) -> None:
    """Its owner chooses the target of each link in it."""
    if not CAN_SWITCH:
        assert owner_reads(tmp_path / "nothing") is None
        return
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o111)
    secret, home = tmp_path / "secret", tmp_path / "home"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    home.mkdir()
    (home / "own").write_bytes(b"own")
    (home / "out").symlink_to(secret)
    for path in (home, home / "own", home / "out"):
        os.chown(path, OTHER_UID if own_links or path == home else 0, -1, follow_symlinks=False)
    assert owner_reads(home / "own") == b"own"
    assert owner_reads(home / "out") is None
    assert owner_reads(secret) == b"secret"
    assert (find_owner(home / "out"), find_owner(secret)) == (OTHER_UID, 0)


@pytest.mark.process
def test_root_follows_no_link_of_a_user_in_a_shared_folder(tmp_path: Path) -> None:
    """The folder is root's, and everyone may put a file there."""
    secret, shared = tmp_path / "secret", tmp_path / "shared"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    shared.mkdir()
    shared.chmod(0o1777)
    for name in ("foreign", "own"):
        (shared / name).symlink_to(secret)
    (shared / "file").write_bytes(b"file")
    if CAN_SWITCH:
        for name in ("foreign", "file"):
            os.chown(shared / name, OTHER_UID, -1, follow_symlinks=False)
    with as_owner(shared) as folder:
        found = [read_or_none(folder / name) for name in ("foreign", "own", "file")]
    assert found == [None if CAN_SWITCH else b"secret", b"secret", b"file"]


def owner_reads(path: Path) -> bytes | None:
    with as_owner(path) as found:
        return read_or_none(found)


def read_or_none(path: Path | UserPath) -> bytes | None:
    try:
        with open_regular(path) as (file, _):
            return file.read()
    except OSError:
        return None


@pytest.mark.process
def test_other_users_read_with_their_own_rights(tmp_path: Path) -> None:
    """Without root there are no other rights than those of the kernel."""

    def is_same() -> bool:
        with as_owner(tmp_path) as found:
            return found is tmp_path

    first: list[Callable[[], None]] = [become_other] if CAN_SWITCH else []
    assert call_in_child(is_same, *first)
