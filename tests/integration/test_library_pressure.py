"""Pressure reaches a program: from the daemon, and by looking where none answers."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from memwatch.library.cgroup_limit import own_limit
from memwatch.library.daemon_client import Daemon
from memwatch.library.host import Host, Ram, parse_meminfo
from memwatch.library.pressure_watch import PressureChange, PressureWatch, parse_events
from memwatch.linux.files import Roots
from memwatch.model import Absent
from support.daemon_process import running_daemon
from support.library_process import roots_environment
from support.paths import MACHINES
from support.waiting import wait_until


def meminfo(available_percent: int) -> str:
    return f"MemTotal: 1000000 kB\nMemFree: 1000 kB\nMemAvailable: {available_percent * 10000} kB\nCached: 0 kB\n"


def test_pressure_reaches_the_program_from_the_daemon(tmp_path: Path) -> None:
    """Its memory fills: the callback is told within moments, with the daemon's reasons."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(meminfo(70))
    told: list[PressureChange] = []
    with running_daemon(tmp_path, f"--procfs={tmp_path / 'proc'}", f"--sysfs={tmp_path}") as running:
        running.get("/api/v1/events")  # its API is made
        watch = PressureWatch(told.append, "high", Daemon(running.url), Host(tmp_path / "elsewhere"))
        time.sleep(1.5)
        (tmp_path / "proc/meminfo").write_text(meminfo(3))
        wait_until(lambda: told)
        watch.stop()

    assert (told[0].target, told[0].rising) == ("ram", True)
    assert told[0].level in ("high", "critical")
    assert "used" in told[0].reasons[0]


def test_pressure_is_looked_at_where_no_daemon_answers(tmp_path: Path) -> None:
    """By the default thresholds, once a second."""
    (tmp_path / "meminfo").write_text(meminfo(10))
    told: list[PressureChange] = []
    watch = PressureWatch(told.append, "high", Daemon("http://127.0.0.1:1"), Host(tmp_path))
    wait_until(lambda: told)
    watch.stop()

    assert (told[0].level, told[0].previous, told[0].reasons) == ("high", "low", ("90.0% used",))


@pytest.mark.parametrize("daemon", [True, False], ids=["a daemon outside", "no daemon"])
def test_the_own_limit_reaches_the_program(tmp_path: Path, daemon: bool) -> None:
    """The container is nearly full: a daemon outside of it does not know, whatever it says of its machine."""
    here = tmp_path / "here"
    shutil.copytree(MACHINES / "container-v2", here, symlinks=True)
    roots = Roots(here / "proc", here / "sys", here / "root")
    current = here / "sys/fs/cgroup/memory.current"
    told: list[PressureChange] = []
    with ExitStack() as stack:
        url = "http://127.0.0.1:1"
        if daemon:
            roomy = roots_environment("numa-server-2tib")
            running = stack.enter_context(running_daemon(tmp_path, environ=roomy))
            running.get("/api/v1/events")  # its API is made
            url = running.url
        watch = PressureWatch(told.append, "high", Daemon(url), Host(roots.procfs), lambda: own_limit(roots))
        stack.callback(watch.stop)
        time.sleep(1.5)
        before = [change.target for change in told]
        current.write_text(f"{(12 << 30) - 1}\n")
        wait_until(lambda: "own_limit" in [change.target for change in told])

    assert "own_limit" not in before
    (change,) = [change for change in told if change.target == "own_limit"]
    assert (change.level, change.rising) == ("critical", True)
    assert change.reasons == (f"{change.ratio:.1%} of the container limit used",)


def test_events_of_a_stream_are_told_apart(tmp_path: Path) -> None:
    """Name and data, comments and other fields left out."""
    path = tmp_path / "stream"
    path.write_bytes(b": hello\n\nevent: pressure\nid: 1\ndata: [1,\ndata: 2]\n\ndata: x\n\nevent: cut")

    with path.open("rb") as lines:
        events = list(parse_events(lines))

    assert events == [("message", ""), ("pressure", "[1,2]"), ("message", "x")]


@pytest.mark.parametrize("text", [b"", b"MemTotal: x kB", b"MemTotal: 1 kB\n", b"\xff" * 100])
def test_meminfo_that_is_none_is_absent(text: bytes) -> None:
    """Never 0."""
    assert parse_meminfo(text) is Absent.NOT_SUPPORTED


def test_meminfo_is_read(tmp_path: Path) -> None:
    """In bytes; a missing file is absent."""
    (tmp_path / "meminfo").write_text(meminfo(40))

    assert Host(tmp_path).ram() == Ram(1_024_000_000, 409_600_000)
    assert Host(tmp_path / "meminfo").ram() is Absent.NOT_AVAILABLE
