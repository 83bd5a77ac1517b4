"""LXC containers: /proc/meminfo is the container's, GPU memory is the machine's, and both are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulators.amd_machine import GIB, MIB, AmdMachine, memory
from support.daemon_process import running_daemon

LXCFS = "520 500 0:60 /proc/meminfo /proc/meminfo rw,nosuid,nodev,relatime - fuse.lxcfs lxcfs rw,user_id=0"


def snapshot_of(tmp_path: Path, *arguments: str) -> Any:
    """Return a snapshot once no collector is starting."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with running_daemon(scratch, "--interval", "200ms", *arguments) as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        return daemon.snapshot()


def lxc_container(tmp_path: Path) -> AmdMachine:
    """Return a container with 8 of the machine's 128 GiB, whose GPU uses 60 GiB of a 96 GiB limit."""
    machine = AmdMachine(tmp_path)
    machine.host(8 * GIB, 6 * GIB)
    machine.write("proc/self/mountinfo", LXCFS)
    machine.write("root/run/systemd/container", "lxc")
    machine.gpu(memory(512 * MIB, 100 * MIB, 96 * GIB, 60 * GIB))
    return machine


def test_lxc_container_reports_both_scopes(tmp_path: Path) -> None:
    """System RAM is the machine's and the container limit a share of it, so GTT is not 7.5 times its pool."""
    machine = lxc_container(tmp_path)
    caches = {"Active(file)": 7 * GIB, "Inactive(file)": 0, "SReclaimable": GIB}
    lines = {"MemTotal": 128 * GIB, "MemFree": 40 * GIB, **caches}
    for name, text in {
        "meminfo": "\n".join(f"Node 0 {key}: {size >> 10} kB" for key, size in lines.items()),
        "cpulist": "0-31",
    }.items():
        machine.write(f"sys/devices/system/node/node0/{name}", text)
    snapshot = snapshot_of(tmp_path, *machine.arguments)

    (ram, _), (device,) = snapshot["pools"], snapshot["devices"]
    shares = {share["id"]: share for share in snapshot["shares"]}
    assert (ram["size_bytes"], ram["available_bytes"]) == (128 * GIB, 48 * GIB)
    assert ram["source"] == "sysfs:node/meminfo"
    assert (shares["cgroup"]["used_bytes"], shares["cgroup"]["limit_bytes"]) == (2 * GIB, 8 * GIB)
    assert (shares["cgroup"]["relation"], shares["cgroup"]["source"]) == (
        "Container limit ⊂ System RAM",
        "lxcfs:MemAvailable",
    )
    assert (shares["gpu0.gtt"]["used_bytes"], shares["gpu0.gtt"]["limit_bytes"]) == (60 * GIB, 96 * GIB)
    assert shares["gpu0.gtt"]["note"] is None
    assert device["headroom_after_reclaim_bytes"] == 412 * MIB + 36 * GIB
    assert {one["target"]: one["level"] for one in snapshot["pressure"]} == {
        "ram": "medium",
        "cgroup": "low",
        "gpu0.gtt": "medium",
    }


def test_gtt_above_system_ram_is_inconsistent(tmp_path: Path) -> None:
    """Without the machine's size, the value is left out and raises no alert."""
    snapshot = snapshot_of(tmp_path, *lxc_container(tmp_path).arguments)

    (ram, _), (share,), (device,) = snapshot["pools"], snapshot["shares"], snapshot["devices"]
    assert (ram["size_bytes"], ram["overlap"], ram["source"]) == (8 * GIB, False, "lxcfs:MemAvailable")
    assert {share["absent"][name] for name in ("used_bytes", "limit_bytes")} == {"inconsistent"}
    assert device["absent"]["headroom_after_reclaim_bytes"] == "inconsistent"
    assert {one["level"] for one in snapshot["pressure"]} == {"low"}


def test_arc_of_the_host_is_not_available_in_the_container(tmp_path: Path) -> None:
    """arcstats is the host's: 5 GiB that can be reclaimed there would have left 1 of 8 GiB in use, and not 6."""
    machine = lxc_container(tmp_path)
    machine.host(8 * GIB, 2 * GIB)
    machine.write("proc/spl/kstat/zfs/arcstats", f"size 4 {6 * GIB}\nc_min 4 {GIB}\n")
    (ram, _) = snapshot_of(tmp_path, *machine.arguments)["pools"]

    assert (ram["used_bytes"], ram["source"]) == (6 * GIB, "lxcfs:MemAvailable")
