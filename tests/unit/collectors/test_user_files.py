"""Files that a process names: links stay in its root, and what it may not read cannot be told from nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from memwatch.core.linux.user_files import MAX_NAMES, UserFiles
from memwatch.core.runtime.programs import MAX_LINKS
from memwatch.planning.model_file import find_home, find_model

OWNER = os.getuid()
STRANGER = OWNER + 1
SECRET = b"do not show"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make the root folder of a container, beside a file that is not in it."""
    (tmp_path / "outside").write_bytes(SECRET)
    folder = tmp_path / "root"
    (folder / "models").mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    (folder / "models/a.gguf").write_bytes(b"GGUF")
    (folder / "models/a.gguf").chmod(0o644)
    return folder


@pytest.fixture
def opened(root: Path) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def read(opened: int, path: str, uid: int | None = STRANGER) -> bytes | None:
    return UserFiles(opened, uid).path(path).read(100)


@pytest.mark.parametrize(
    "path", ["models/a.gguf", "/models/a.gguf", "/models/../models/./a.gguf", "/../models/a.gguf"]
)
def test_file_that_everyone_may_read_is_read(opened: int, path: str) -> None:
    assert read(opened, path) == b"GGUF"


@pytest.mark.parametrize(
    ("target", "content"),
    [
        ("a.gguf", b"GGUF"),
        ("../models/a.gguf", b"GGUF"),
        ("/models/a.gguf", b"GGUF"),  # from the root of the container
        ("../../../../models/a.gguf", b"GGUF"),  # the parent of a root is the root
        ("../../outside", None),
        ("/proc/self/environ", None),
        ("", None),
        ("link", None),  # leads to itself
        ("a.gguf/x", None),
    ],
)
def test_links_are_resolved_below_the_root(root: Path, opened: int, target: str, content: bytes | None) -> None:
    if target:
        (root / "models/link").symlink_to(target)
    assert read(opened, "models/link", None) == content


def test_no_link_leads_to_a_file_outside(root: Path, tmp_path: Path, opened: int) -> None:
    for name, target in (("one", tmp_path / "outside"), ("two", tmp_path), ("three", "../..")):
        (root / name).symlink_to(target)
    found = [read(opened, path, None) for path in ("one", "two/outside", "three/outside", "../outside")]
    assert found == [None] * 4


def test_links_end_at_the_limit_of_the_kernel(root: Path, opened: int) -> None:
    for number in range(MAX_LINKS + 1):
        (root / f"link{number}").symlink_to(f"link{number - 1}" if number else "models/a.gguf")
    assert read(opened, f"link{MAX_LINKS - 1}") == b"GGUF"
    assert read(opened, f"link{MAX_LINKS}") is None


def test_only_regular_files_are_opened_and_without_waiting(root: Path, opened: int) -> None:
    os.mkfifo(root / "pipe", 0o644)
    (root / "pipe").chmod(0o644)
    for path in ("pipe", "models", "models/", "", "/", "nothing"):
        assert read(opened, path, None) is None


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "is_read"),
    [
        (0o644, 0o755, True),
        (0o644, 0o711, True),
        (0o640, 0o755, False),  # this process may have the group, the user of the server has not
        (0o600, 0o755, False),
        (0o644, 0o750, False),
        (0o644, 0o700, False),
        (0o604, 0o701, True),
    ],
)
def test_stranger_reads_what_everyone_may_read(
    root: Path, opened: int, file_mode: int, folder_mode: int, is_read: bool
) -> None:
    (root / "models/a.gguf").chmod(file_mode)
    (root / "models").chmod(folder_mode)
    assert (read(opened, "models/a.gguf", STRANGER) is not None) == is_read
    assert read(opened, "models/a.gguf", OWNER) == b"GGUF"


def test_way_through_a_link_counts_like_any_other(root: Path, opened: int) -> None:
    (root / "private").mkdir(mode=0o700)
    (root / "private/b.gguf").write_bytes(SECRET)
    (root / "models/b.gguf").symlink_to("../private/b.gguf")
    assert read(opened, "models/b.gguf", STRANGER) is None
    assert read(opened, "models/b.gguf", OWNER) == SECRET


def test_refused_file_answers_as_a_missing_one(root: Path, opened: int) -> None:
    """By each question that a reader of models asks."""
    (root / "private").mkdir(mode=0o700)
    (root / "private/b.gguf").write_bytes(SECRET)
    (root / "models/c.gguf").write_bytes(SECRET)
    (root / "models/c.gguf").chmod(0o600)
    files = UserFiles(opened, STRANGER)

    def answers(path: str) -> list[object]:
        found = files.path(path)
        return [found.exists(), found.is_dir(), list(found.glob("*")), found.read(100), error_of(files, path)]

    assert answers("private/b.gguf") == answers("nowhere/b.gguf")
    assert answers("private/b.gguf/x") == answers("nowhere/b.gguf/x")
    assert error_of(files, "models/c.gguf") == error_of(files, "models/d.gguf")


def error_of(files: UserFiles, path: str) -> tuple[type[Exception], int | None, str | None]:
    with pytest.raises(OSError, match=r".") as raised:
        files.open(PurePosixPath("/", path))
    return type(raised.value), raised.value.errno, raised.value.strerror


def test_names_of_a_folder_need_the_right_to_list_it(root: Path, opened: int) -> None:
    (root / "models").chmod(0o711)
    assert [str(one) for one in UserFiles(opened, OWNER).path("models").glob("*.gguf")] == ["/models/a.gguf"]
    assert list(UserFiles(opened, STRANGER).path("models").glob("*.gguf")) == []
    assert read(opened, "models/a.gguf", STRANGER) == b"GGUF"


def test_names_of_a_folder_are_bounded(root: Path, opened: int) -> None:
    for number in range(MAX_NAMES + 10):
        os.link(root / "models/a.gguf", root / f"models/{number}.x")
    assert len(UserFiles(opened, None).names(PurePosixPath("/models"))) == MAX_NAMES


def test_descriptors_are_closed(opened: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("models/a.gguf", "models/link", "nowhere/x", "models"):
        read(opened, path)
        UserFiles(opened, None).path(path).exists()
        list(UserFiles(opened, None).path(path).glob("*"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_model_of_a_repository_is_looked_for_in_the_home_of_its_user(root: Path, opened: int) -> None:
    commit = "a" * 40
    folder = root / "home/ana/.cache/huggingface/hub/models--Qwen--Qwen3-32B"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nana:x:54321:1000::/home/ana:/bin/sh\n")
    files = UserFiles(opened, OWNER)
    found = find_model("Qwen/Qwen3-32B", files, find_home(files, 54321), "")
    assert str(found) == f"/{folder.relative_to(root)}/snapshots/{commit}"


@pytest.mark.parametrize("name", ["", "/models/\0", "../../outside", "Qwen/None", "/nowhere"])
def test_model_that_is_not_there_is_not_found(opened: int, name: str) -> None:
    assert find_model(name, UserFiles(opened, None), "", "") is None


def test_relative_model_is_one_of_the_working_directory(opened: int) -> None:
    assert str(find_model("a.gguf", UserFiles(opened, STRANGER), "", "/models")) == "/models/a.gguf"
