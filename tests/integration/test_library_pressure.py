"""Pressure callbacks of the library: events of the daemon, or polling without one."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent
from memwatch.library.daemon_client import Daemon
from memwatch.library.host import Host, Ram, own_limit, parse_meminfo
from memwatch.library.pressure_watch import PressureChange, PressureWatch, parse_events
from support import login_settings
from support.daemon_process import running_daemon
from support.library_process import roots_environment, run_json
from support.open_things import close_at_end
from support.paths import MACHINES, TESTS
from support.waiting import wait_until


class ClosedHost(Host):
    """Host with an end. That of the library lasts as long as its process."""

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def host_of(procfs: Path) -> Host:
    return close_at_end(ClosedHost(procfs))


def meminfo(available_percent: int) -> str:
    return f"MemTotal: 1000000 kB\nMemFree: 1000 kB\nMemAvailable: {available_percent * 10000} kB\nCached: 0 kB\n"


def test_pressure_of_the_daemon_reaches_the_program(tmp_path: Path) -> None:
    """When its memory fills, the callback is called with the daemon's reasons."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(meminfo(70))
    changes: list[PressureChange] = []
    with running_daemon(tmp_path, f"--procfs={tmp_path / 'proc'}", f"--sysfs={tmp_path}") as running:
        running.get("/api/v1/events")  # loads its API
        watch = PressureWatch(changes.append, "high", Daemon(running.url), host_of(tmp_path / "elsewhere"))
        wait_until(lambda: watch._levels)  # the daemon has sent its levels
        (tmp_path / "proc/meminfo").write_text(meminfo(3))
        wait_until(lambda: changes)
        watch.stop()

    assert (changes[0].target, changes[0].rising) == ("ram", True)
    assert changes[0].level in ("high", "critical")
    assert "97.0%" in changes[0].reasons[0]


def test_pressure_is_polled_without_a_daemon(tmp_path: Path) -> None:
    """Once a second, with the default thresholds."""
    (tmp_path / "meminfo").write_text(meminfo(10))
    changes: list[PressureChange] = []
    watch = PressureWatch(changes.append, "high", Daemon("http://127.0.0.1:1"), host_of(tmp_path))
    wait_until(lambda: changes)
    watch.stop()

    assert (changes[0].level, changes[0].previous, changes[0].reasons) == ("high", "low", ("90.0% used",))


SHRINKING = """
import time, memwatch
from support.custom_pool import OwnPool
pool = OwnPool()
memwatch.register_pool(pool)
watch = memwatch.shrink_on_pressure("high")
until = time.monotonic() + 60
while pool.reserved > 2 << 30 and time.monotonic() < until:
    time.sleep(0.05)
watch.stop()
print(pool.reserved)
"""


def test_pools_are_shrunk_under_pressure(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(meminfo(10))
    path = f"{os.environ.get('PYTHONPATH', '')}:{TESTS}"

    assert run_json(SHRINKING, MEMWATCHD_PROCFS=str(tmp_path), PYTHONPATH=path) == 2 << 30


FULL_GPU = """
import json, sys, time, memwatch
from simulators.torch_stand_in import CountingTorch
sys.modules["torch"] = CountingTorch()
changes = []
watch = memwatch.on_pressure(changes.append, "high")
until = time.monotonic() + 60
while not any(change.target != "ram" for change in changes) and time.monotonic() < until:
    time.sleep(0.05)
watch.stop()
(change,) = [change for change in changes if change.target != "ram"]
print(json.dumps([change.target, change.level]))
"""


def test_full_gpu_reaches_a_program_that_uses_one_without_a_daemon(tmp_path: Path) -> None:
    """Once a second, if a framework uses a GPU: others do not open its driver."""
    shutil.copytree(MACHINES / "rx-7900-xtx", tmp_path / "card", symlinks=True)
    (folder,) = (tmp_path / "card/sys").glob("devices/**/mem_info_vram_used")
    folder.write_text(str(int(folder.with_name("mem_info_vram_total").read_text()) - (1 << 20)))
    roots = {f"MEMWATCHD_{one.upper()}FS": str(tmp_path / "card" / one) for one in ("proc", "sys", "root")}
    path = f"{os.environ.get('PYTHONPATH', '')}:{TESTS}"

    found = run_json(FULL_GPU, **roots, PYTHONPATH=path)

    assert found == ["gpu0", "critical"]


@pytest.mark.parametrize("daemon", [True, False], ids=["a daemon outside", "no daemon"])
def test_own_container_limit_reaches_the_program(tmp_path: Path, daemon: bool) -> None:
    """The container is nearly full, and a daemon outside of it cannot report that."""
    here = tmp_path / "here"
    shutil.copytree(MACHINES / "container-v2", here, symlinks=True)
    roots = Roots(here / "proc", here / "sys", here / "root")
    current = here / "sys/fs/cgroup/memory.current"
    changes: list[PressureChange] = []
    with ExitStack() as stack:
        url = "http://127.0.0.1:1"
        if daemon:
            roomy = roots_environment("numa-server-2tib")
            running = stack.enter_context(running_daemon(tmp_path, environ=roomy))
            running.get("/api/v1/events")  # loads its API
            url = running.url
        watch = PressureWatch(changes.append, "high", Daemon(url), host_of(roots.procfs), lambda: own_limit(roots))
        stack.callback(watch.stop)
        wait_until(lambda: watch._levels)  # the daemon has sent its levels
        before = [change.target for change in changes]
        current.write_text(f"{(12 << 30) - 1}\n")
        wait_until(lambda: "own_limit" in [change.target for change in changes])

    assert "own_limit" not in before
    (change,) = [change for change in changes if change.target == "own_limit"]
    assert (change.level, change.rising) == ("critical", True)
    assert change.reasons == (f"{change.ratio:.1%} of the container limit used",)


def test_stream_of_a_daemon_with_a_login_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is sent, as with other requests. The daemon's machine is almost full, this one is roomy."""
    monkeypatch.setenv("MEMWATCH_TOKEN", login_settings.TOKEN)
    changes: list[PressureChange] = []
    full = tmp_path / "full"
    shutil.copytree(MACHINES / "numa-server-2tib", full, symlinks=True)
    (full / "proc/meminfo").write_text(meminfo(2))
    environ = {f"MEMWATCHD_{one.upper()}FS": str(full / one) for one in ("proc", "sys", "root")}
    config = login_settings.login_config(tmp_path)
    with running_daemon(tmp_path, config=config, environ=environ) as running, ExitStack() as stack:
        roomy = host_of(MACHINES / "numa-server-2tib" / "proc")
        watch = PressureWatch(changes.append, "high", Daemon(running.url), roomy, lambda: None)
        stack.callback(watch.stop)
        wait_until(lambda: "ram" in [change.target for change in changes])

    assert changes[0].level == "critical"


def test_stream_events_are_parsed(tmp_path: Path) -> None:
    """Name and data; comments and other fields are ignored."""
    path = tmp_path / "stream"
    path.write_bytes(b": hello\n\nevent: pressure\nid: 1\ndata: [1,\ndata: 2]\n\ndata: x\n\nevent: cut")

    with path.open("rb") as lines:
        events = list(parse_events(lines))

    assert events == [("message", ""), ("pressure", "[1,2]"), ("message", "x")]


@pytest.mark.parametrize("text", [b"", b"MemTotal: x kB", b"MemTotal: 1 kB\n", b"\xff" * 100])
def test_invalid_meminfo_is_absent(text: bytes) -> None:
    """It is never 0."""
    assert parse_meminfo(text) is Absent.NOT_SUPPORTED


def test_meminfo_is_read_in_bytes(tmp_path: Path) -> None:
    """A missing file is absent."""
    (tmp_path / "meminfo").write_text(meminfo(40))

    assert host_of(tmp_path).ram() == Ram(1_024_000_000, 409_600_000, 1_024_000)
    assert host_of(tmp_path / "meminfo").ram() is Absent.NOT_AVAILABLE
