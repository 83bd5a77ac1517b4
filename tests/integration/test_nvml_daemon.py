"""NVIDIA machines through the running daemon: a failing driver costs only its own figures."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Event, Holder, Memory, Trouble
from support.budget import within
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, get, running_daemon
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until

MIB, GIB = 1 << 20, 1 << 30
QUICK = '[collectors.nvml]\nrestart_after = "1s"\n'
RTX, GB10, MANY = (sample_nvml.READY[name] for name in ("rtx-4090", "gb10", "8x-h100"))


def state_of(daemon: RunningDaemon) -> tuple[str, str | None]:
    found = next(one for one in daemon.get("/api/v1/collectors").json if one["name"] == "nvml")
    return found["state"], found["error"]


def cuda_used(shares: Any) -> Any:
    return next((share["used_bytes"] for share in shares if share["id"] == "cuda0"), None)


def seconds_until(daemon: RunningDaemon, wanted: int) -> float:
    """Return seconds until the CUDA Pool has this size, without time spent waiting for a CPU."""
    watch = Stopwatch(daemon.pid)
    daemon.wait_for("/api/v1/shares", lambda shares: cuda_used(shares) == wanted)
    return watch.seconds


@pytest.mark.measure
def test_allocated_and_freed_gpu_memory_is_seen_within_two_ticks(tmp_path: Path) -> None:
    """One GiB more in a process list is one GiB more in the CUDA Pool; an empty list is a measured zero."""
    with_gib = GB10.with_gpu(0, compute=(Holder(3921, GIB),), graphics=())
    simulator = Simulator.of(tmp_path, GB10.with_gpu(0, compute=(), graphics=()))
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/shares", lambda shares: cuda_used(shares) == 0)

        simulator.show(with_gib)
        more = seconds_until(daemon, GIB)
        metrics = daemon.get("/metrics").text
        simulator.show(GB10.with_gpu(0, compute=(), graphics=()))
        less = seconds_until(daemon, 0)

    # The driver is read once a second, however short the interval is.
    within("from the driver's list to the CUDA Pool", max(more, less), 2.5, "s")
    assert (
        'memwatch_share_used_bytes{device="gpu0",kind="cuda_pool",share="cuda0",within="ram"} 1.073741824e+09'
        in metrics
    )
    assert 'memwatch_pool_size_bytes{device="",kind="system_ram",pool="ram"}' in metrics
    assert metrics.count("\nmemwatch_pool_size_bytes{") == 1


@pytest.mark.measure
@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (Trouble(latency_ms=600_000), "did not answer for 5 s and was killed"),
        (Trouble(segfault=True), "killed by signal 11"),
    ],
    ids=["hang", "segfault"],
)
def test_hanging_or_crashing_call_costs_only_the_gpu_figures(
    trouble: Trouble, sentence: str, tmp_path: Path
) -> None:
    """RAM ticks on, /metrics responds in 100 ms, the GPU has no figures, and a repaired driver is read again."""
    broken = RTX.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": trouble, "nvmlDeviceGetMemoryInfo": trouble})
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        simulator.show(broken)
        pools = daemon.wait_for(
            "/api/v1/pools",
            lambda pools: any(pool.get("absent", {}).get("used_bytes") == "stale" for pool in pools),
        )
        slowest, ticks = scrape_for(daemon, 3.0)
        errors = [state_of(daemon)[1]]
        daemon.wait_for("/api/v1/events", lambda events: any(sentence in event["text"] for event in events))
        simulator.show(RTX)
        daemon.wait_until_ok("nvml")
        after = daemon.get("/api/v1/pools").json

    assert [pool["id"] for pool in pools] == ["ram", "gpu0"]
    assert pools[0]["used_bytes"] is not None
    assert pools[1]["size_bytes"] == 24564 * MIB
    within("scrape while the driver hangs", slowest, 0.1, "s")
    assert ticks >= 2
    assert errors[0]
    assert after[1]["used_bytes"] is not None


def test_first_tick_does_not_count_hbm_as_system_ram(tmp_path: Path) -> None:
    """MemTotal of a GH200 contains its HBM. No tick, not even the first, counts it as System RAM."""
    simulator = Simulator.of(tmp_path, sample_nvml.READY["gh200-numa"])
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_for("/api/v1/snapshot", lambda found: found["seq"] >= 3)
        series = daemon.get("/api/v1/history?series=pool.ram.used_bytes,pool.gpu0.used_bytes").json["series"]

    for found in series:
        known = [figure for figure in found["min"] + found["max"] if figure is not None]
        assert len(set(known)) == 1


def scrape_for(daemon: RunningDaemon, seconds: float) -> tuple[float, int]:
    """Return the slowest scrape in this time, without time spent waiting for a CPU, and the number of ticks."""
    before, until, slowest = daemon.snapshot()["seq"], time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        watch = Stopwatch(daemon.pid)
        assert daemon.get("/metrics").status == 200
        slowest = max(slowest, watch.seconds)
        time.sleep(0.02)
    return slowest, daemon.snapshot()["seq"] - before


def test_the_daemon_stops_while_the_driver_hangs(tmp_path: Path) -> None:
    """A helper that is stuck for ten minutes delays no stop of the service, and does not outlive the daemon."""
    stuck = {"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=600_000)}
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        simulator.show(RTX.with_gpu(0, troubles=stuck))
        time.sleep(1.5)
        helpers = {call.pid for call in simulator.calls()}
        code = daemon.terminate()

    assert code == 0
    assert_gone(helpers)


def test_a_killed_daemon_leaves_no_helper(tmp_path: Path) -> None:
    """SIGKILL of the daemon ends the helper too: no process keeps the driver in use."""
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        helpers = {call.pid for call in simulator.calls()}
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(MAX_WAIT_SECONDS)

        assert_gone(helpers)


def assert_gone(pids: set[int]) -> None:
    assert pids
    wait_until(lambda: not any(is_running(pid) for pid in pids), describe=lambda: f"still running: {pids}")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_lost_gpu_is_listed_as_lost_and_the_others_are_still_read(tmp_path: Path) -> None:
    """GPU_IS_LOST on one of eight: seven have figures, the eighth has none and is marked lost."""
    simulator = Simulator.of(tmp_path, MANY)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        simulator.show(MANY.with_gpu(3, down=15))
        devices = daemon.wait_for(
            "/api/v1/devices", lambda devices: any(device["state"] == "lost" for device in devices)
        )
        pools = daemon.get("/api/v1/pools").json

    assert Counter(device["state"] for device in devices) == {"ok": 7, "lost": 1}
    lost = next(device for device in devices if device["state"] == "lost")
    assert lost["headroom_after_reclaim_bytes"] is None
    assert lost["id"] not in {pool["id"] for pool in pools}
    assert len(pools) == 8


def test_driver_loaded_later_is_found_without_a_restart(tmp_path: Path) -> None:
    """A missing driver is unavailable, not an error. Once it is loaded, its GPU appears."""
    simulator = Simulator.of(tmp_path, replace(RTX, init_error=9))
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_for(
            "/api/v1/collectors",
            lambda found: any(one["name"] == "nvml" and one["state"] == "unavailable" for one in found),
        )
        _, error = state_of(daemon)
        machine = daemon.snapshot()["machine"]
        simulator.show(RTX)
        daemon.wait_until_ok("nvml")

    assert error
    assert machine["architecture"] == "unknown"
    assert "its memory is not read here" in machine["explanation"]


def test_an_upgraded_driver_gets_a_new_helper(tmp_path: Path) -> None:
    """LIB_RM_VERSION_MISMATCH cannot be repaired within a process: another one is started, and RAM ticks on."""
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ, config=QUICK) as daemon:
        daemon.wait_until_ok("nvml")
        before = {call.pid for call in simulator.calls()}
        simulator.show(replace(RTX, down=18))
        daemon.wait_for("/api/v1/collectors", lambda found: any(one["state"] == "failing" for one in found))
        _, ticks = scrape_for(daemon, 2.0)
        simulator.show(RTX)
        daemon.wait_until_ok("nvml")
        after = {call.pid for call in simulator.calls()} - before

    assert after
    assert ticks >= 1


def test_driver_is_released_on_request_and_opened_again(tmp_path: Path) -> None:
    """No process uses the driver then. RAM is still reported, and later the GPU is back."""
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        helpers = {call.pid for call in simulator.calls()}
        answer = get(daemon.port, "/api/v1/release?seconds=3600", method="POST")
        assert_gone(helpers)
        released = daemon.wait_for(
            "/api/v1/collectors", lambda found: any("released" in (one["error"] or "") for one in found)
        )
        pools = daemon.get("/api/v1/pools").json
        metrics = daemon.get("/metrics").text
        foreign = get(daemon.port, "/api/v1/release", {"Origin": "https://evil.example"}, "POST")
        get(daemon.port, "/api/v1/release?seconds=1", method="POST")
        daemon.wait_until_ok("nvml")
        events = [event["text"] for event in daemon.get("/api/v1/events").json]

    assert answer.json == {"released": ["nvml"], "seconds": 3600.0}
    assert next(one["state"] for one in released if one["name"] == "nvml") == "unavailable"
    assert pools[0]["used_bytes"] is not None
    assert "memwatch_device_info{" in metrics
    assert "memwatch_device_up{" not in metrics
    assert foreign.status == 403
    assert any(text.startswith("GPU drivers released for 3600 s: nvml, by ") for text in events)


def test_scrambled_lists_are_left_out_and_counted(tmp_path: Path) -> None:
    """PIDs 0 and 4294967295 (drivers R535.54 to R535.98): the figure is absent, never computed from such a list."""
    scrambled = GB10.with_gpu(0, compute=(Holder(0, GIB), Holder(4294967295, GIB)))
    simulator = Simulator.of(tmp_path, scrambled)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        share = daemon.wait_for("/api/v1/shares", lambda shares: len(shares) == 1)[0]
        metrics = daemon.get("/metrics").text

    assert 'memwatch_collector_errors_total{collector="nvml",reason="inconsistent"}' in metrics
    assert share["used_bytes"] is None
    assert share["absent"]["used_bytes"] == "inconsistent"


def test_xids_are_counted_by_code(tmp_path: Path) -> None:
    """An XID increments a counter; it is not a gauge that keeps its last value."""
    simulator = Simulator.of(tmp_path, MANY)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        simulator.wait_for_call("nvmlEventSetWait_v2")
        simulator.show(MANY.with_event(Event(2, 0x8, 79)))
        devices = daemon.wait_for(
            "/api/v1/devices", lambda devices: any("xid_79" in device["errors"] for device in devices)
        )
        metrics = daemon.get("/metrics").text

    (hit,) = [device["id"] for device in devices if "xid_79" in device["errors"]]
    assert f'memwatch_driver_memory_errors_total{{device="{hit}",kind="xid_79"}} 1.0' in metrics


def test_tick_makes_at_most_four_calls_per_gpu(tmp_path: Path) -> None:
    """In steady state, with static facts known, a round reads memory and lists only."""
    simulator = Simulator.of(tmp_path, MANY)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        began = daemon.snapshot()["unix"]
        before = daemon.wait_for("/api/v1/snapshot", lambda one: one["unix"] >= began + 3)["unix"]
        simulator.clear_calls()
        daemon.wait_for("/api/v1/snapshot", lambda one: one["unix"] >= before + 3)
        calls, rounds = simulator.calls(), daemon.snapshot()["unix"] - before

    per_gpu = Counter(call.device for call in calls if call.device != "-")
    assert len(per_gpu) == 8
    assert max(per_gpu.values()) <= 4 * (rounds + 1)


@pytest.mark.long
@pytest.mark.measure
def test_helper_cpu_time_with_eight_gpus_is_within_budget(tmp_path: Path) -> None:
    """Budget: 1 ms a tick for 8 GPUs with 10 processes; the limit is four times that, for a busy machine."""
    holders = tuple(Holder(2000 + at, GIB) for at in range(10))
    many = MANY
    for slot in range(8):
        many = many.with_gpu(slot, compute=holders, memory=Memory(81559 * MIB, 20 * GIB, 479 * MIB))
    simulator = Simulator.of(tmp_path, many)
    environ = {**simulator.environ, **WITHOUT_COVERAGE}
    with running_daemon(tmp_path, *simulator.roots, environ=environ) as daemon:
        daemon.wait_until_ok("nvml")
        time.sleep(2)
        (helper,) = {call.pid for call in simulator.calls()}
        before = cpu_seconds(helper)
        time.sleep(10)
        spent = (cpu_seconds(helper) - before) / 10

    within("CPU of the helper with 8 GPUs", spent, 0.004, "cores")


def cpu_seconds(pid: int) -> float:
    total = sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    return total / 1e9


def test_only_the_helper_loads_the_driver_library(tmp_path: Path) -> None:
    """A segfault in the vendor's library can end only the helper."""
    simulator = Simulator.of(tmp_path, RTX)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        (helper,) = {call.pid for call in simulator.calls()}

        assert "libnvidia-ml" not in Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "libnvidia-ml" in Path(f"/proc/{helper}/maps").read_text()
        assert "fastapi" not in Path(f"/proc/{helper}/maps").read_text()
