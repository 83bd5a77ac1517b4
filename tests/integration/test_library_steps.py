"""Library calls in a training step: lines, marks, reports, tracking and guards never raise and are cheap."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import memwatch
from memwatch.core.model import Absent
from memwatch.library.daemon_client import Daemon
from memwatch.library.frameworks import shrink
from memwatch.library.guard import Guard
from memwatch.library.reporter import Reporter
from memwatch.planning.arguments import InvalidInputError
from support.budget import within
from support.calibration import HOT_SECONDS, slowness
from support.custom_pool import OwnPool
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, clean_environment, running_daemon
from support.library_process import run_program
from support.paths import TESTS
from support.waiting import MAX_WAIT_SECONDS

GIB = 1 << 30


def fail() -> NoReturn:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


class BrokenPool(OwnPool):
    def stats(self) -> memwatch.PoolStats:
        fail()

    def total(self) -> int:
        fail()

    def free(self) -> int:
        fail()

    def clear(self) -> None:
        fail()

    def shrink(self) -> int:
        fail()


@pytest.fixture
def own_pool() -> Iterator[OwnPool]:
    pool = OwnPool()
    memwatch.register_pool(pool)
    yield pool
    memwatch.unregister_pool(pool)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon on this machine, because it must find the programs that report."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), watches_this_machine=True) as running:
        yield running


def test_line_without_gpu_has_free_and_resident_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Free System RAM and the resident set."""
    with caplog.at_level(logging.INFO, "memwatch"):
        line = memwatch.log_memory_usage("Before VAE Load")

    assert re.fullmatch(r"\[Before VAE Load\] Free: [\d.]+ \wiB \| Resident: [\d.]+ \wiB", line)
    assert caplog.messages == [line]


def test_line_with_a_pool_has_allocated_and_reserved_memory(own_pool: OwnPool) -> None:
    """Free, allocated with its share of the limit, reserved."""
    with memwatch.guard("20GiB"):
        line = memwatch.log_memory_usage("step")

    assert own_pool.reserved == 4 * GIB
    assert line == "[step] Free: 4.0 GiB | Allocated: 2.0 GiB (10.0% of the 20.0 GiB limit) | Reserved: 4.0 GiB"


def test_failing_pool_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    """The line has a dash, and each error is logged once."""
    pool = BrokenPool()
    memwatch.register_pool(pool)
    try:
        with memwatch.track("x") as stats, memwatch.MemoryProfiler(0.01) as profiler:
            profiler.stage("y")
            lines = {memwatch.log_memory_usage("step") for _ in range(3)}
        assert shrink() == 0
    finally:
        memwatch.unregister_pool(pool)

    assert lines == {"[step] Free: — not available | Allocated: — not available | Reserved: — not available"}
    assert isinstance(stats.allocator.peak_bytes, Absent)
    assert len([one for one in caplog.messages if "illegal memory access" in one]) <= 4


class WatchedDaemon(Daemon):
    """Client that tells when the end of a program has begun to wait: it asks whether the daemon answers at all."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.exits = threading.Event()

    @property
    def is_silent(self) -> bool:
        if threading.current_thread().name == "exit":
            self.exits.set()
        return super().is_silent


def test_exit_waits_for_marks_of_before_it_only() -> None:
    """A thread that goes on setting marks had every exit take five seconds."""

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        to = WatchedDaemon("http://127.0.0.1:{1}".format(*server.getsockname()))
        reporter = Reporter(to)
        reporter.mark("before")
        first, _ = server.accept()
        exiting = threading.Thread(target=reporter.flush, args=(MAX_WAIT_SECONDS,), name="exit")
        exiting.start()
        assert to.exits.wait(MAX_WAIT_SECONDS)
        reporter.mark("after")
        answer(first)
        second, _ = server.accept()  # and no answer, so that the sender is silent after its deadline
        exiting.join(MAX_WAIT_SECONDS)
        ended, is_silent = not exiting.is_alive(), to.is_silent
        answer(second)

    assert (ended, is_silent) == (True, False)


@pytest.mark.host
def test_stages_become_marks_and_pools_become_reports(daemon: RunningDaemon) -> None:
    """The line is among the events, the pool in its process."""
    code = (
        "import os, sys, time, memwatch; from support.custom_pool import OwnPool; "
        "memwatch.register_pool(OwnPool()); memwatch.log_memory_usage('Before VAE Load'); print(os.getpid()); "
        "sys.stdout.flush(); sys.stdin.read()"
    )
    environ = clean_environment(MEMWATCH_URL=daemon.url, PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{TESTS}")
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        daemon.wait_for("/api/v1/snapshot", lambda found: [one for one in found["claims"] if one["pid"] == pid])
        events, claims = daemon.get("/api/v1/events").json, daemon.snapshot()["claims"]
        program.communicate()

    assert program.returncode == 0
    (mark,) = [event["text"] for event in events if event["kind"] == "mark"]
    assert mark.startswith("[Before VAE Load] Free: 4.0 GiB | Allocated: 2.0 GiB")
    assert mark.endswith(f"(process {pid})")
    (claim,) = [one for one in claims if one["pid"] == pid]
    assert (claim["name"], claim["allocated_bytes"], claim["ooms"]) == ("Own", 2 * GIB, 1)


def test_track_reports_peak_and_difference() -> None:
    """64 MiB are allocated for a while and freed: part of the peak, not of the difference."""
    with memwatch.track("load") as stats:
        block = bytearray(64 << 20)
        block[::4096] = b"x" * len(block[::4096])
        time.sleep(0.2)
        del block

    peak, before, delta = stats.process.peak_bytes, stats.process.before_bytes, stats.process.delta_bytes
    assert isinstance(peak, int)
    assert isinstance(before, int)
    assert isinstance(delta, int)
    assert peak - before >= 60 << 20
    assert delta < 32 << 20
    assert stats.peak_bytes == peak
    assert stats.allocations is Absent.NOT_SUPPORTED


def test_track_works_as_a_decorator() -> None:
    """The function keeps its name and result, and has the stats of its last call."""

    @memwatch.track()
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    assert (double(21), double.__name__) == (42, "double")
    assert double.stats.name.endswith("double")  # type: ignore[attr-defined]


def test_resident_set_is_that_of_a_forked_child() -> None:
    """The file that is kept open is the parent's there."""
    code = """
import os
from memwatch.library.host import rss_bytes
rss_bytes()
held = bytearray(b"x" * (200 << 20))
whole = rss_bytes()
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    del held
    os._exit(0 if rss_bytes() < whole - (150 << 20) else 1)
"""
    assert run_program(code).returncode == 0


def test_resident_set_is_known_after_the_program_closed_all_files(tmp_path: Path) -> None:
    """The number of the closed file may be that of another one, whose figures are not taken."""
    (tmp_path / "other").write_text("1 2 3 4")
    code = f"""
import os
from memwatch.library.host import rss_bytes
before = rss_bytes()
os.closerange(3, 256)
others = [open({str(tmp_path / "other")!r}) for _ in range(20)]
assert abs(rss_bytes() - before) < 16 << 20, (rss_bytes(), before)
"""
    done = run_program(code)
    assert done.returncode == 0, done.stderr


def test_allocation_tracker_reports_tags_peaks_and_old_allocations() -> None:
    """The clock is manual."""
    now = [0.0]
    tracker = memwatch.AllocationTracker(lambda: now[0])
    first = tracker.add("weights", "2GiB")
    now[0] = 60.0
    second = tracker.add("kv cache", GIB)
    tracker.add("batch", GIB, "cpu")

    assert [one.tag for one in tracker.find_old_allocations(30.0)] == ["weights"]
    assert (tracker.remove(first), tracker.remove(first)) == (True, False)
    device_memories = tracker.holdings()
    assert (device_memories.live, device_memories.current_bytes, device_memories.peak_bytes) == (1, GIB, 3 * GIB)
    assert device_memories.by_tag == {"kv cache": GIB}
    assert tracker.holdings("cpu").current_bytes == GIB
    assert second
    with pytest.raises(InvalidInputError, match="size_bytes"):
        tracker.add("x", 0)
    with pytest.raises(InvalidInputError, match="location"):
        tracker.add("x", 1, "moon")  # type: ignore[arg-type]


def test_profile_has_peaks_by_stage_and_three_formats(tmp_path: Path) -> None:
    """JSON, CSV and HTML. A stage name is escaped in each."""
    with memwatch.MemoryProfiler(interval=0.01) as profiler:
        block = b"x" * (32 << 20)
        time.sleep(0.05)
        with profiler.within("=decode<script>"):
            time.sleep(0.05)
        del block
    report = profiler.report()

    files = [profiler.save(tmp_path / f"memory.{end}") for end in ("json", "csv", "html")]
    assert [peak.stage for peak in report.peaks] == ["start", "=decode<script>"]
    assert all(peak.samples and isinstance(peak.rss_bytes, int) for peak in report.peaks)
    found = json.loads(files[0].read_text())
    assert found["samples"][0]["absent"]["allocated_bytes"] == "not_supported"
    assert "'=decode<script>," in files[1].read_text()
    html = files[2].read_text()
    assert "=decode&lt;script&gt;" in html
    assert "<polyline" in html
    assert "<script" not in html
    with pytest.raises(InvalidInputError, match=r"for example memory\.html"):
        profiler.save(tmp_path / "memory.png")
    with pytest.raises(InvalidInputError, match="interval is 0"):
        memwatch.MemoryProfiler(0)


def test_guard_calls_back_once_until_use_falls() -> None:
    """At the warning, at the limit, and again only after a fall by 5%."""
    used, calls = [0], []
    guard = Guard(
        "100B",
        0.9,
        lambda usage: calls.append(("warn", usage.used_bytes)),
        lambda usage: calls.append(("limit", usage.used_bytes)),
        3600.0,
        lambda: used[0],
    )
    for used[0] in (50, 91, 95, 101, 89, 92, 80, 93):
        guard.check()
    guard.stop()

    assert calls == [("warn", 91), ("limit", 101), ("warn", 93)]


def test_guard_checks_in_the_background() -> None:
    """A limit below the use of this process is noticed at once. A failing callback has no effect on the program."""
    reached = threading.Event()

    def fail(_usage: memwatch.Usage) -> None:
        reached.set()
        raise RuntimeError("the callback is broken")

    with memwatch.guard("1MiB", on_warn=fail, interval=0.01):
        assert reached.wait(MAX_WAIT_SECONDS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: memwatch.guard("20 potatoes"), 'limit is "20 potatoes"'),
        (lambda: memwatch.guard("1GiB", warn_at=2), "warn_at is 2"),
        (lambda: memwatch.guard("1GiB", interval=0), "interval is 0"),
        (lambda: memwatch.on_pressure(print, "awful"), 'level is "awful"'),
        (lambda: memwatch.retry_on_oom(0), "batch_size is 0"),
        (lambda: memwatch.wait_for("soon"), 'size is "soon"'),
    ],
)
def test_invalid_argument_raises_at_the_call(make: Callable[[], object], words: str) -> None:
    """The error has the argument, its value, and a valid example."""
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        make()


def test_wait_for_returns_when_memory_is_available_or_at_timeout() -> None:
    """One byte is available at once, 512 TiB are not."""
    assert memwatch.wait_for(1)
    assert not memwatch.wait_for("512TiB", timeout=0.1, interval=0.05)


@pytest.mark.measure
@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "with a daemon"])
def test_step_calls_are_cheap(with_daemon: bool, daemon: RunningDaemon) -> None:
    """At most 50 µs of CPU time a call without a daemon, 200 µs with one: the best of 20 rounds."""
    environ = {**WITHOUT_COVERAGE, "PYTHONPATH": str(TESTS)}
    done = run_program(COST, daemon.url if with_daemon else None, **environ)

    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    limit = (200e-6 if with_daemon else 50e-6) * slowness(costs.pop("work"), HOT_SECONDS)
    assert len(costs) == 7
    for name, cost in costs.items():
        within(name, cost, limit, "s")


COST = """
import json, logging, os, resource, time, memwatch
from support import calibration
# ru_maxrss begins with the peak of the program that started this one. A training program exceeds that soon; below,
# each reading of the own peak takes 15 µs more.
held = b"x" * ((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + (64 << 20))
logging.basicConfig(level=logging.INFO, stream=open("/dev/null", "w"))
tracker, profiler = memwatch.AllocationTracker(), memwatch.MemoryProfiler(0.5)
profiler.start()
def track():
    with memwatch.track("x"):
        pass
calls = {
    "log_memory_usage": lambda: memwatch.log_memory_usage("step"),
    "memory_info": memwatch.memory_info,
    "is_unified_memory_gpu": memwatch.is_unified_memory_gpu,
    "get_device_memory_bytes": lambda: memwatch.get_device_memory_bytes(0, default=1),
    "track": track,
    "stage": lambda: profiler.stage("decode"),
    "work": calibration.work,
    "allocation": lambda: tracker.remove(tracker.add("x", 1)),
}
def cost(call):
    call()
    best = 1.0
    for _ in range(20):
        began = time.thread_time()
        for _ in range(50):
            call()
        best = min(best, (time.thread_time() - began) / 50)
    return best
print(json.dumps({name: cost(call) for name, call in calls.items()}))
os._exit(0) if not __import__("sys").stdout.flush() else None
"""
