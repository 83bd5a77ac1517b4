"""Shared buffers in the running daemon: no part of a memory, on any face, is more than is in use."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from support.container_host import OFTEN
from support.daemon_process import RunningDaemon, running_daemon

MIB = 1 << 20
MACHINES = Path(__file__).parents[1] / "machines"
# Both clients of the server hold 3400 MiB of VRAM, 3000 of them shared, on a card with 3642 MiB in use.
CLIENT = """pos:\t0
flags:\t02100002
drm-driver:\txe
drm-client-id:\t{number}
drm-pdev:\t0000:0b:00.0
drm-total-gtt:\t384 MiB
drm-shared-gtt:\t0
drm-resident-gtt:\t384 MiB
drm-total-vram0:\t3400 MiB
drm-shared-vram0:\t3000 MiB
drm-resident-vram0:\t3400 MiB
"""
SERVER = 5200


def wait_for_holders(daemon: RunningDaemon) -> Any:
    daemon.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
    daemon.wait_for("/api/v1/owners", lambda found: any(one["device_bytes"] for one in found["owners"]))
    return daemon.snapshot()


def check_parts(daemon: RunningDaemon, snapshot: Any) -> None:
    """Check processes, owners and metrics against the use of each pool and share."""
    used = {one["id"]: one["used_bytes"] for one in (*snapshot["pools"], *snapshot["shares"])}
    owners = [daemon.get(f"/api/v1/owners?by={kind}").json["owners"] for kind in ("unit", "user", "container")]
    parts = [*snapshot["processes"], *(one for found in owners for one in found)]
    held = [(place, size) for part in parts for place, size in part["device_bytes"].items()]
    metrics = re.findall(
        r'^memwatch_owner_device_bytes\{.*within="([^"]+)".*\} (\S+)$', daemon.get("/metrics").text, re.M
    )

    assert held
    assert metrics
    assert [(place, size) for place, size in held if size > used[place]] == []
    assert [(place, size) for place, size in metrics if float(size) > used[place]] == []


def test_process_holds_shared_buffers_of_its_clients_once(tmp_path: Path) -> None:
    machine = tmp_path / "arc"
    shutil.copytree(MACHINES / "arc-a770", machine, symlinks=True)
    for number in (19, 20):
        (machine / f"proc/{SERVER}/fdinfo/{number}").write_text(CLIENT.format(number=number))
    current = machine / "sys/fs/cgroup/dmem.current"
    current.write_text(f"drm/0000:0b:00.0/vram0 {3642 * MIB}\ndrm/0000:0b:00.0/stolen 8650752\n")
    roots = [
        f"--{root}={machine / folder}"
        for root, folder in (("procfs", "proc"), ("sysfs", "sys"), ("rootfs", "root"))
    ]
    with running_daemon(tmp_path, *roots, config=OFTEN) as daemon:
        snapshot = wait_for_holders(daemon)
        check_parts(daemon, snapshot)

    server = next(one for one in snapshot["processes"] if one["pid"] == SERVER)
    beside = server["rss_bytes"] + 3403 * MIB
    # Only the others hold 239 MiB. The rest is less than 3800, the least that the clients' own figures make.
    assert server["device_bytes"]["gpu0"] == 3403 * MIB
    assert server["footprint_low_bytes"] == beside
    assert server["footprint_high_bytes"] == beside + server["device_bytes"]["gpu0.buffers"]


def test_process_of_the_demo_holds_no_more_than_is_used(tmp_path: Path) -> None:
    """gnome-shell's client counts 900 MiB of GTT while 512 are in use."""
    with running_daemon(tmp_path, "--demo", "strix-halo") as daemon:
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda one: one["processes"])
    used = {one["id"]: one["used_bytes"] for one in (*snapshot["pools"], *snapshot["shares"])}
    parts = [(place, size) for one in snapshot["processes"] for place, size in one["device_bytes"].items()]

    assert "gpu0.gtt" in dict(parts)
    assert [(place, size) for place, size in parts if size > used[place]] == []
