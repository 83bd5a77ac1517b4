"""Programs forked by the fork server behave as the installed ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support import library_process
from support.client_process import SCRIPT
from support.daemon_process import MEMWATCHD, clean_environment, open_files, quiet_machine, running_daemon
from support.dead_address import dead_address
from support.fork_server import ForkedProcess, can_fork, installed_programs, run_forked
from support.free_ports import free_port
from support.terminal_screen import in_terminal
from support.waiting import MAX_WAIT_SECONDS, wait_until


@pytest.mark.parametrize(
    "command",
    [
        [*SCRIPT, "--version"],
        [*SCRIPT, "fit", "--help"],
        [*SCRIPT, "nonsense"],
        [MEMWATCHD, "--demo", "list"],
        [MEMWATCHD, "--once", "--check-config"],
        [MEMWATCHD, "--config", "/no/such/file", "--check-config"],
    ],
    ids=lambda command: " ".join(command[1:]),
)
def test_forked_command_has_output_and_exit_code_of_the_installed_one(command: list[str]) -> None:
    environ = clean_environment(COLUMNS="100")

    forked = run_forked(command, environ, MAX_WAIT_SECONDS)

    installed = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=MAX_WAIT_SECONDS
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(__name__, sys.argv, sys.path[0] == '')",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a sentence')",
        "raise ValueError('a reason')",
        "import warnings; warnings.warn('an error')",
        "import atexit, memwatch; atexit.register(print, 'at the end'); print(memwatch.memory_info().total_bytes)",
        "from memwatch.library.daemon_client import daemon; print(daemon._url)",
    ],
)
def test_forked_code_has_output_and_exit_code_of_python(code: str) -> None:
    """The library reads the environment of the program, not that of the server."""
    url = f"http://{dead_address()}"
    found = []
    for is_installed in (False, True):
        with installed_programs(is_installed):
            found.append(library_process.run_program(code, url, **library_process.roots_environment("gb10")))
    forked, installed = found

    assert (forked.returncode, forked.stdout, forked.stderr) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--url", "http://127.0.0.1:1", "status"]], ids=" ".join)
def test_forked_command_writes_to_a_terminal_what_the_installed_one_does(arguments: list[str]) -> None:
    """Its lines have the width of the terminal, and both outputs in order."""
    written = []
    for is_installed in (False, True):
        with (
            installed_programs(is_installed),
            in_terminal([*SCRIPT, *arguments], 60, 50, clean_environment(TERM="xterm")) as program,
        ):
            assert isinstance(program.process, ForkedProcess) is not is_installed
            written.append((program.end(), program.written))

    assert written[0] == written[1]


def opened(pid: int) -> list[str]:
    """Return the descriptors of a daemon without the files of the machine, which it opens and closes."""
    return sorted(
        re.sub(r"\[\d+\]", "", name) for name in open_files(pid) if not name.startswith(("/proc", "/sys"))
    )


def surroundings(folder: Path, installed: bool) -> tuple[object, ...]:
    """Return what a daemon inherits: descriptors, session, folder and name."""
    folder.mkdir()
    with running_daemon(folder, installed=installed) as daemon:
        assert isinstance(daemon.process, ForkedProcess) is not installed
        # One listens, two wake the event loop; that of the last request closes.
        wait_until(lambda: opened(daemon.pid).count("socket:") == 3, describe=lambda: opened(daemon.pid))
        return (
            [name.replace(str(folder), "") for name in opened(daemon.pid)],
            os.getsid(daemon.pid) == daemon.pid,
            Path(f"/proc/{daemon.pid}/cwd").readlink(),
            Path(f"/proc/{daemon.pid}/comm").read_text(),
        )


def test_forked_daemon_inherits_what_an_installed_one_does(tmp_path: Path) -> None:
    """Nothing of the server, and nothing of daemons that it has started before."""
    with running_daemon(tmp_path):
        forked = surroundings(tmp_path / "a", installed=False)
        installed = surroundings(tmp_path / "b", installed=True)

    assert forked == installed


def test_signal_that_ended_a_forked_daemon_is_its_exit_code(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert daemon.process.poll() is None
        daemon.process.kill()

        assert daemon.process.wait(MAX_WAIT_SECONDS) == -9
        assert daemon.process.poll() == -9
        assert daemon.process.returncode == -9


def test_timeout_of_a_forked_daemon_is_reported(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.01)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONWARNINGS", "MALLOC_ARENA_MAX"])
def test_variable_read_at_the_start_needs_the_installed_program(name: str) -> None:
    assert not can_fork({**os.environ, name: "1"})


def test_tests_that_measure_use_installed_programs() -> None:
    with installed_programs(True):
        assert not can_fork(os.environ)


KILLED = """
import os, sys, tempfile, time
from support.fork_server import fork_server
kept = open(os.devnull, "wb")
process = fork_server().start(sys.argv[1:], dict(os.environ), kept.fileno(), kept.fileno())
print(process.pid, flush=True)
time.sleep(600)
"""


def listening_ports(pid: int) -> list[int]:
    return [one.laddr.port for one in psutil.Process(pid).net_connections() if one.status == psutil.CONN_LISTEN]


def test_program_ends_with_a_test_process_that_is_killed() -> None:
    """Or a run that was interrupted would leave a hundred daemons."""
    environ = clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    port = free_port()
    command = [MEMWATCHD, "--listen", f"127.0.0.1:{port}", *quiet_machine()]
    with subprocess.Popen([sys.executable, "-c", KILLED, *command], stdout=subprocess.PIPE, env=environ) as test:
        assert test.stdout is not None
        pid = int(test.stdout.readline())
        wait_until(lambda: port in listening_ports(pid))
        test.kill()

    wait_until(lambda: not psutil.pid_exists(pid))
