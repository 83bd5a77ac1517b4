"""`memwatchd install-service`: from a program installed by pip or pipx to a service of systemd, and back."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from msgspec import Struct

EXIT_OK, EXIT_FAILURE = 0, 1

ABOUT = """Makes memwatchd a service of systemd that starts at boot, for a program that was installed by pip or
pipx. It says what it does before it does it. Doing it again changes nothing; after an upgrade it brings the unit up
to date. The Debian package needs none of this.

With --uninstall the service goes away again; the configuration and what was recorded stay."""

UNITS = Path("etc/systemd/system")
NAMES = {"memwatchd.service": UNITS, "memwatchd.slice": UNITS}
CONFIGURATION = Path("etc/memwatchd/memwatchd.toml")
USERS = Path("etc/sysusers.d/memwatchd.conf")
# Homes are hidden from the service (ProtectHome=), and mostly closed to its user anyway.
HIDDEN = ("/home", "/root", "/run/user")

Run = Callable[[Sequence[str]], int]


class InstallError(Exception):
    """Why not, and what would work."""


class WriteFile(Struct, frozen=True):
    """A file that shall hold this; `keep` where one that is there already is somebody's own."""

    path: Path
    content: str
    keep: bool = False

    def __str__(self) -> str:
        return f"write {self.path}"

    @property
    def is_done(self) -> bool:
        if not self.path.exists():
            return False
        return self.keep or self.path.read_text() == self.content

    def do(self, _run: Run) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.content)
        return 0


class RemoveFile(Struct, frozen=True):
    """A file that shall be gone."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"

    @property
    def is_done(self) -> bool:
        return not self.path.exists()

    def do(self, _run: Run) -> int:
        self.path.unlink()
        return 0


class RunCommand(Struct, frozen=True):
    """A command, where there is something to do for it."""

    command: tuple[str, ...]
    is_done: bool = False

    def __str__(self) -> str:
        return f"run {shlex.join(self.command)}"

    def do(self, run: Run) -> int:
        return run(self.command)


Step = WriteFile | RemoveFile | RunCommand


def unit_files() -> Path:
    """Where the unit files are: in the package as installed, in the checkout beside it."""
    here = Path(__file__).parent
    inside = here / "unit"
    return inside if inside.is_dir() else here.parents[1] / "systemd"


def unit_for(text: str, program: str) -> str:
    """The unit with this program in place of Debian's."""
    quoted = program.replace("%", "%%")
    if re.search(r"[\s\"'\\$;]", program):
        raise InstallError(f"{program!r} cannot stand in a unit file; install it below a path without blanks")
    return re.sub(r"^ExecStart=\S+", lambda _: f"ExecStart={quoted}", text, flags=re.MULTILINE)


def refuse_hidden(program: Path) -> None:
    """The service's user must reach the program and its interpreter."""
    for path in (program.absolute(), program.resolve(), Path(sys.executable).resolve()):
        if path.is_relative_to("/home") or any(path.is_relative_to(folder) for folder in HIDDEN):
            raise InstallError(
                f"{path} is in a home, which no service can see: install it with "
                "`sudo pipx install --global memwatchd` or below /opt"
            )
        for folder in path.parents:
            if not folder.stat().st_mode & 0o001:
                raise InstallError(f"other users may not enter {folder}, where {path.name} is: chmod o+x {folder}")


def install_steps(root: Path, units: Path, program: str) -> Iterator[Step]:
    """What to do, in this order. `root` is / but for tests."""
    yield WriteFile(root / USERS, (units / "memwatchd.sysusers").read_text())
    yield RunCommand(("systemd-sysusers", str(root / USERS)), is_done=has_user(root))
    changed = False
    for name, folder in NAMES.items():
        step = WriteFile(root / folder / name, unit_for((units / name).read_text(), program))
        changed = changed or not step.is_done
        yield step
    yield WriteFile(root / CONFIGURATION, (units / "memwatchd.toml").read_text(), keep=True)
    yield RunCommand(("systemctl", "daemon-reload"), is_done=not changed)
    yield RunCommand(("systemctl", "enable", "memwatchd.service"), is_done=is_enabled(root))
    yield RunCommand(("systemctl", "restart", "memwatchd.service"), is_done=not changed)


def uninstall_steps(root: Path) -> Iterator[Step]:
    """What to do; the user stays, since files may be his."""
    there = (root / UNITS / "memwatchd.service").exists()
    yield RunCommand(("systemctl", "disable", "--now", "memwatchd.service"), is_done=not there)
    for name, folder in NAMES.items():
        yield RemoveFile(root / folder / name)
    yield RemoveFile(root / USERS)
    yield RunCommand(("systemctl", "daemon-reload"), is_done=not there)


def has_user(root: Path) -> bool:
    passwd = root / "etc/passwd"
    return passwd.exists() and any(line.startswith("memwatchd:") for line in passwd.read_text().splitlines())


def is_enabled(root: Path) -> bool:
    return os.path.lexists(root / UNITS / "multi-user.target.wants" / "memwatchd.service")


def run_steps(steps: Sequence[Step], run: Run, say: Callable[[str], None], dry: bool) -> int:
    """Do what is not done yet, saying so; stop at the first failure."""
    waiting = [step for step in steps if not step.is_done]
    for step in waiting:
        say(str(step))
        code = 0 if dry else step.do(run)
        if code:
            raise InstallError(f"`{step}` failed with exit code {code}; what was done before it stays done")
    if not waiting:
        say("nothing to do")
    return EXIT_OK


def run_command(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode  # noqa: S603  ours, without a shell


@click.command("install-service", help=ABOUT)
@click.option("--uninstall", is_flag=True, help="Take the service away again.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def install_service(uninstall: bool, dry_run: bool) -> int:
    root, program = Path("/"), Path(sys.argv[0])
    if uninstall:
        steps = list(uninstall_steps(root))
    else:
        refuse_packaged(root)
        refuse_hidden(program)
        steps = list(install_steps(root, unit_files(), str(program.absolute())))
    if not dry_run and os.geteuid() != 0:
        run_steps(steps, run_command, click.echo, dry=True)
        raise InstallError("this needs root: sudo memwatchd install-service")
    if not dry_run and not Path("/run/systemd/system").is_dir():
        raise InstallError("systemd does not run here; start memwatchd by whatever does, or use --dry-run")
    return run_steps(steps, run_command, click.echo, dry_run)


def refuse_packaged(root: Path) -> None:
    for folder in ("usr/lib/systemd/system", "lib/systemd/system"):
        if (root / folder / "memwatchd.service").exists():
            raise InstallError(
                "a package has installed memwatchd.service already: systemctl enable --now memwatchd"
            )


def main(arguments: Sequence[str]) -> int:
    """Raises click's exceptions as the other commands do."""
    try:
        code: int = install_service.main(
            list(arguments), prog_name="memwatchd install-service", standalone_mode=False
        )
    except InstallError as error:
        print(f"memwatchd: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return code
