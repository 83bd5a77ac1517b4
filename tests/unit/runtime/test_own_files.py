"""Files are opened without following links and without writing to files of other users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from memwatch.core.runtime.own_files import ForeignFileError, free_name, open_own, why_foreign

OTHER_UID = 65534


def as_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def as_dangling_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("missing"))


def as_hard_link(path: Path, victim: Path) -> None:
    os.link(victim, path)


def as_pipe(path: Path, _victim: Path) -> None:
    os.mkfifo(path)


def as_folder(path: Path, _victim: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("prepare", [as_link, as_dangling_link, as_hard_link, as_pipe, as_folder])
def test_prepared_path_is_refused_and_its_target_unchanged(
    prepare: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    prepare(tmp_path / "file", victim)

    with pytest.raises(ForeignFileError):
        open_own(tmp_path / "file", os.O_WRONLY)

    assert victim.read_text() == "theirs"
    assert not (tmp_path / "missing").exists()


def test_new_file_is_for_its_owner_only_and_is_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        os.close(open_own(tmp_path / "file", os.O_RDWR))

    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Root creates one here. Another user can judge the status of such a file, but not create it."""
    file = tmp_path / "file"
    file.write_text("")
    found = os.stat_result((0o100644, 1, 1, 1, OTHER_UID, OTHER_UID, 0, 0, 0, 0))
    if os.geteuid() == 0:
        os.chown(file, OTHER_UID, OTHER_UID)
        with pytest.raises(ForeignFileError, match="belongs to another user"):
            open_own(file, os.O_RDWR)

    assert why_foreign(found) == f"belongs to another user (uid {OTHER_UID})"
    assert why_foreign(os.stat_result((0o100644, 1, 1, 1, 0, 0, 0, 0, 0, 0))) == ""


def test_free_name_skips_existing_paths_and_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "a.1").symlink_to("nowhere")

    assert free_name(tmp_path / "a") == tmp_path / "a.2"
    assert free_name(tmp_path / "b") == tmp_path / "b"
