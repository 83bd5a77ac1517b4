"""A tegrastats that dies, hangs, stutters or raves costs its own figures only, and leaves no process behind."""

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

from memwatch.collectors.tegrastats import Collector, find_tegrastats
from memwatch.findings import Findings
from memwatch.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.linux.line_buffer import LineBuffer
from support.machine_folders import machine_folder
from support.tegra_machine import Tegrastats, is_alive, wait_until_gone
from support.waiting import Stopwatch, wait_until

NANO = "jetson-nano-jp4"
BLOCKS = 174
ROOTS = machine_folder(NANO).roots
INTERVAL = 0.1

RUN_AND_WAIT = """
import sys, time
from memwatch.linux.files import Roots
from memwatch.collectors.tegrastats import Collector
collector = Collector(Roots(), sys.argv[1], 0.1)
collector.collect()
print("running", flush=True)
time.sleep(60)
"""


@contextmanager
def collecting(tmp_path: Path, interval: float = INTERVAL) -> Iterator[tuple[Tegrastats, Collector]]:
    simulator = Tegrastats.of(tmp_path, NANO)
    collector = Collector(ROOTS, str(simulator.program), interval)
    try:
        yield simulator, collector
    finally:
        collector.close()


def blocks_of(findings: Findings) -> int:
    assert findings.tegrastats is not None
    return findings.tegrastats.largest_free_blocks


def asked(collector: Collector) -> Findings | str:
    """What it finds, or what it says of its failure."""
    try:
        return collector.collect()
    except ParseError as error:
        return str(error)


def after_trouble(collector: Collector, seconds: float = 15.0) -> Findings:
    """What it finds once it finds something again."""
    until = time.monotonic() + seconds
    while isinstance(found := asked(collector), str):
        assert time.monotonic() < until, "it did not recover"
        time.sleep(0.05)
    return found


def test_every_line_is_a_reading(tmp_path: Path) -> None:
    """One program for all of them, and it is gone when the collector closes."""
    with collecting(tmp_path) as (simulator, collector):
        found = [blocks_of(collector.collect()) for _ in range(3)]
        (pid,) = simulator.pids()
        assert is_alive(pid)

    assert found == [BLOCKS] * 3
    wait_until_gone(pid)


def test_the_newest_line_counts(tmp_path: Path) -> None:
    """Lines that came while nobody asked are not handed out one by one later."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        simulator.does("print", "RAM 1/2MB (lfb 7x2MB)")
        time.sleep(0.5)
        found = collector.collect()

    assert blocks_of(found) == 7


def test_a_line_in_pieces_is_one_line(tmp_path: Path) -> None:
    """A program that stutters says the same, and nothing of it is rejected."""
    with collecting(tmp_path) as (simulator, collector):
        simulator.does("stutter")
        found = [collector.collect() for _ in range(4)]

    assert [blocks_of(one) for one in found] == [BLOCKS] * 4
    assert sum(one.rejected for one in found) == 0


@pytest.mark.parametrize("what", ["garbage", "cut", "long"])
def test_lines_that_cannot_be_read_are_counted_and_not_used(tmp_path: Path, what: str) -> None:
    """The next good one is taken, together with the number of those that were left out."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        simulator.does(what)
        time.sleep(0.5)
        simulator.does("print")
        time.sleep(0.3)
        found = collector.collect()

    assert blocks_of(found) == BLOCKS
    assert 1 <= found.rejected <= 8


def test_a_program_that_dies_is_started_again_after_a_pause(tmp_path: Path) -> None:
    """The same sentence until then, so that the log has it once."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        os.kill(simulator.pids()[0], signal.SIGKILL)
        said: set[str] = set()
        while len(simulator.pids()) == 1:
            one = asked(collector)
            said |= {one} if isinstance(one, str) else set()
        found = after_trouble(collector)

    assert said == {"tegrastats was killed by signal 9; it will be restarted after a pause"}
    assert blocks_of(found) == BLOCKS


def test_a_program_that_dies_at_once_is_started_ever_more_rarely(tmp_path: Path) -> None:
    """In four seconds three times at most, where without a pause there would be a hundred."""
    with collecting(tmp_path) as (simulator, collector):
        simulator.does("die")
        until = time.monotonic() + 4
        while time.monotonic() < until:
            with pytest.raises(ParseError, match="exited with code 3"):
                collector.collect()
            time.sleep(0.05)

    assert 2 <= len(simulator.pids()) <= 3


@pytest.mark.parametrize("deaf", [False, True])
def test_a_program_that_hangs_is_killed_after_its_deadline(tmp_path: Path, deaf: bool) -> None:
    """Five seconds without a line, whether it would listen to SIGTERM or not; then there is another one."""
    simulator = Tegrastats.of(tmp_path, NANO)
    simulator.does("hang", deaf=deaf)
    collector = Collector(ROOTS, str(simulator.program), INTERVAL)
    started, watch = time.monotonic(), Stopwatch()
    with pytest.raises(ParseError, match="printed no valid line for 5 s and was killed"):
        collector.collect()
    took, worked = time.monotonic() - started, watch.seconds
    wait_until_gone(simulator.pids()[0])
    simulator.does("print")
    found = after_trouble(collector)
    collector.close()

    assert took >= 5
    assert worked < 8
    assert blocks_of(found) == BLOCKS


def test_a_program_that_floods_its_pipe_is_read_in_bounds(tmp_path: Path) -> None:
    """A good line is taken from what there is, in a fraction of a second."""
    with collecting(tmp_path) as (simulator, collector):
        collector.collect()
        simulator.does("flood")
        time.sleep(0.3)
        started = time.process_time()
        found = collector.collect()
        took = time.process_time() - started

    assert blocks_of(found) == BLOCKS
    assert took < 1


def test_no_program_is_no_error(tmp_path: Path) -> None:
    """Not on PATH, not there, not to be run, or on PATH of a machine that is no Tegra."""
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
        Collector(ROOTS, search_path=nowhere)
    with pytest.raises(SourceUnavailable, match="no Tegra"):
        Collector(x86, search_path=here)


def test_a_program_that_cannot_be_started_is_a_failure_like_another(tmp_path: Path) -> None:
    """A file that may be run and is no program."""
    broken = tmp_path / "tegrastats"
    broken.write_bytes(b"\x7fELF, or so it says")
    broken.chmod(0o755)
    collector = Collector(ROOTS, str(broken), INTERVAL)

    with pytest.raises(ParseError, match="exited with code 1"):
        collector.collect()
    collector.close()


@pytest.mark.parametrize("what", ["print", "silent", "hang"])
def test_a_daemon_that_is_killed_leaves_no_program_behind(tmp_path: Path, what: str) -> None:
    """Neither one that prints, nor one that would never notice that nobody reads."""
    simulator = Tegrastats.of(tmp_path, NANO)
    simulator.does("print", deaf=True)
    command = [sys.executable, "-c", RUN_AND_WAIT, str(simulator.program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"running\n"
        (pid,) = simulator.pids()
        simulator.does(what, deaf=True)
        time.sleep(0.3)
        assert is_alive(pid)
        daemon.kill()

    wait_until_gone(pid)


def test_nothing_stays_open(tmp_path: Path) -> None:
    """Descriptors are as before, over restarts too."""
    before = len(os.listdir("/proc/self/fd"))
    with collecting(tmp_path) as (simulator, collector):
        for _ in range(2):
            after_trouble(collector)
            os.kill(simulator.pids()[-1], signal.SIGKILL)
        wait_until(lambda: isinstance(asked(collector), str))

    assert len(os.listdir("/proc/self/fd")) == before


def test_lines_are_whole_or_not_there() -> None:
    """In whatever pieces they come; one that never ends is dropped as a whole, whatever follows is kept."""
    lines = LineBuffer(10)

    found = [lines.feed(part) for part in (b"one\ntw", b"o\n", b"x" * 9, b"x" * 9, b"x\nfour\n", b"elevenbytes\n")]

    assert found == [[b"one\n"], [b"two\n"], [], [], [b"four\n"], []]
    assert lines.cut == 2
