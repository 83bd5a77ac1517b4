"""What a machine cannot have is said to be that, and is not said to come yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.collectors import list_collectors
from memwatch.collectors.base import Host
from memwatch.model import Absent
from memwatch.monitor.absent_reasons import COLLECTOR_OF, find_absent_reasons
from memwatch.snapshot import CollectorState, CollectorStatus, Snapshot
from memwatchd.recording.demos import path_of
from memwatchd.recording.frames import read_frames
from scripts.golden import roots_arguments
from support.daemon_process import running_daemon


@pytest.mark.parametrize(
    ("state", "error", "reason"),
    [
        ("unavailable", "/sys/block: no zram device", Absent.NOT_SUPPORTED),
        ("unavailable", "/dev/kmsg: not permitted; run as root", Absent.NOT_PERMITTED),
        ("failing", "mm_stat: '' does not start with three figures", Absent.NOT_AVAILABLE),
        ("starting", None, Absent.NOT_AVAILABLE),
        ("stalled", "no answer for 12 s", Absent.NOT_AVAILABLE),
    ],
)
def test_a_figure_is_absent_as_its_collector_is(state: CollectorState, error: str | None, reason: Absent) -> None:
    """Only what is not there for good is not supported."""
    statuses = [CollectorStatus(name, state, error=error) for name in COLLECTOR_OF.values()]

    assert find_absent_reasons(COLLECTOR_OF, statuses) == dict.fromkeys(COLLECTOR_OF, reason)


def test_every_such_collector_and_field_exists() -> None:
    """On Linux; elsewhere none of them is."""
    linux, mac = (
        {one.name for one in list_collectors(Host(platform=platform))} for platform in ("linux", "darwin")
    )

    assert linux.issuperset(COLLECTOR_OF.values())
    assert mac.isdisjoint(COLLECTOR_OF.values())
    assert set(Snapshot.__struct_fields__).issuperset(COLLECTOR_OF)


def test_where_there_is_no_linux_there_are_no_such_figures() -> None:
    """A collector that is switched off is another matter: its figure might be had."""
    others, memory = CollectorStatus("psutil_host", "ok"), CollectorStatus("meminfo", "ok")

    assert set(find_absent_reasons(COLLECTOR_OF, [others]).values()) == {Absent.NOT_SUPPORTED}
    assert set(find_absent_reasons(COLLECTOR_OF, [memory]).values()) == {Absent.NOT_AVAILABLE}


def test_a_machine_says_what_it_cannot_have(tmp_path: Path) -> None:
    """A GH200 has no tegrastats and this one no zram; what is switched off might be there."""
    config = "[collectors.psi]\nenabled = false\n"
    with running_daemon(tmp_path, *roots_arguments("gh200-numa"), config=config) as daemon:
        snapshot = daemon.snapshot()

    assert {name: snapshot["absent"].get(name) for name in ("tegrastats", "zram", "psi")} == {
        "tegrastats": "not_supported",
        "zram": "not_supported",
        "psi": "not_available",
    }


def test_a_mac_says_that_only_linux_has_some_figures() -> None:
    """PSI, compressed swap and counters of kills are Linux's: they will not come."""
    for frame in read_frames(path_of("macbook")):
        assert {frame.psi, frame.zram, frame.cgroup_pressure, frame.tegrastats, frame.kernel_log} == {
            Absent.NOT_SUPPORTED
        }
        assert frame.kernel.oom_kills_total is Absent.NOT_SUPPORTED
