"""State folder: creation, locking, and startup without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memwatchd.state_dir import open_state, why_exchangeable
from support.daemon_process import running_daemon
from support.settings_sample import settings_from

OTHER_UID = 65534


def test_missing_folder_is_created_for_its_owner_only(tmp_path: Path) -> None:
    """Parents are created as well. Other users have no access."""
    wanted = tmp_path / "var/lib/memwatchd"

    state = open_state(wanted)

    assert (state.folder, state.complaint) == (wanted, "")
    assert wanted.stat().st_mode & 0o777 == 0o700
    state.close()


def test_second_daemon_runs_without_a_state_folder(tmp_path: Path) -> None:
    """Two daemons never write to one folder. It is available again once the first has closed it."""
    first = open_state(tmp_path)

    second = open_state(tmp_path)
    first.close()
    third = open_state(tmp_path)

    assert (second.folder, third.folder) == (None, tmp_path)
    assert f"state folder {tmp_path} is in use by another memwatchd" in second.complaint
    third.close()


def test_unusable_state_folder_is_reported(tmp_path: Path) -> None:
    """The reason is given: a file in its place, a path through a file, or write access for other users."""
    file = tmp_path / "file"
    file.write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    assert "(file exists)" in open_state(file).complaint
    assert "(not a directory)" in open_state(file / "below").complaint
    assert "(writable by other users)" in open_state(shared).complaint
    assert "--state-dir" in open_state(None).complaint


def test_link_to_a_state_folder_is_accepted(tmp_path: Path) -> None:
    """systemd's DynamicUser makes /var/lib/NAME a link."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("private")

    state = open_state(tmp_path / "link")

    assert state.folder == tmp_path / "link"
    state.close()


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner could replace any file in it. Only root can create such a folder; others use theirs or root's."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    as_root = os.geteuid() == 0
    if as_root:
        os.chown(folder, OTHER_UID, OTHER_UID)
    with running_daemon(tmp_path, f"--state-dir={folder}") as daemon:
        log = daemon.read_log()

    refused = (
        f"state folder {folder} cannot be used (it belongs to uid {OTHER_UID}, not to this user or root): nothing"
    )
    assert (refused in log) is as_root
    assert (list(folder.iterdir()) == []) is as_root


def test_root_refuses_a_parent_that_everyone_may_write_to_unless_it_is_sticky(tmp_path: Path) -> None:
    """In such a folder any user can rename the state folder and put another one in its place."""
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    open_parent = open_state(parent / "new/state")
    open_parent.close()
    parent.chmod(0o1777)
    sticky_parent = open_state(parent / "other/state")
    sticky_parent.close()

    as_root = os.geteuid() == 0
    assert (f"({parent} is writable by other users)" in open_parent.complaint) is as_root
    assert (parent / "new").exists() is not as_root
    assert sticky_parent.folder == parent / "other/state"


def test_root_refuses_parents_that_another_user_controls(tmp_path: Path) -> None:
    """A user may have a state folder below another account's folder, such as that of a project."""
    parent = tmp_path / "project"
    parent.mkdir()
    parent.chmod(0o775)
    owner = OTHER_UID if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(parent, OTHER_UID, OTHER_UID)

    assert why_exchangeable(parent / "state", uid=owner + 1) == ""
    assert why_exchangeable(parent / "state", uid=0) in (
        f"{parent} belongs to uid {owner}",
        f"{tmp_path} belongs to uid {owner}",
        *(f"{above} belongs to uid {owner}" for above in tmp_path.parents),
    )


def test_link_of_another_user_is_refused(tmp_path: Path) -> None:
    """It may lead to any folder of this user, and can be changed at any time."""
    (tmp_path / "mine").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("mine")
    owner = os.geteuid() or OTHER_UID
    os.chown(link, owner, -1, follow_symlinks=False)

    assert why_exchangeable(link, uid=owner + 1) == f"{link} belongs to uid {owner}"
    assert why_exchangeable(link, uid=owner) == ""


@pytest.mark.parametrize(
    ("text", "environ", "wanted", "origin"),
    [
        ("", {}, None, None),
        ("", {"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a", "STATE_DIRECTORY"),
        ("", {"STATE_DIRECTORY": "/a", "MEMWATCHD_STATE_DIR": "/b"}, "/b", "MEMWATCHD_STATE_DIR"),
        ('[state]\ndir = "/c"\n', {"STATE_DIRECTORY": "/a"}, "/c", "{file} line 2"),
    ],
)
def test_configured_folder_overrides_that_of_systemd(
    tmp_path: Path, text: str, environ: dict[str, str], wanted: str | None, origin: str | None
) -> None:
    """The settings and MEMWATCHD_STATE_DIR override STATE_DIRECTORY. Without any of them there is no folder."""
    settings = settings_from(tmp_path, text, environ=environ)

    assert settings.state.dir == (None if wanted is None else Path(wanted))
    assert settings.origins.get("state.dir") == (origin and origin.format(file=tmp_path / "memwatchd.toml"))


def test_daemon_starts_with_an_unusable_state_folder(tmp_path: Path) -> None:
    """Nothing is kept across restarts, and the log gives the reason."""
    with running_daemon(tmp_path, f"--state-dir={os.devnull}/x") as daemon:
        assert daemon.get("/healthz").status == 200
        log = daemon.read_log()

    assert "state folder /dev/null/x cannot be used (not a directory): nothing is kept across restarts" in log
