"""The service is installed once, brought up to date by doing it again, and taken away without a trace of it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from memwatchd.install import (
    InstallError,
    install_steps,
    refuse_hidden,
    run_steps,
    uninstall_steps,
    unit_files,
    unit_for,
)
from support.daemon_process import MEMWATCHD, clean_environment

PROGRAM = "/opt/pipx/venvs/memwatchd/bin/memwatchd"


class System:
    """Stands in for systemd: notes what is run, and links the unit when told to enable it."""

    def __init__(self, root: Path, code: int = 0) -> None:
        self.root = root
        self.code = code
        self.commands: list[str] = []
        self.said: list[str] = []

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
        run_steps(list(install_steps(self.root, unit_files(), program)), self.run, self.said.append, dry)

    def uninstall(self) -> None:
        run_steps(list(uninstall_steps(self.root)), self.run, self.said.append, dry=False)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()} - {
            "etc/passwd"
        }


def test_it_is_installed_and_says_what_it_does(tmp_path: Path) -> None:
    """Files, user, enabling and start, each announced before it is done."""
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
    assert f"write {tmp_path}/etc/systemd/system/memwatchd.service" in system.said


def test_doing_it_again_does_nothing(tmp_path: Path) -> None:
    """No file is touched, no command run, and a configuration of one's own is kept."""
    system = System(tmp_path)
    system.install()
    (tmp_path / "etc/memwatchd/memwatchd.toml").write_text("# mine\n")
    system.commands.clear()
    system.said.clear()

    system.install()

    assert (system.commands, system.said) == ([], ["nothing to do"])
    assert (tmp_path / "etc/memwatchd/memwatchd.toml").read_text() == "# mine\n"


def test_after_a_move_the_unit_is_brought_up_to_date(tmp_path: Path) -> None:
    """The new program is started; what is enabled is not enabled again."""
    system = System(tmp_path)
    system.install()
    system.commands.clear()

    system.install("/opt/other/bin/memwatchd")

    assert system.commands == ["systemctl daemon-reload", "systemctl restart memwatchd.service"]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """It says the same and leaves no file."""
    system = System(tmp_path)

    system.install(dry=True)

    assert system.files() == set()
    assert system.commands == []
    assert any(line.startswith("run systemctl enable") for line in system.said)


def test_it_goes_away_again_and_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    """Only the configuration stays; a second time there is nothing to do."""
    system = System(tmp_path)
    system.install()

    system.uninstall()
    system.said.clear()
    system.uninstall()

    assert system.files() == {"etc/memwatchd/memwatchd.toml"}
    assert system.said == ["nothing to do"]


def test_a_failing_command_is_named_and_the_end(tmp_path: Path) -> None:
    """Nothing is enabled where the user could not be made."""
    system = System(tmp_path, code=3)

    with pytest.raises(InstallError, match=r"systemd-sysusers .* failed with exit code 3"):
        system.install()

    assert len(system.commands) == 1


@pytest.mark.parametrize("path", ["/home/ada/.local/bin/memwatchd", "/root/venv/bin/memwatchd"])
def test_a_program_in_a_home_is_refused_with_what_would_work(path: str) -> None:
    """A service cannot see homes; pipx has a place for everybody."""
    with pytest.raises(InstallError, match="pipx install --global"):
        refuse_hidden(Path(path))


def test_a_program_that_others_cannot_reach_is_refused(tmp_path: Path) -> None:
    """The folder in the way is named."""
    (tmp_path / "closed").mkdir(mode=0o700)
    tmp_path.chmod(0o755)

    with pytest.raises(InstallError, match=r"other users may not enter|is in a home"):
        refuse_hidden(tmp_path / "closed" / "memwatchd")


@pytest.mark.parametrize("program", ["/opt/my venv/memwatchd", "/opt/$x/memwatchd", '/opt/"x/memwatchd'])
def test_a_path_that_a_unit_would_read_otherwise_is_refused(program: str) -> None:
    """Blanks, quotes and dollars mean something in ExecStart."""
    with pytest.raises(InstallError, match="without blanks"):
        unit_for("ExecStart=/usr/bin/memwatchd --x\n", program)


def test_a_percent_sign_stays_one() -> None:
    """It begins a specifier unless doubled."""
    assert (
        unit_for("ExecStart=/usr/bin/memwatchd --x\n", "/opt/50%/memwatchd")
        == "ExecStart=/opt/50%%/memwatchd --x\n"
    )


def test_the_command_exists_and_explains_itself() -> None:
    """Its help says what stays, and a mistake is one sentence."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [MEMWATCHD, "install-service", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)

    assert "--uninstall" in run("--help").stdout
    assert run("--uninstall", "--dry-run").stdout == "nothing to do\n"
    wrong = run("--nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
