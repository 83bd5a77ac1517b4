"""Test that programs run within small limits of their process, or end with a sentence that names the limit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.client_process import SCRIPT
from support.daemon_process import MEMWATCHD, QUIET_MACHINE, ROOTS, clean_environment, running_daemon
from support.dead_address import dead_address
from support.libc_faults import built_library
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("cc",)
FEW_THREADS = ROOT / "tests/support/few_threads.c"
SERVE = [MEMWATCHD, "--listen", "127.0.0.1:0"]
ONCE = [MEMWATCHD, "--once"]
STATUS = [*SCRIPT, "status"]


def limited(*limits: str) -> list[str]:
    """Return a command that replaces itself by the one given to it, under these options of ulimit."""
    return ["sh", "-c", f'{" && ".join(f"ulimit {one}" for one in limits)} && exec "$@"', "sh"]


def run(command: Sequence[str | Path], **environ: str) -> subprocess.CompletedProcess[str]:
    quiet = {f"MEMWATCHD_{name.upper()}": str(QUIET_MACHINE / folder) for name, folder in ROOTS.items()}
    environment = clean_environment(MEMWATCH_URL=f"http://{dead_address()}", **quiet, **environ)
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=MAX_WAIT_SECONDS, check=False
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command that failed without a traceback."""
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("limit", ["-v 204800", "-n 64", "-s unlimited"])
def test_daemon_serves_everything_within_small_limits(tmp_path: Path, limit: str) -> None:
    """200 MiB of address space hold its threads, the pages and the API. Stacks do not grow with `ulimit -s`."""
    state = f"--state-dir={tmp_path / 'state'}"
    with running_daemon(tmp_path, state, through=limited(limit)) as daemon:
        statuses = [daemon.get(path).status for path in ("/", "/history", "/metrics", "/api/v1/snapshot", "/docs")]
        log = daemon.read_log()
        assert daemon.terminate() == 0

    assert statuses == [200] * 5
    assert "Traceback" not in log


def test_daemon_takes_no_huge_pages(tmp_path: Path) -> None:
    """With `enabled` = always each of its stacks would take 2 MiB."""
    with running_daemon(tmp_path) as daemon:
        status = Path(f"/proc/{daemon.pid}/status").read_text("ascii")

    assert "THP_enabled:\t0\n" in status


@pytest.mark.parametrize("limit", ["-v 204800", "-n 16"])
@pytest.mark.parametrize("command", [ONCE, STATUS], ids=["once", "status"])
def test_commands_work_within_small_limits(command: list[str], limit: str) -> None:
    done = run([*limited(limit), *command])

    assert (done.returncode, "System RAM" in done.stdout) == (0, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("-n 16", "memwatchd: too many open files: 16 are allowed; allow at least 64 (ulimit -n, LimitNOFILE=)"),
        ("-v 61440", "the address space is limited to 60 MiB (ulimit -v); allow at least 200 MiB"),
        ("-v 49152", "the address space is limited to 48 MiB (ulimit -v); allow at least 200 MiB"),
    ],
)
def test_daemon_without_room_to_start_names_the_limit(limit: str, sentence: str) -> None:
    assert last_line(run([*limited(limit), *SERVE])).endswith(sentence)


def test_command_without_room_names_the_limit() -> None:
    done = run([*limited("-v 40960"), *STATUS])

    assert last_line(done).endswith("the address space is limited to 40 MiB (ulimit -v); allow at least 200 MiB")


@pytest.mark.parametrize("threads", ["0", "3"])
@pytest.mark.parametrize("command", [SERVE, ONCE, STATUS], ids=["serve", "once", "status"])
def test_lack_of_threads_is_named(command: list[str], threads: str) -> None:
    """As with `ulimit -u`, which does not apply to root. The sentence is written although no thread logs."""
    library = built_library(FEW_THREADS)

    done = run(command, LD_PRELOAD=str(library), FEW_THREADS=threads)

    remedy = "raise the limit of processes (ulimit -u, TasksMax=, pids.max), or free memory"
    assert last_line(done).endswith(f": no further thread or process can be started: {remedy}")
