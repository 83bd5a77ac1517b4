"""Neural processing units: their buffers are a share of System RAM, and unreported memory is not 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.collectors.drm import Collector
from memwatch.core.drivers.drm.records import Basis, DrmCard, DrmClient, DrmReading
from memwatch.core.findings import Findings
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent, Process, Quality, Share, ShareKind
from memwatch.core.snapshot import Machine
from simulators.drm_machine import DrmMachine, fdinfo
from support.daemon_process import running_daemon
from support.fakes import GIB, ram
from support.open_things import close_at_end
from support.paths import MACHINES

MIB = 1 << 20
PLACE = "0000:00:0b.0"
NPU_SHARE = "npu0.buffers"
NO_USAGE_STATS = "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t900\n"


def npu(driver: str = "intel_vpu", number: int = 0) -> DrmCard:
    place = f"0000:00:0b.{number}"
    return DrmCard(f"accel{number}", driver, place, place, (f"accel{number}",), "8086", "643e")


def client(held: int, pid: int = 100, number: int = 0, basis: Basis | None = "resident") -> DrmClient:
    resident = {"memory": held} if basis else {}
    return DrmClient("intel_vpu", f"0000:00:0b.{number}", f"accel{number}", pid, (pid,), basis, resident)


def reading_of(*clients: DrmClient, npus: tuple[DrmCard, ...] = (), **more: object) -> DrmReading:
    return replace(DrmReading((), clients, 10, 0, npus=npus or (npu(),)), **more)


def composed_with(reading: DrmReading, stale: frozenset[str] = frozenset()) -> Findings:
    processes = tuple(Process(pid, 1.0, "app", GIB, GIB, "rss") for pid in (100, 200))
    host = Findings(pools=(ram(40 * GIB),), machine=Machine("test", "cpu_only", "No GPU."), processes=processes)
    return Composer().compose([host, Findings(drm=reading, stale=stale)])


def only(found: Findings) -> Share:
    (share,) = found.shares
    return share


def test_npu_buffers_are_a_share_of_system_ram() -> None:
    """NPU buffers add a share and device memory of processes, but no pool and no GPU."""
    found = composed_with(reading_of(client(96 * MIB), client(2 * GIB, pid=200)))

    share = only(found)
    assert (share.id, share.kind, share.label) == ("npu0.buffers", ShareKind.NPU_BUFFERS, "NPU buffers")
    assert (share.within, share.used_bytes, share.quality) == ("ram", 2 * GIB + 96 * MIB, Quality.DERIVED)
    assert (share.device, share.limit_bytes) == (None, Absent.NOT_SUPPORTED)
    assert [pool.id for pool in found.pools] == ["ram"]
    assert (found.devices, found.machine) == ((), Machine("test", "cpu_only", "No GPU."))
    of = {process.pid: process for process in found.processes}
    assert of[200].device_bytes == {"npu0.buffers": 2 * GIB}
    assert of[200].footprint_range == (2 * GIB, 3 * GIB)


def test_npu_without_clients_uses_zero_bytes() -> None:
    assert only(composed_with(reading_of())).used_bytes == 0


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(reading_of(client(0, 200, basis=None)), id="clients without memory keys"),
        pytest.param(reading_of(mute={"accel0": (200,)}), id="a descriptor that names no client"),
    ],
)
def test_memory_the_driver_does_not_report_is_not_zero(reading: DrmReading) -> None:
    """It is unknown for the share and for the processes that use the NPU; other footprints stay exact."""
    found = composed_with(reading)
    share, of = only(found), {process.pid: process for process in found.processes}

    assert (share.used_bytes, share.note) == (Absent.NOT_SUPPORTED, "Its driver does not report memory.")
    assert of[200].device_bytes == {NPU_SHARE: Absent.NOT_SUPPORTED}
    assert (of[200].footprint_bytes, of[200].footprint_range) == (
        Absent.NOT_SUPPORTED,
        (GIB, Absent.NOT_SUPPORTED),
    )
    assert (of[100].footprint_bytes, of[100].footprint_range) == (GIB, None)


def test_descriptor_of_another_device_does_not_affect_the_npu() -> None:
    assert only(composed_with(reading_of(client(MIB), mute={"accel1": (7,), "renderD128": (8,)}))).used_bytes == MIB


def test_accelerator_of_unknown_memory_type_has_a_share_only_if_clients_report_memory() -> None:
    """Data center cards have their own memory. For an unknown driver, only figures of its clients count."""
    unknown = (replace(npu("qaic"), name="accel0"),)

    assert composed_with(reading_of(npus=unknown)).shares == ()
    assert composed_with(reading_of(npus=unknown, mute={"accel0": (200,)})).shares == ()
    assert only(composed_with(reading_of(client(MIB), npus=unknown))).used_bytes == MIB


def test_two_npus_have_separate_shares() -> None:
    found = composed_with(reading_of(client(MIB), client(GIB, number=1), npus=(npu(), npu(number=1))))

    assert [(share.id, share.label, share.used_bytes) for share in found.shares] == [
        ("npu0.buffers", "NPU buffers 0", MIB),
        ("npu1.buffers", "NPU buffers 1", GIB),
    ]


def test_npu_share_is_stale_while_its_collector_fails() -> None:
    found = composed_with(reading_of(client(GIB)), stale=frozenset({"drm"}))

    assert only(found).used_bytes is Absent.STALE
    assert found.processes[0].device_bytes == {"npu0.buffers": Absent.STALE}


def test_unreadable_processes_make_npu_memory_a_lower_bound() -> None:
    share = only(composed_with(reading_of(client(GIB), unreadable=3)))

    assert share.used_bytes == GIB
    assert "a lower bound" in str(share.note)


def test_collector_reads_a_machine_with_only_an_npu(tmp_path: Path) -> None:
    machine = DrmMachine(tmp_path)
    machine.npu("accel0", "amdxdna", "0000:c6:00.1", "0x1022", "0x17f0")
    machine.opens(
        2100,
        7,
        fdinfo("amdxdna_accel_driver", 3, "0000:c6:00.1", "amdxdna_accel_driver-internal-alloc:\t64 MiB"),
        "/dev/accel/accel0",
    )
    pids = GpuPids()

    found = close_at_end(Collector(machine.roots, pids)).collect().drm

    assert found is not None
    assert [(one.name, one.driver, one.nodes, one.pdev) for one in found.npus] == [
        ("accel0", "amdxdna", ("accel0",), "0000:c6:00.1")
    ]
    assert found.clients[0].resident == {"memory": 64 * MIB}
    assert pids() == frozenset({2100})


def test_no_card_and_no_npu_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()

    with pytest.raises(SourceUnavailable, match="no DRM device found"):
        Collector(DrmMachine(tmp_path).roots, GpuPids())


def test_npu_that_appears_is_found_in_the_next_round(tmp_path: Path) -> None:
    machine = DrmMachine(tmp_path)
    machine.card("card0", "xe", "0000:00:02.0")
    machine.process(2100)
    collector = close_at_end(Collector(machine.roots, GpuPids()))
    before = collector.collect().drm
    machine.npu("accel0", "intel_vpu", PLACE)

    after = collector.collect().drm

    assert before is not None
    assert before.npus == ()
    assert after is not None
    assert [one.place for one in after.npus] == [PLACE]


def test_driver_without_client_lines_is_mute_and_a_closed_descriptor_is_not(tmp_path: Path) -> None:
    """i915 before Linux 5.19 and early ivpu: descriptors without a line of drm-usage-stats."""
    machine = DrmMachine(tmp_path)
    machine.card("card0", "i915", "0000:00:02.0")
    machine.opens(2100, 7, NO_USAGE_STATS)
    collector = close_at_end(Collector(machine.roots, GpuPids()))

    mute = collector.collect().drm
    machine.closes(2100, 7)
    machine.links(2100, 7, "socket:[4711]")
    machine.says(2100, 7, NO_USAGE_STATS)
    other = collector.collect().drm

    assert mute is not None
    assert mute.mute == {"renderD128": (2100,)}
    assert other is not None
    assert other.mute == {}
    share = only(composed_with(mute))
    assert (share.id, share.used_bytes) == ("gpu0.buffers", Absent.NOT_SUPPORTED)


@pytest.mark.parametrize(("name", "held", "pid"), [("lunar-lake", 96 * MIB, 4411), ("strix-halo", 512 * MIB, 6400)])
def test_running_daemon_reports_npu_memory_and_its_process(name: str, held: int, pid: int, tmp_path: Path) -> None:
    """JSON, /metrics and the page."""
    roots = DrmMachine(MACHINES / name).roots
    arguments = (f"--procfs={roots.procfs}", f"--sysfs={roots.sysfs}", f"--rootfs={roots.rootfs}")
    with running_daemon(tmp_path, "--interval", "200ms", *arguments) as daemon:
        snapshot = daemon.wait_for(
            "/api/v1/snapshot", lambda found: NPU_SHARE in {one["id"] for one in found["shares"]}
        )
        metrics = daemon.get("/metrics").text
        page = daemon.get("/").text

    (share,) = (one for one in snapshot["shares"] if one["id"] == NPU_SHARE)
    assert (share["kind"], share["within"], share["used_bytes"]) == ("npu_buffers", "ram", held)
    (process,) = (one for one in snapshot["processes"] if one["pid"] == pid)
    assert process["device_bytes"][NPU_SHARE] == held
    (figure,) = re.findall(r'^memwatch_share_used_bytes\{.*kind="npu_buffers".*\} (\S+)$', metrics, re.MULTILINE)
    assert float(figure) == held
    assert "NPU buffers" in page
