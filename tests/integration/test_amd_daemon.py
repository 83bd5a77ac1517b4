"""AMD GPUs through the running daemon: no byte counted twice or invented, no sleeping GPU woken."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import roots_arguments
from simulators.amd_machine import GIB, MIB, PCI, AmdMachine, discrete, memory
from simulators.drm_machine import DrmMachine, fdinfo
from support.daemon_process import RunningDaemon, running_daemon
from support.machine_folders import machine_folder

# Audit hook that records every file the daemon opens. Only Python code opens files in this process.
RECORDER = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def record(event, args):
    if event == "open":
        os.write(log, os.fsencode(str(args[0])) + b"\\n")
sys.addaudithook(record)
"""


# Device files, descriptors of other processes, and files that query the card's firmware.
FORBIDDEN = re.compile(r"dev/(dri|kfd|accel)|(^|/)fd/\d+$|gpu_metrics|busy_percent|/ras/|sdma_", re.MULTILINE)


@contextmanager
def watched(tmp_path: Path, *arguments: str, **options: Any) -> Iterator[tuple[RunningDaemon, Any]]:
    """Yield a daemon and its snapshot once no collector is starting."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    with running_daemon(scratch, "--interval", "200ms", *arguments, **options) as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        yield daemon, daemon.snapshot()


def snapshot_of(tmp_path: Path, *arguments: str) -> Any:
    with watched(tmp_path, *arguments) as (_, snapshot):
        return snapshot


def by_id(things: Any) -> dict[str, Any]:
    return {thing["id"]: thing for thing in things}


def only(things: Any) -> Any:
    (thing,) = things
    return thing


def device_bytes_by_pid(snapshot: Any) -> dict[int, dict[str, int]]:
    return {one["pid"]: one["device_bytes"] for one in snapshot["processes"] if one["device_bytes"]}


def apu(tmp_path: Path, vram_used: int = 400 * MIB, gtt_used: int = 0, **host: Any) -> AmdMachine:
    """Return an APU with a 512 MiB carve-out on a machine with 64 GiB."""
    machine = AmdMachine(tmp_path)
    machine.host(**{"ram": 64 * GIB, "available": 60 * GIB - gtt_used, "held_by_nobody": gtt_used + GIB, **host})
    machine.gpu(memory(512 * MIB, vram_used, 48 * GIB, gtt_used))
    return machine


def test_strix_halo_carve_out_and_gtt_are_added_once(tmp_path: Path) -> None:
    """The GPU holds 63.44 of 125.5 GiB. A carve-out of 512 MiB that is 89% full raises no alert."""
    with watched(tmp_path, *roots_arguments("strix-halo")) as (daemon, snapshot):
        alerts = daemon.get("/api/v1/alerts").json
        metrics = daemon.get("/metrics").text

    pools, share = by_id(snapshot["pools"]), by_id(snapshot["shares"])["gpu0.gtt"]
    assert pools["gpu0"]["used_bytes"] + share["used_bytes"] == 455 * MIB + 63 * GIB
    assert share["relation"] == "GTT ⊂ System RAM"
    assert snapshot["total"]["size_bytes"] == 125 * GIB + 512 * MIB
    assert {one["target"] for one in snapshot["pressure"]} == {"ram", "gpu0.gtt"}
    assert not any(alert.get("firing") for alert in alerts)
    assert 'memwatch_pressure_level{target="gpu0"}' not in metrics
    assert only(snapshot["devices"])["architecture"] == "unified"
    # Free carve-out plus available System RAM, which is less than the rest of the GTT limit.
    assert only(snapshot["devices"])["headroom_after_reclaim_bytes"] == 57 * MIB + pools["ram"]["available_bytes"]


def test_gtt_limit_above_system_ram_is_capped(tmp_path: Path) -> None:
    """96 of 127 GiB are the carve-out. The GTT limit is capped, so nothing adds up to 192 or 223 GiB."""
    snapshot = snapshot_of(tmp_path, *roots_arguments("strix-halo-96g"))

    share = only(snapshot["shares"])
    assert share["limit_bytes"] == 31 * GIB
    assert "exceeds its parent" in share["note"]
    assert snapshot["total"]["size_bytes"] == 127 * GIB
    assert "gpu0" in {one["target"] for one in snapshot["pressure"]}
    assert only(snapshot["devices"])["api_free_bytes"] == {"rocm": 26 * GIB}


def test_discrete_card_gtt_counts_as_system_ram(tmp_path: Path) -> None:
    """24 GiB of VRAM and 64 GiB of RAM are 88 GiB. The GTT limit of 32 GiB adds no capacity."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB, held_by_nobody=4 * GIB)
    machine.gpu(discrete(used=23 * GIB, gtt_used=3 * GIB))

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    pools, share = by_id(snapshot["pools"]), only(snapshot["shares"])
    assert (pools["gpu0"]["size_bytes"], pools["ram"]["size_bytes"]) == (24 * GIB, 64 * GIB)
    assert snapshot["total"]["size_bytes"] == 88 * GIB
    assert (share["within"], share["used_bytes"], share["limit_bytes"]) == ("ram", 3 * GIB, 32 * GIB)
    assert "spill" in share["note"]
    assert pools["ram"]["contents"]["devices_bytes"] == 3 * GIB
    assert pools["ram"]["unattributed_bytes"] == GIB
    device = only(snapshot["devices"])
    assert (device["allocates_from"], device["headroom_after_reclaim_bytes"]) == (["gpu0"], GIB)


def test_four_mi300a_are_four_gpus(tmp_path: Path) -> None:
    """The 28 partition cards are slices. Memory is System RAM, counted once, also when KFD lists it."""
    snapshot = snapshot_of(tmp_path, *roots_arguments("mi300a-x4"))

    assert [device["id"] for device in snapshot["devices"]] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert [pool["id"] for pool in snapshot["pools"]] == ["ram"]
    assert {share["within"] for share in snapshot["shares"]} == {"ram"}
    shares = sum(share["used_bytes"] for share in snapshot["shares"])
    ram = only(snapshot["pools"])
    assert ram["contents"]["devices_bytes"] == shares
    assert ram["unattributed_bytes"] == 3 * GIB
    assert device_bytes_by_pid(snapshot) == {8100 + at: {f"gpu{at}.gtt": 60 * GIB} for at in range(4)}


def test_missing_vram_files_are_not_zero(tmp_path: Path) -> None:
    """Without mem_info_vram_* the device stays, has no pool, and its GTT is counted."""
    machine = AmdMachine(tmp_path)
    machine.host(32 * GIB, 20 * GIB, held_by_nobody=2 * GIB)
    machine.gpu({"mem_info_gtt_total": 16 * GIB, "mem_info_gtt_used": GIB})

    with watched(tmp_path, *machine.arguments) as (daemon, snapshot):
        metrics = daemon.get("/metrics").text

    assert [pool["id"] for pool in snapshot["pools"]] == ["ram"]
    assert only(snapshot["shares"])["used_bytes"] == GIB
    assert only(snapshot["devices"])["state"] == "ok"
    assert 'pool="gpu0"' not in metrics


def test_drm_client_with_two_descriptors_is_counted_once(tmp_path: Path) -> None:
    """Two descriptors of one client hold 1 GiB. The same client id on another GPU is another client."""
    machine = apu(tmp_path, gtt_used=3 * GIB)
    machine.gpu(discrete(used=GIB, gtt_used=2 * GIB), pci="0000:0a:00.0", card=2)
    drm = DrmMachine(tmp_path)
    drm.process(700)
    for fd in (7, 9):
        drm.opens(700, fd, fdinfo("amdgpu", 12, PCI, gtt="1024 MiB", vram="0"))
    drm.opens(700, 10, fdinfo("amdgpu", 12, "0000:0a:00.0", gtt="1048576 KiB", vram="12345"))

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    assert device_bytes_by_pid(snapshot) == {700: {"gpu0.gtt": GIB, "gpu1.gtt": GIB, "gpu1": 12345}}


def test_drm_client_shared_by_two_processes_is_counted_once(tmp_path: Path) -> None:
    """Both processes inherited the descriptor and show 1 GiB; the pool attributes 1 GiB once."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(used=3 * GIB))
    drm = DrmMachine(tmp_path)
    for pid in (700, 701):
        drm.process(pid)
        drm.opens(pid, 7, fdinfo("amdgpu", 12, PCI, vram="1024 MiB", gtt="0"))

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    assert device_bytes_by_pid(snapshot) == {700: {"gpu0": GIB}, 701: {"gpu0": GIB}}
    assert by_id(snapshot["pools"])["gpu0"]["unattributed_bytes"] == 2 * GIB
    assert any("share buffers" in note for note in only(snapshot["devices"])["notes"])


FIGURES = {
    700: (("drm-resident-vram:\t256 MiB", "drm-memory-vram:\t262144 KiB"), 268435456),
    701: (("drm-memory-vram:\t25258000 KiB",), 25864192000),
    702: (("drm-resident-vram:\t12345",), 12345),
    703: (("drm-resident-vram:\t51200 KiB",), 52428800),
}


def test_older_fdinfo_keys_and_units_are_read(tmp_path: Path) -> None:
    """An older key for the same value is not added. A value without a unit is in bytes."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(vram=48 * GIB, used=30 * GIB))
    drm = DrmMachine(tmp_path)
    for pid, (lines, _) in FIGURES.items():
        drm.process(pid)
        drm.opens(pid, 7, fdinfo("amdgpu", pid, PCI, *lines))

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    assert device_bytes_by_pid(snapshot) == {pid: {"gpu0": size} for pid, (_, size) in FIGURES.items()}


def test_invalid_fdinfo_values_are_skipped_and_counted(tmp_path: Path) -> None:
    """No value is invented from them, and none is 0; /metrics counts the errors."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(used=30 * MIB, gtt_used=30 * MIB))
    drm = DrmMachine(tmp_path)
    for pid, figure in {700: "8 GiB", 701: "-1", 702: "N/A"}.items():
        drm.process(pid)
        drm.opens(pid, 7, fdinfo("amdgpu", pid, PCI, f"drm-resident-vram:\t{figure}", "drm-resident-gtt:\t8 MiB"))

    with watched(tmp_path, *machine.arguments) as (daemon, snapshot):
        metrics = daemon.get("/metrics").text

    held = {"gpu0": None, "gpu0.gtt": 8 * MIB, "absent": {"gpu0": "inconsistent"}}
    assert device_bytes_by_pid(snapshot) == dict.fromkeys((700, 701, 702), held)
    assert 'memwatch_collector_errors_total{collector="drm",reason="inconsistent"}' in metrics


def test_unreadable_process_makes_the_list_partial(tmp_path: Path) -> None:
    """The other processes are listed, KFD's value fills in for the unreadable one, and a note explains it."""
    machine = apu(tmp_path, gtt_used=2 * GIB)
    machine.node(1, 77, 0x300, 48 * GIB)
    machine.held(701, 77, GIB)
    drm = DrmMachine(tmp_path)
    for pid in (700, 701):
        drm.process(pid)
    drm.opens(700, 7, fdinfo("amdgpu", 12, PCI, gtt="512 MiB"))
    shutil.rmtree(tmp_path / "proc/701/fd")
    (tmp_path / "proc/701/fd").write_text("")

    with watched(tmp_path, *machine.arguments) as (daemon, snapshot):
        metrics = daemon.get("/metrics").text

    device = only(snapshot["devices"])
    assert device["process_list"] == "partial"
    assert any("cannot be read" in note for note in device["notes"])
    assert device_bytes_by_pid(snapshot) == {700: {"gpu0.gtt": 512 * MIB}, 701: {"gpu0.gtt": GIB}}
    assert 'memwatch_device_process_list_complete{device="gpu0"} 0.0' in metrics


def test_kfd_vram_on_an_apu_is_gtt_and_not_added_twice(tmp_path: Path) -> None:
    """KFD's vram_ file has 60 GiB and GTT 60.4 GiB: the process holds 60 GiB of GTT once."""
    machine = AmdMachine(tmp_path)
    machine.host(125 * GIB, 50 * GIB, held_by_nobody=62 * GIB)
    machine.gpu(memory(512 * MIB, 410 * MIB, 124 * GIB, 60 * GIB + 410 * MIB))
    machine.node(1, 12345, 0x300, 124 * GIB)
    machine.held(700, 12345, 60 * GIB)
    drm = DrmMachine(tmp_path)
    drm.process(700)
    drm.opens(700, 7, fdinfo("amdgpu", 12, PCI, gtt="61440 MiB", vram="4 MiB"))

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    assert device_bytes_by_pid(snapshot) == {700: {"gpu0.gtt": 60 * GIB, "gpu0": 4 * MIB}}
    process = next(one for one in snapshot["processes"] if one["pid"] == 700)
    assert process["footprint_bytes"] is None
    assert process["footprint_low_bytes"] == 60 * GIB + 4 * MIB
    assert process["footprint_high_bytes"] == process["rss_bytes"] + 60 * GIB + 4 * MIB


def test_shared_buffers_are_reported_as_overlap(tmp_path: Path) -> None:
    """Clients that share buffers list more than is used: unattributed is 0 with `overlap`."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(used=GIB), pci="0000:03:00.0", card=1)
    machine.gpu(discrete(used=4 * GIB), pci="0000:0a:00.0", card=2)
    drm = DrmMachine(tmp_path)
    for pid in (700, 701):
        drm.process(pid)
        drm.opens(pid, 7, fdinfo("amdgpu", pid, "0000:03:00.0", vram="768 MiB"))
        drm.opens(pid, 8, fdinfo("amdgpu", pid, "0000:0a:00.0", vram="1024 MiB"))

    pools = by_id(snapshot_of(tmp_path, *machine.arguments)["pools"])

    assert (pools["gpu0"]["unattributed_bytes"], pools["gpu0"]["overlap"]) == (0, True)
    assert (pools["gpu1"]["unattributed_bytes"], pools["gpu1"]["overlap"]) == (2 * GIB, False)


@pytest.mark.parametrize(("kernel", "free"), [("6.8.0-60-generic", 112 * MIB), ("6.16.3", 30 * GIB)])
def test_rocm_free_memory_follows_the_kernel_version(kernel: str, free: int, tmp_path: Path) -> None:
    """Before 6.10 the carve-out only, later System RAM if that is larger; never more than available."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 30 * GIB, kernel, held_by_nobody=GIB)
    machine.gpu({**memory(512 * MIB, 400 * MIB, 48 * GIB, GIB), "device": "0x1586"})
    machine.node(1, 77, 0x300, 0)

    snapshot = snapshot_of(tmp_path, *machine.arguments)

    assert only(snapshot["devices"])["api_free_bytes"] == {"rocm": free}


def test_ttm_pages_limit_bounds_rocm_free_memory(tmp_path: Path) -> None:
    """A GTT of 96 GiB with a kernel limit of 15.5 GiB: the driver warns, and a device note says so."""
    machine = AmdMachine(tmp_path)
    machine.host(31 * GIB, 24 * GIB, "6.12.10", held_by_nobody=GIB)
    machine.gpu({**memory(512 * MIB, 0, 96 * GIB, GIB), "device": "0x1586"})
    machine.node(1, 77, 0x300, 16638816256)
    machine.write("sys/module/ttm/parameters/pages_limit", 16638816256 // 4096)

    device = only(snapshot_of(tmp_path, *machine.arguments)["devices"])

    assert device["api_free_bytes"] == {"rocm": 16638816256 - GIB}
    assert any("may use 15.5 GiB of System RAM" in note for note in device["notes"])


def test_suspended_card_is_read_without_being_woken(tmp_path: Path) -> None:
    """No device file is opened, nor any sysfs file that queries the card."""
    shutil.copytree(machine_folder("rx-7900-xtx").roots.procfs.parent, tmp_path / "box", symlinks=True)
    machine = AmdMachine(tmp_path / "box")
    (status,) = (machine.folder / "sys/devices").rglob("power/runtime_status")
    status.write_text("suspended\n")
    for name in ("dri/renderD128", "dri/card1", "kfd"):
        machine.write(f"root/dev/{name}", "")
    recorder = tmp_path / "recorder"
    recorder.mkdir()
    (recorder / "sitecustomize.py").write_text(RECORDER.format(log=str(tmp_path / "opened")))
    environ = {"PYTHONPATH": f"{recorder}:{os.environ.get('PYTHONPATH', '')}"}

    with watched(tmp_path, *machine.arguments, environ=environ) as (daemon, snapshot):
        daemon.wait_for("/api/v1/snapshot", lambda one: one["unix"] >= snapshot["unix"] + 2)
    opened = (tmp_path / "opened").read_text()

    device = only(snapshot["devices"])
    assert device["details"]["power"] == "suspended"
    assert by_id(snapshot["pools"])["gpu0"]["used_bytes"] is not None
    assert {one["name"]: one["error"] for one in snapshot["collectors"]}["amdgpu"] is None
    assert "mem_info_vram_used" in opened
    assert not FORBIDDEN.search(opened)


def test_unplugged_card_is_missing_and_others_keep_their_ids(tmp_path: Path) -> None:
    """gpu0 is missing while gpu1 stays gpu1. When gpu0 is plugged in again, all is as before."""
    machine = AmdMachine(tmp_path)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(), pci="0000:03:00.0", card=1)
    machine.gpu(discrete(vram=8 * GIB), pci="0000:0a:00.0", card=2)

    with watched(tmp_path, *machine.arguments) as (daemon, _):
        machine.unplug(card=1)
        without = daemon.wait_for(
            "/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["missing", "ok"]
        )
        pools = daemon.get("/api/v1/pools").json
        machine.plug("0000:03:00.0", card=1)
        daemon.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok", "ok"])

    assert [one["headroom_after_reclaim_bytes"] for one in without] == [None, 8 * GIB]
    assert [pool["id"] for pool in pools] == ["ram", "gpu1"]
