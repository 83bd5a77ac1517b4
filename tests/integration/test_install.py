"""install-service: first installation, update and removal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from memwatchd.install import (
    InstallError,
    install_steps,
    refuse_hidden,
    run_command,
    run_steps,
    uninstall_steps,
    unit_files,
    unit_for,
)
from support.daemon_process import MEMWATCHD, clean_environment

PROGRAM = "/opt/pipx/venvs/memwatchd/bin/memwatchd"


class System:
    """Stand-in for systemd that records commands and links the unit on enable."""

    def __init__(self, root: Path, code: int = 0) -> None:
        self.root = root
        self.code = code
        self.commands: list[str] = []
        self.printed: list[str] = []

    def run(self, command: Sequence[str]) -> int:
        self.commands.append(" ".join(command))
        if command[0] == "systemd-sysusers" and not self.code:
            (self.root / "etc/passwd").write_text("memwatchd:x:999:999::/var/lib/memwatchd:/usr/sbin/nologin\n")
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        if command[1] == "enable":
            wants.mkdir(parents=True, exist_ok=True)
            (wants / "memwatchd.service").symlink_to("../memwatchd.service")
        if command[1] == "disable":
            (wants / "memwatchd.service").unlink(missing_ok=True)
        return self.code

    def install(self, program: str = PROGRAM, dry: bool = False) -> None:
        run_steps(list(install_steps(self.root, unit_files(), program)), self.run, self.printed.append, dry)

    def uninstall(self) -> None:
        run_steps(list(uninstall_steps(self.root)), self.run, self.printed.append, dry=False)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()} - {
            "etc/passwd"
        }


def test_install_announces_and_runs_every_step(tmp_path: Path) -> None:
    """Files, user, enable and start, each announced before it is done."""
    system = System(tmp_path)

    system.install()

    assert system.files() == {
        "etc/sysusers.d/memwatchd.conf",
        "etc/systemd/system/memwatchd.service",
        "etc/systemd/system/multi-user.target.wants/memwatchd.service",
        "etc/systemd/system/memwatchd.slice",
        "etc/memwatchd/memwatchd.toml",
    }
    unit = (tmp_path / "etc/systemd/system/memwatchd.service").read_text()
    assert f"ExecStart={PROGRAM}\n" in unit
    assert system.commands[1:] == [
        "systemctl daemon-reload",
        "systemctl enable memwatchd.service",
        "systemctl restart memwatchd.service",
    ]
    assert f"write {tmp_path}/etc/systemd/system/memwatchd.service" in system.printed


def test_second_install_does_nothing(tmp_path: Path) -> None:
    """No file is written, no command is run, and a changed configuration is kept."""
    system = System(tmp_path)
    system.install()
    (tmp_path / "etc/memwatchd/memwatchd.toml").write_text("# mine\n")
    system.commands.clear()
    system.printed.clear()

    system.install()

    assert (system.commands, system.printed) == ([], ["nothing to do"])
    assert (tmp_path / "etc/memwatchd/memwatchd.toml").read_text() == "# mine\n"


def test_moved_program_updates_the_unit(tmp_path: Path) -> None:
    """The new program is started. The enabled unit is not enabled again."""
    system = System(tmp_path)
    system.install()
    system.commands.clear()

    system.install("/opt/other/bin/memwatchd")

    assert system.commands == ["systemctl daemon-reload", "systemctl restart memwatchd.service"]


def test_dry_run_changes_nothing(tmp_path: Path) -> None:
    """It prints the same steps."""
    system = System(tmp_path)

    system.install(dry=True)

    assert system.files() == set()
    assert system.commands == []
    assert any(line.startswith("run systemctl enable") for line in system.printed)


def test_uninstall_keeps_only_the_configuration(tmp_path: Path) -> None:
    """A second uninstall has nothing to do."""
    system = System(tmp_path)
    system.install()

    system.uninstall()
    system.printed.clear()
    system.uninstall()

    assert system.files() == {"etc/memwatchd/memwatchd.toml"}
    assert system.printed == ["nothing to do"]


def test_failing_command_is_named_and_stops_the_install(tmp_path: Path) -> None:
    """Nothing is enabled if the user could not be created."""
    system = System(tmp_path, code=3)

    with pytest.raises(InstallError, match=r"systemd-sysusers .* failed with exit code 3"):
        system.install()

    assert len(system.commands) == 1


@pytest.mark.parametrize("path", ["/home/ada/.local/bin/memwatchd", "/root/venv/bin/memwatchd"])
def test_program_in_a_home_is_rejected_with_a_remedy(path: str) -> None:
    """The service has no access to homes. pipx can install for all users."""
    with pytest.raises(InstallError, match="pipx install --global"):
        refuse_hidden(Path(path))


def test_program_in_a_closed_folder_is_rejected(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "closed").mkdir(mode=0o700)
    tmp_path.chmod(0o755)

    with pytest.raises(InstallError, match=r"other users cannot enter|is in a home directory"):
        refuse_hidden(tmp_path / "closed" / "memwatchd")


@pytest.mark.parametrize("program", ["/opt/my venv/memwatchd", "/opt/$x/memwatchd", '/opt/"x/memwatchd'])
def test_path_with_special_characters_is_rejected(program: str) -> None:
    """Blanks, quotes and dollars have a meaning in ExecStart."""
    with pytest.raises(InstallError, match="without spaces"):
        unit_for("ExecStart=/usr/bin/memwatchd --x\n", program)


def test_percent_sign_is_doubled_in_the_unit() -> None:
    """A single one starts a specifier."""
    assert (
        unit_for("ExecStart=/usr/bin/memwatchd --x\n", "/opt/50%/memwatchd")
        == "ExecStart=/opt/50%%/memwatchd --x\n"
    )


def test_install_service_has_help_and_rejects_unknown_options() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [MEMWATCHD, "install-service", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)

    assert "--uninstall" in run("--help").stdout
    assert run("--uninstall", "--dry-run").stdout == "nothing to do\n"
    wrong = run("--nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_command_that_another_user_could_replace_is_not_run_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A systemctl in a folder on PATH that is not root's alone, and in the working directory."""
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    as_root = os.geteuid() == 0

    monkeypatch.setenv("PATH", "")
    with pytest.raises(InstallError, match=r"cannot run systemctl: it is not on PATH; use the system's PATH"):
        run_command(("systemctl", "daemon-reload"))
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        outcome = str(run_command(("systemctl", "daemon-reload")))
    except InstallError as error:
        outcome = str(error)

    assert (tmp_path / "ran").exists() is not as_root
    assert (f"found {program}, which root must not run: " if as_root else "3") in outcome
