"""Reasons for absent values: `not_supported` for good, `not_available` for now."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.model import Absent
from memwatch.core.reading.machine import COLLECTOR_OF, find_absent_reasons
from memwatch.core.snapshot import CollectorState, CollectorStatus, Snapshot
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from scripts.golden import roots_arguments
from support.daemon_process import running_daemon


@pytest.mark.parametrize(
    ("state", "error", "reason"),
    [
        ("unavailable", "/sys/block: no zram device", Absent.NOT_SUPPORTED),
        ("unavailable", "/dev/kmsg: not permitted; run as root", Absent.NOT_PERMITTED),
        ("failing", "mm_stat: '' does not start with three figures", Absent.NOT_AVAILABLE),
        ("starting", None, Absent.NOT_AVAILABLE),
        ("stalled", "no response for 12 s", Absent.NOT_AVAILABLE),
    ],
)
def test_absent_reason_follows_the_collector_state(
    state: CollectorState, error: str | None, reason: Absent
) -> None:
    """Only a missing device or file means `not_supported`."""
    statuses = [CollectorStatus(name, state, error=error) for name in COLLECTOR_OF.values()]

    assert find_absent_reasons(COLLECTOR_OF, statuses) == dict.fromkeys(COLLECTOR_OF, reason)


def test_collectors_with_absent_reasons_exist_on_linux_only() -> None:
    linux, mac = (
        {one.name for one in list_collectors(Host(platform=platform))} for platform in ("linux", "darwin")
    )

    assert linux.issuperset(COLLECTOR_OF.values())
    assert mac.isdisjoint(COLLECTOR_OF.values())
    assert set(Snapshot.__struct_fields__).issuperset(COLLECTOR_OF)


def test_linux_only_values_are_not_supported_elsewhere() -> None:
    """A disabled collector is different: its value may be available again."""
    others, memory = CollectorStatus("psutil_host", "ok"), CollectorStatus("meminfo", "ok")

    assert set(find_absent_reasons(COLLECTOR_OF, [others]).values()) == {Absent.NOT_SUPPORTED}
    assert set(find_absent_reasons(COLLECTOR_OF, [memory]).values()) == {Absent.NOT_AVAILABLE}


def test_snapshot_lists_missing_collectors_as_absent(tmp_path: Path) -> None:
    """A GH200 has no tegrastats and this one has no zram. A disabled collector may have data."""
    config = "[collectors.psi]\nenabled = false\n"
    with running_daemon(tmp_path, *roots_arguments("gh200-numa"), config=config) as daemon:
        snapshot = daemon.snapshot()

    assert {name: snapshot["absent"].get(name) for name in ("tegrastats", "zram", "psi")} == {
        "tegrastats": "not_supported",
        "zram": "not_supported",
        "psi": "not_available",
    }


def test_macos_reports_linux_only_values_as_not_supported() -> None:
    """PSI, zram and OOM kill counters exist only on Linux."""
    for frame in read_frames(path_of("macbook")):
        assert {frame.psi, frame.zram, frame.cgroup_pressure, frame.tegrastats, frame.kernel_log} == {
            Absent.NOT_SUPPORTED
        }
        assert frame.kernel.oom_kills_total is Absent.NOT_SUPPORTED


@pytest.mark.parametrize("name", ["lunar-lake", "rk3588-panthor", "snapdragon-msm"])
def test_figures_of_a_gpu_that_are_not_read_do_not_blame_the_driver(tmp_path: Path, name: str) -> None:
    """Intel's and Arm's drivers may know the utilization of a GPU or an NPU; memwatchd does not ask them."""
    with running_daemon(tmp_path, *roots_arguments(name)) as daemon:
        devices = daemon.get("/api/v1/devices").json

    assert devices
    assert {device["absent"]["busy_ratio"] for device in devices} == {"not_read"}
    assert {device["absent"]["throttled"] for device in devices} == {"not_read"}


def test_mac_has_no_linux_counters_and_does_not_blame_metal() -> None:
    """The counters of /proc/vmstat exist on Linux only. macOS knows the GPU's load, which is not read."""
    snapshot = next(read_frames(path_of("macbook")))
    kernel, device = snapshot.kernel, snapshot.devices[0]

    assert {getattr(kernel, name) for name in kernel.__struct_fields__} == {Absent.NOT_SUPPORTED}
    assert device.busy_ratio is device.temperature_celsius is device.process_list is Absent.NOT_READ
