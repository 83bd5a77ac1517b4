"""The tegrastats collector: crashes, hangs and invalid output of the program, and leftover processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.collectors.tegra import PAUSE_FIRST_SECONDS, TegrastatsCollector, find_tegrastats
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.line_program import LineBuffer
from memwatch.core.model import Absent
from simulators.tegra_machine import Tegrastats, is_alive, wait_until_gone
from support.machine_folders import machine_folder
from support.waiting import MAX_WAIT_SECONDS, wait_until

NANO = "jetson-nano-jp4"
BLOCKS = 174
ROOTS = machine_folder(NANO).roots
INTERVAL = 0.1
# The kernel's pipes hold 64 KiB.
HALF_A_PIPE = 1 << 15

# Most tests are not about the deadline of 5 s, which a start beside others may reach on a busy machine.
PATIENT = MAX_WAIT_SECONDS
RUN_AND_WAIT = f"""
import signal, sys
from memwatch.core.linux.files import Roots
from memwatch.core.collectors.tegra import TegrastatsCollector
collector = TegrastatsCollector(Roots(), sys.argv[1], 0.1, deadline_seconds={PATIENT})
collector.collect()
print("running", flush=True)
signal.pause()
"""


@contextmanager
def collecting(tmp_path: Path, interval: float = INTERVAL) -> Iterator[tuple[Tegrastats, TegrastatsCollector]]:
    simulator = Tegrastats.of(tmp_path, NANO)
    collector = TegrastatsCollector(ROOTS, str(simulator.program), interval, deadline_seconds=PATIENT)
    try:
        yield simulator, collector
    finally:
        collector.close()


def blocks_of(findings: Findings) -> int | Absent:
    assert findings.tegrastats is not None
    return findings.tegrastats.largest_free_blocks


def collect_or_error(collector: TegrastatsCollector) -> Findings | str:
    """Return the findings, or the message of the error."""
    try:
        return collector.collect()
    except ParseError as error:
        return str(error)


def wait_for_recovery(collector: TegrastatsCollector) -> Findings:
    """Return the first findings after an error."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while isinstance(found := collect_or_error(collector), str):
        assert time.monotonic() < until, "it did not recover"
        time.sleep(0.05)
    return found


def test_every_line_gives_a_reading(tmp_path: Path) -> None:
    """One process prints all of them, and it ends when the collector closes."""
    with collecting(tmp_path) as (simulator, collector):
        found = [blocks_of(collector.collect()) for _ in range(3)]
        (pid,) = simulator.pids()
        assert is_alive(pid)

    assert found == [BLOCKS] * 3
    wait_until_gone(pid)


def test_newest_line_is_used(tmp_path: Path) -> None:
    """Lines printed between two calls are not returned one by one later."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        newer = "RAM 1/2MB (lfb 7x2MB)"
        simulator.does("print", newer)
        wait_until(lambda: simulator.printed("print", newer) >= 3)
        found = collector.collect()

    assert blocks_of(found) == 7


def test_line_in_several_pieces_is_one_reading(tmp_path: Path) -> None:
    with collecting(tmp_path) as (simulator, collector):
        simulator.does("stutter")
        found = [collector.collect() for _ in range(4)]

    assert [blocks_of(one) for one in found] == [BLOCKS] * 4
    assert sum(one.rejected for one in found) == 0


@pytest.mark.parametrize("what", ["garbage", "cut", "long"])
def test_invalid_lines_are_counted_and_not_used(tmp_path: Path, what: str) -> None:
    """A valid line is returned with the number of lines that were rejected before it."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        simulator.does(what)
        wait_until(lambda: simulator.printed(what) >= 1)
        simulator.does("print")
        found: list[Findings] = []

        def has_rejected() -> int:
            found.append(collector.collect())
            return sum(one.rejected for one in found)

        wait_until(has_rejected)
        printed = simulator.printed(what)

    assert {blocks_of(one) for one in found} == {BLOCKS}
    assert 1 <= sum(one.rejected for one in found) <= printed


def test_killed_program_is_restarted_after_a_pause(tmp_path: Path) -> None:
    """Until then the error is the same, so that it is logged once."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        os.kill(simulator.pids()[0], signal.SIGKILL)
        errors: set[str] = set()
        while len(simulator.pids()) == 1:
            one = collect_or_error(collector)
            errors |= {one} if isinstance(one, str) else set()
        found = wait_for_recovery(collector)

    assert errors == {"tegrastats was killed by signal 9; it will be restarted after a pause"}
    assert blocks_of(found) == BLOCKS


def test_crashing_program_is_restarted_with_backoff(tmp_path: Path) -> None:
    """The pauses before the second and the third start are one and two seconds, as long as none succeeds."""
    with collecting(tmp_path) as (simulator, collector):
        simulator.does("die")
        began, errors = time.monotonic(), set[Findings | str]()
        while len(simulator.pids()) < 3:
            errors.add(collect_or_error(collector))
            time.sleep(0.02)
        took = time.monotonic() - began

    assert errors == {"tegrastats exited with code 3; it will be restarted after a pause"}
    assert took >= PAUSE_FIRST_SECONDS + 2 * PAUSE_FIRST_SECONDS


@pytest.mark.parametrize("deaf", [False, True])
def test_hanging_program_is_killed_after_its_deadline(tmp_path: Path, deaf: bool) -> None:
    """After five seconds without a line, even if it ignores SIGTERM. Then a new one is started."""
    simulator = Tegrastats.of(tmp_path, NANO)
    simulator.does("hang", deaf=deaf)
    collector = TegrastatsCollector(ROOTS, str(simulator.program), INTERVAL)
    started = time.monotonic()
    with pytest.raises(ParseError, match="printed no valid line for 5 s and was killed"):
        collector.collect()
    took = time.monotonic() - started
    wait_until_gone(simulator.pids()[0])
    simulator.does("print")
    found = wait_for_recovery(collector)
    collector.close()

    assert took >= 5
    assert blocks_of(found) == BLOCKS


def written_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().partition("wchar: ")[2].split()[0])


def test_flooded_pipe_is_read_in_bounded_time(tmp_path: Path) -> None:
    """A valid line is found in the available output in less than a second of CPU time."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        (pid,) = simulator.pids()
        before = written_bytes(pid)
        simulator.does("flood")
        wait_until(lambda: written_bytes(pid) - before > HALF_A_PIPE)
        started = time.process_time()
        found = collector.collect()
        took = time.process_time() - started

    assert blocks_of(found) == BLOCKS
    assert took < 1


def test_missing_program_makes_the_collector_unavailable(tmp_path: Path) -> None:
    """Not on PATH, missing, not executable, or on PATH of a machine that is no Tegra."""
    simulator = Tegrastats.of(tmp_path, NANO)
    here, nowhere = str(simulator.folder), str(tmp_path)
    x86 = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)
    (tmp_path / "text").write_text("")

    def find(roots: Roots, path: str, board: str, search_path: str) -> str | None:
        return find_tegrastats(roots, path, board, search_path, uid=1000).path

    assert find(ROOTS, "auto", "auto", here) == str(simulator.program)
    assert find(ROOTS, "auto", "auto", nowhere) is None
    assert find(x86, "auto", "auto", here) is None
    assert find(x86, "auto", "tegra234", here) == str(simulator.program)
    assert find(x86, str(simulator.program), "auto", nowhere) == str(simulator.program)
    assert find(x86, str(tmp_path / "text"), "auto", here) is None
    with pytest.raises(SourceUnavailable, match="no tegrastats on PATH: utilization"):
        TegrastatsCollector(ROOTS, search_path=nowhere)
    with pytest.raises(SourceUnavailable, match="no Tegra"):
        TegrastatsCollector(x86, search_path=here)


def test_invalid_executable_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "tegrastats"
    broken.write_bytes(b"\x7fELF, or so it says")
    broken.chmod(0o755)
    collector = TegrastatsCollector(ROOTS, str(broken), INTERVAL, deadline_seconds=PATIENT)

    with pytest.raises(ParseError, match="exited with code 1"):
        collector.collect()
    collector.close()


@pytest.mark.parametrize("what", ["print", "silent", "hang"])
def test_killed_daemon_leaves_no_program_running(tmp_path: Path, what: str) -> None:
    """Neither one that prints nor one that would not notice the closed pipe."""
    simulator = Tegrastats.of(tmp_path, NANO)
    simulator.does("print", deaf=True)
    command = [sys.executable, "-c", RUN_AND_WAIT, str(simulator.program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"running\n"
        (pid,) = simulator.pids()
        simulator.does(what, deaf=True)
        simulator.wait_until_it_does(what)
        assert is_alive(pid)
        daemon.kill()

    wait_until_gone(pid)


def test_restarts_leak_no_file_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with collecting(tmp_path) as (simulator, collector):
        for _ in range(2):
            wait_for_recovery(collector)
            os.kill(simulator.pids()[-1], signal.SIGKILL)
        wait_until(lambda: isinstance(collect_or_error(collector), str))

    assert len(os.listdir("/proc/self/fd")) == before


def test_line_buffer_returns_only_complete_lines() -> None:
    """An overlong line is dropped completely, and the following lines are kept."""
    lines = LineBuffer(10)

    found = [lines.feed(part) for part in (b"one\ntw", b"o\n", b"x" * 9, b"x" * 9, b"x\nfour\n", b"elevenbytes\n")]

    assert found == [[b"one\n"], [b"two\n"], [], [], [b"four\n"], []]
    assert lines.cut == 2
