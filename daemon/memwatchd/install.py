"""`memwatchd install-service`: install or remove a systemd service for a program from pip or pipx."""

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

from memwatch.runtime.programs import find_program

EXIT_OK, EXIT_FAILURE = 0, 1

ABOUT = """Installs memwatchd as a systemd service that starts at boot. For programs installed with pip or pipx; the
Debian package does not need it. Each step is printed before it runs. A second run changes nothing. A run after an
upgrade updates the unit.

--uninstall removes the service and keeps the configuration and recorded data."""

UNITS = Path("etc/systemd/system")
NAMES = {"memwatchd.service": UNITS, "memwatchd.slice": UNITS}
CONFIGURATION = Path("etc/memwatchd/memwatchd.toml")
USERS = Path("etc/sysusers.d/memwatchd.conf")
# ProtectHome= hides home directories from the service. Most are closed to its user anyway.
HIDDEN = ("/home", "/root", "/run/user")

Run = Callable[[Sequence[str]], int]


class InstallError(Exception):
    """The service cannot be installed. The message includes a remedy."""


class WriteFile(Struct, frozen=True):
    """Step that writes a file. With `keep`, an existing file is left unchanged."""

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
    """Step that removes a file."""

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
    """Step that runs a command, unless `is_done`."""

    command: tuple[str, ...]
    is_done: bool = False

    def __str__(self) -> str:
        return f"run {shlex.join(self.command)}"

    def do(self, run: Run) -> int:
        return run(self.command)


class CompileTemplates(Struct, frozen=True):
    """Step that compiles the templates of the pages, as pip does with modules. The service may not write there."""

    def __str__(self) -> str:
        return "compile the templates of the pages"

    @property
    def is_done(self) -> bool:
        from memwatch_web.pages.template_environment import are_compiled

        return sys.dont_write_bytecode or are_compiled()

    def do(self, _run: Run) -> int:
        from memwatch_web.pages.template_environment import compile_templates

        compile_templates()
        return 0


Step = WriteFile | RemoveFile | RunCommand | CompileTemplates


def unit_files() -> Path:
    """Return the folder of the unit files: inside the installed package, or `systemd/` of a checkout."""
    here = Path(__file__).parent
    inside = here / "unit"
    return inside if inside.is_dir() else here.parents[1] / "systemd"


def unit_for(text: str, program: str) -> str:
    """Return the unit text with `program` in ExecStart=. Raise InstallError if systemd cannot parse its path."""
    quoted = program.replace("%", "%%")
    if re.search(r"[\s\"'\\$;]", program):
        raise InstallError(
            f"{program!r} is not usable in a unit file; install it in a path without spaces or quotes"
        )
    return re.sub(r"^ExecStart=\S+", lambda _: f"ExecStart={quoted}", text, flags=re.MULTILINE)


def refuse_hidden(program: Path) -> None:
    """Raise InstallError if the service's user cannot reach the program or its interpreter."""
    for path in (program.absolute(), program.resolve(), Path(sys.executable).resolve()):
        if path.is_relative_to("/home") or any(path.is_relative_to(folder) for folder in HIDDEN):
            raise InstallError(
                f"{path} is in a home directory, which the service cannot access: install it with "
                "`sudo pipx install --global memwatchd` or below /opt"
            )
        for folder in path.parents:
            if not folder.stat().st_mode & 0o001:
                raise InstallError(
                    f"other users cannot enter {folder}, which contains {path.name}: chmod o+x {folder}"
                )


def install_steps(root: Path, units: Path, program: str) -> Iterator[Step]:
    """Yield the steps of an installation in order. `root` is / except in tests."""
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
    """Yield the steps of a removal. The system user stays: files may belong to it."""
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
    """Print and run each pending step. Raise InstallError at the first failure."""
    waiting = [step for step in steps if not step.is_done]
    for step in waiting:
        say(str(step))
        code = 0 if dry else step.do(run)
        if code:
            raise InstallError(f"`{step}` failed with exit code {code}; earlier steps are not undone")
    if not waiting:
        say("nothing to do")
    return EXIT_OK


def run_command(command: Sequence[str]) -> int:
    """Run a program that is found on PATH. Raise InstallError if root must not run it."""
    found = find_program(command[0])
    if found.path is None:
        raise InstallError(
            f"cannot run {command[0]}: {found.rejected or 'it is not on PATH'}; use the system's PATH: sudo -i"
        )
    return subprocess.run([found.path, *command[1:]], check=False, cwd="/").returncode  # noqa: S603


@click.command("install-service", help=ABOUT)
@click.option("--uninstall", is_flag=True, help="Remove the service.")
@click.option("--dry-run", is_flag=True, help="Print the steps without running them.")
def install_service(uninstall: bool, dry_run: bool) -> int:
    root, program = Path("/"), Path(sys.argv[0])
    if uninstall:
        steps = list(uninstall_steps(root))
    else:
        refuse_packaged(root)
        refuse_hidden(program)
        steps = [CompileTemplates(), *install_steps(root, unit_files(), str(program.absolute()))]
    if not dry_run and os.geteuid() != 0:
        run_steps(steps, run_command, click.echo, dry=True)
        raise InstallError("this needs root: sudo memwatchd install-service")
    if not dry_run and not Path("/run/systemd/system").is_dir():
        raise InstallError(
            "systemd is not running here; start memwatchd with the init system in use, or use --dry-run"
        )
    return run_steps(steps, run_command, click.echo, dry_run)


def refuse_packaged(root: Path) -> None:
    for folder in ("usr/lib/systemd/system", "lib/systemd/system"):
        if (root / folder / "memwatchd.service").exists():
            raise InstallError("a package already installed memwatchd.service: systemctl enable --now memwatchd")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code. click's exceptions pass through to the caller."""
    try:
        code: int = install_service.main(
            list(arguments), prog_name="memwatchd install-service", standalone_mode=False
        )
    except InstallError as error:
        print(f"memwatchd: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return code
