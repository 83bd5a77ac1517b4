"""`memwatch wait --lease`: of two programs that fit only alone one starts, and the lease is that of the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulators import sample_nvml
from simulators.gpu_programs import simulated_cuda
from support.client_process import SCRIPT, memwatch
from support.daemon_process import RunningDaemon, clean_environment, running_daemon
from support.dead_address import dead_address
from support.library_process import run_json
from support.mutable_machine import MutableMachine
from support.paths import TESTS
from support.waiting import MAX_WAIT_SECONDS

GIB, MIB = 1 << 30, 1 << 20
LEASES = "/api/v1/leases"
UNTIL_STDIN_CLOSES = (sys.executable, "-c", "import sys; print('started', flush=True); sys.stdin.read()")
PRINT_LEASE = (
    sys.executable,
    "-c",
    "import os; print(os.environ['MEMWATCH_LEASE'], os.getpid(), flush=True); input()",
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """Run a daemon on a machine with 44.3 GiB available."""
    machine = MutableMachine.of("gb10", tmp_path / "machine")
    with running_daemon(tmp_path, *machine.arguments) as running:
        yield running


@contextmanager
def waiting(
    daemon: RunningDaemon, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run memwatch on the machine of the daemon. Its process id must be in that /proc before it starts."""
    command = ["sh", "-c", 'read -r line && exec "$@"', "sh", *SCRIPT, "--url", daemon.url, "wait", *arguments]
    environ = {**clean_environment(), **(environ or {})}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ) as child:
        procfs = daemon.log.parent / "machine/proc"
        if procfs.exists():
            (procfs / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        press_enter(child)
        try:
            yield child
        finally:
            child.kill()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def press_enter(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def has_device_memory(processes: Any, pid: int) -> bool:
    return any(one["pid"] == pid and one["device_bytes"] for one in processes)


def leases(daemon: RunningDaemon) -> Any:
    return daemon.get(LEASES).json


def end(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = child.communicate(timeout=MAX_WAIT_SECONDS)
    return child.returncode, out, error


def test_one_of_two_waiting_programs_starts(daemon: RunningDaemon) -> None:
    """Each wants 30 of 44.3 GiB. The other starts when the first has ended.

    What the first reserves becomes less meanwhile: the start of the program needs some memory.
    """
    options = ("--free", "30GiB", "--lease", "1m", "--", *UNTIL_STDIN_CLOSES)
    with waiting(daemon, *options) as one, waiting(daemon, *options) as other:
        (granted,) = daemon.wait_for(LEASES, lambda found: found)
        first, second = (one, other) if granted["pid"] == one.pid else (other, one)
        assert first_line(first) == "started\n"
        time.sleep(2.5)
        held_back = [one["id"] for one in leases(daemon)] == [granted["id"]]
        ended = end(first)
        assert first_line(second) == "started\n"
        (following,) = leases(daemon)

    assert held_back
    assert ended[0] == 0
    assert (granted["pid"], following["pid"]) == (first.pid, second.pid)
    assert granted["name"] == os.path.basename(sys.executable)


def test_wait_ends_with_the_lease_in_its_message(daemon: RunningDaemon) -> None:
    """After --timeout, with exit code 1. Waiting without a lease sees the same headroom."""
    with waiting(daemon, "--free", "30GiB", "--lease", "1m", "--", *UNTIL_STDIN_CLOSES) as first:
        assert first_line(first) == "started\n"
        options = ("--free", "30GiB", "--timeout", "1s")
        with waiting(daemon, *options, "--lease", "1m", "--", "true") as second:
            leasing = end(second)
        plain = memwatch("--url", daemon.url, "wait", *options)

    assert leasing[0] == plain.returncode == 1
    why = "30GiB did not become available within 1.0 s: 14.3 GiB available after reclaim, 0 B at once, "
    assert f"memwatch: {why}beside 30.0 GiB leased to others" in leasing[2]
    assert why in plain.stderr


def test_program_has_the_lease_in_its_environment(daemon: RunningDaemon) -> None:
    """It keeps the process id, and its own lease does not count against it."""
    with waiting(daemon, "--free", "30GiB", "--lease", "1m", "--", *PRINT_LEASE) as child:
        lease_id, pid = first_line(child).split()
        (granted,) = leases(daemon)
        fit = [memwatch("--url", daemon.url, "fit", "30GiB", MEMWATCH_LEASE=one) for one in (lease_id, "")]
        wait = memwatch("--url", daemon.url, "wait", "--free", "30GiB", MEMWATCH_LEASE=lease_id)

    assert (granted["id"], granted["pid"]) == (lease_id, int(pid))
    assert [one.returncode for one in fit] == [0, 1]
    assert f"30.0 GiB is leased to {granted['name']} ({pid})" in fit[1].stdout
    assert wait.returncode == 0


def test_library_waits_beside_leases(daemon: RunningDaemon) -> None:
    """wait_for does not count what others have leased; the program's own lease counts as available."""
    code = "import json, memwatch; print(json.dumps(memwatch.wait_for('20GiB', timeout=0.02, interval=0.01)))"
    machine = {
        f"MEMWATCHD_{one.upper()}FS": str(daemon.log.parent / "machine" / one) for one in ("proc", "sys", "root")
    }
    before = run_json(code, daemon.url, **machine)
    with waiting(daemon, "--free", "30GiB", "--lease", "1m", "--", *PRINT_LEASE) as child:
        lease_id, _ = first_line(child).split()
        others = run_json(code, daemon.url, **machine)
        own = run_json(code, daemon.url, **machine, MEMWATCH_LEASE=lease_id)

    assert (before, others, own) == (True, False, True)


def test_exit_code_is_that_of_the_program(daemon: RunningDaemon) -> None:
    with waiting(daemon, "--free", "1GiB", "--lease", "1m", "--", "sh", "-c", "exit 7") as child:
        assert end(child)[0] == 7
    daemon.wait_for(LEASES, lambda found: found == [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_lease(daemon: RunningDaemon, number: signal.Signals) -> None:
    """Ctrl-C reaches the program, and its lease ends with it."""
    with waiting(daemon, "--free", "1GiB", "--lease", "1h", "--", "sleep", "60") as child:
        daemon.wait_for(LEASES, lambda found: found)
        child.send_signal(number)
        code = end(child)[0]
    daemon.wait_for(LEASES, lambda found: found == [])

    assert code in (-number, 130)


def test_program_that_cannot_be_run_leaves_no_lease(daemon: RunningDaemon) -> None:
    with waiting(daemon, "--free", "1GiB", "--lease", "1h", "--", "/no/such/program") as child:
        code, _, error = end(child)

    assert code == 127
    assert "/no/such/program was not found" in error
    texts = [one["text"] for one in daemon.get("/api/v1/events").json if one["kind"] == "lease"]
    assert len(texts) == 2
    assert ": ended by " in texts[0]


def test_lease_without_a_daemon_or_a_program_is_refused() -> None:
    """The machine is not read directly: nothing could reserve its memory."""
    url = f"http://{dead_address()}"
    lonely = memwatch("--url", url, "wait", "--free", "1MiB", "--lease", "1m", "--", "true")
    without = memwatch("--url", url, "wait", "--free", "1MiB", "--lease", "1m")
    long = memwatch("--url", url, "wait", "--free", "1MiB", "--lease", "2h", "--", "true")

    assert (lonely.returncode, without.returncode, long.returncode) == (1, 2, 2)
    assert "cannot reach memwatchd" in lonely.stderr
    assert "--lease needs a COMMAND to reserve memory for; for example memwatch wait" in without.stderr
    assert '--lease is "2h", which is not a duration from 1s to 1h; for example 2m' in long.stderr


@pytest.mark.host
def test_resident_memory_of_a_program_ends_its_lease(tmp_path: Path) -> None:
    """On this machine: the program allocates what it waited for, and some more, in a child."""
    child = "import sys; held = b'x' * (272 << 20); print('held', flush=True); sys.stdin.read()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with (
        running_daemon(
            tmp_path, "--interval", "500ms", config='[processes]\ninterval = "1s"\n', watches_this_machine=True
        ) as daemon,
        waiting(daemon, "--free", "256MiB", "--lease", "1h", "--", sys.executable, "-c", program) as one,
    ):
        (granted,) = daemon.wait_for(LEASES, lambda found: found)
        assert first_line(one) == "held\n"
        daemon.wait_for(LEASES, lambda found: found == [])
        text = next(one["text"] for one in daemon.get("/api/v1/events").json if one["kind"] == "lease")

    assert granted["held_bytes"] == 256 * MIB
    assert text.startswith("lease ended: 256.0 MiB of ram")
    assert text.endswith("arrived")


@pytest.mark.host
def test_gpu_memory_of_a_program_ends_its_lease(tmp_path: Path) -> None:
    """On a simulated RTX 4090: the program holds the GPU first, then leases 4 GiB, then allocates them."""
    ask = (
        "import json, os, sys, urllib.request as web\n"
        "from hardware.cuda import Cuda\n"
        "gpu = Cuda(0)\n"
        "input()\n"
        "body = {'bytes': 4 << 30, 'target': 'gpu0', 'seconds': 600, 'pid': os.getpid()}\n"
        "request = web.Request(sys.argv[1], json.dumps(body).encode(), {'Content-Type': 'application/json'})\n"
        "print(web.urlopen(request).read().decode(), flush=True)\n"
        "input()\n"
        "one = gpu.allocate('device', 4 << 30)\n"
        "print('held', flush=True)\n"
        "input()\n"
    )
    with (
        simulated_cuda(tmp_path, sample_nvml.RTX_4090) as environ,
        running_daemon(tmp_path, environ=environ, watches_this_machine=True) as daemon,
    ):
        daemon.wait_until_ok("nvml")
        command = [sys.executable, "-c", ask, daemon.url + LEASES]
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env={**clean_environment(), **environ, "PYTHONPATH": paths}
        ) as child:
            daemon.wait_for("/api/v1/processes", lambda found: has_device_memory(found, child.pid))
            press_enter(child)
            granted = json.loads(first_line(child))
            before = daemon.get("/api/v1/fit?bytes=8GiB").json["verdicts"][0]
            press_enter(child)
            assert first_line(child) == "held\n"
            daemon.wait_for(LEASES, lambda found: found == [])
            after = daemon.get("/api/v1/fit?bytes=1GiB").json["verdicts"][0]
            child.communicate("\n")

    assert granted["held"] == {"gpu0": 4 * GIB}
    assert (before["leased_bytes"], after["leased_bytes"]) == (4 * GIB, 0)
    # The bytes were counted once before and once after.
    assert before["headroom_after_reclaim_bytes"] == after["headroom_after_reclaim_bytes"]
