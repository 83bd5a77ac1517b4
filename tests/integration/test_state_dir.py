"""State folder: creation, locking, and startup without one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memwatchd.state_dir import open_state
from support.daemon_process import running_daemon
from support.settings_sample import settings_from


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
        log = daemon.log.read_text()

    assert "state folder /dev/null/x cannot be used (not a directory): nothing is kept across restarts" in log
