"""Checks of the settings by root, which have the rights of the service.

Where the tests do not run as root, a check has the rights of their user, and nothing changes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatchd.service_eyes import is_of_service
from support.daemon_process import MEMWATCHD, run_program
from support.other_user import OTHER_UID

AS_ROOT = os.geteuid() == 0
TOKEN = "sixteen-letters-or-more"
SYSTEMCTL = """#!/bin/sh
test "$1" = cat || exit 1
printf '%s\\n' '# memwatchd.service' '[Service]' User=memwatchd LoadCredential=gone:/gone
printf '%s\\n' '# drop-in' '[Service]' User=daemon LoadCredential= {credentials}
"""
# Decrypts what is only marked, and checks the name, which is part of an encrypted credential.
SYSTEMD_CREDS = """#!/bin/sh
test "$1 $2 $4" = "decrypt --name=token -" || exit 1
sed -n 's/^encrypted //p' "$3"
"""


def check(folder: Path, token: str, credentials: str = "") -> subprocess.CompletedProcess[str]:
    """Check a token as root would, on a machine whose unit runs as daemon and loads these credentials."""
    program = folder / "systemctl"
    lines = " ".join(f"{'' if '=' in one else 'LoadCredential='}{one}" for one in credentials.split())
    program.write_text(SYSTEMCTL.format(credentials=lines))
    program.chmod(0o755)
    (folder / "systemd-creds").write_text(SYSTEMD_CREDS)
    (folder / "systemd-creds").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return run_program(MEMWATCHD, "--check-config", PATH=path, MEMWATCHD_WEB_AUTH_BEARER_TOKEN=token)


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder that only root can change, as root runs no program from another one."""
    with tempfile.TemporaryDirectory(dir="/var/lib" if AS_ROOT else None) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


def test_file_that_only_root_reads_is_refused(programs: Path, secret: Path) -> None:
    checked = check(programs, f"file:{secret}")

    assert ("memwatchd: checked as the user daemon of the service" in checked.stderr) is AS_ROOT
    assert ("(Permission denied); let the user of memwatchd read it" in checked.stderr) is AS_ROOT
    assert checked.returncode == (78 if AS_ROOT else 0)


def test_credential_of_the_unit_is_read_by_root_for_the_service(programs: Path, secret: Path) -> None:
    checked = check(programs, "credential:token", f"other:/nowhere token:{secret}")

    assert checked.returncode == (0 if AS_ROOT else 78)
    assert TOKEN not in checked.stdout + checked.stderr


@pytest.mark.parametrize(("text", "is_readable"), [(f"encrypted {TOKEN}", True), ("of another machine", False)])
def test_encrypted_credential_is_decrypted_as_for_the_service(
    programs: Path, secret: Path, text: str, is_readable: bool
) -> None:
    secret.write_text(text)
    checked = check(programs, "credential:token", f"LoadCredentialEncrypted=token:{secret}")

    assert checked.returncode == (0 if AS_ROOT and is_readable else 78)
    assert TOKEN not in checked.stdout + checked.stderr


def test_credential_that_the_unit_does_not_load_is_missing(programs: Path) -> None:
    assert check(programs, "credential:token").returncode == 78


def test_systemctl_of_another_user_is_not_run(tmp_path: Path) -> None:
    """Its folder is first on the PATH of root."""
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    if AS_ROOT:
        os.chown(tmp_path, OTHER_UID, -1)
    run_program(MEMWATCHD, "--check-config", PATH=f"{tmp_path}:{os.environ['PATH']}")

    assert not (tmp_path / "ran").exists()


def test_fifo_as_a_credential_is_missing(programs: Path, tmp_path: Path) -> None:
    """Root would wait for its writer."""
    os.mkfifo(tmp_path / "fifo")
    checked = check(programs, "credential:token", f"token:{tmp_path}/fifo")

    assert checked.returncode == 78


def test_draft_is_checked_with_the_rights_of_its_owner(tmp_path: Path) -> None:
    draft = tmp_path / "draft.toml"
    draft.touch(0o600)
    path = f"{tmp_path}:{os.environ['PATH']}"
    checked = run_program(MEMWATCHD, "--config", str(draft), "--check-config", PATH=path)

    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("file", "of_service"),
    [
        (None, True),
        ("/etc/memwatchd/memwatchd.toml", True),
        ("/etc/memwatchd/new/a.toml", True),
        ("/etc/memwatchd/../a.toml", False),
        ("/etc/memwatchd-2/a.toml", False),
        ("memwatchd.toml", False),
    ],
)
def test_files_of_the_service(file: str | None, of_service: bool) -> None:
    assert is_of_service(file) is of_service
