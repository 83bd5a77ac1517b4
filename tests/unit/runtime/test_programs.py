"""Programs on PATH: root runs only those that no other user can replace."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from memwatch.core.runtime.programs import Program, find_program, safe_search_path
from support.forked import call_in_child
from support.other_user import CAN_SWITCH, become_other

ROOT, USER = 0, 1000


def program(folder: Path, name: str = "tegrastats") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_relative_and_empty_entries_of_path_never_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name folders below the working directory, which any user may have prepared."""
    program(tmp_path)
    program(tmp_path / "bin")
    monkeypatch.chdir(tmp_path)

    found = [find_program("tegrastats", path, USER) for path in ("", ":", ".:bin", "./bin", "bin::")]

    assert found == [Program(None)] * 5
    assert safe_search_path(":.:bin:/usr/bin", USER) == "/usr/bin"


def test_user_runs_any_program_on_path(tmp_path: Path) -> None:
    file = program(tmp_path)

    assert find_program("tegrastats", f"/nonexistent:{tmp_path}", USER) == Program(str(file))
    assert find_program("other", str(tmp_path), USER) == Program(None)


@pytest.mark.process
def test_folder_on_path_that_may_not_be_entered_is_passed_over(tmp_path: Path) -> None:
    """As with `sudo -u memwatchd`, which keeps the PATH of another user."""
    closed = tmp_path / "closed"
    program(closed)
    closed.chmod(0o000)
    closed.parent.chmod(0o755)
    first = [become_other] if CAN_SWITCH else []
    assert call_in_child(partial(find_program, "tegrastats", f"{closed}:/nonexistent", USER), *first) == Program(
        None
    )


def test_root_rejects_a_program_below_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    """The sticky bit of /tmp does not help: other users may have created the entry."""
    file = program(tmp_path)

    found = find_program("tegrastats", str(tmp_path), ROOT)

    assert found.path is None
    assert found.rejected.startswith(f"found {file}, which root must not run: ")
    assert safe_search_path(f"{tmp_path}:/usr/bin", ROOT) == "/usr/bin"


def test_root_rejects_a_link_to_a_system_program(tmp_path: Path) -> None:
    """The owner of the link can exchange it after the check."""
    (tmp_path / "env").symlink_to("/usr/bin/env")

    assert find_program("env", str(tmp_path), ROOT).path is None


def test_root_runs_the_system_program_behind_a_rejected_one(tmp_path: Path) -> None:
    program(tmp_path, "env")

    found = find_program("env", f"{tmp_path}:/usr/bin", ROOT)

    assert found.path == "/usr/bin/env"
    assert os.access("/usr/bin/env", os.X_OK)
