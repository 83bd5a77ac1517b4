"""Intel GPUs and GPUs of systems on a chip through the running daemon."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from simulators.drm_machine import DrmMachine, fdinfo
from support.daemon_process import running_daemon
from support.device_open_watch import put_devices, watching
from support.machine_folders import NAMES
from support.paths import MACHINES

MIB, GIB = 1 << 20, 1 << 30
IGPU = "0000:00:02.0"
OURS = ("arc-a770", "arc-a770-i915", "lunar-lake", "n100", "rk3588-panthor", "snapdragon-msm")
WITH_GPU = [name for name in NAMES if (MACHINES / name / "sys/class/drm").is_dir()]
# Audit hook that runs before any daemon code and records every file that is opened.
RECORDER = """
import os, sys
seen = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def hook(event, arguments):
    if event == "open":
        os.write(seen, os.fsencode(str(arguments[0])) + b"\\n")
sys.addaudithook(hook)
"""
DEVICE = re.compile(r"^/dev/(?:dri|accel|kfd|nvidia)|(?:^|/)\d+/fd/\d+$")


def copy_of(name: str, folder: Path) -> DrmMachine:
    shutil.copytree(MACHINES / name, folder, symlinks=True)
    return DrmMachine(folder)


def arguments(machine: DrmMachine) -> list[str]:
    roots = machine.roots
    return [f"--procfs={roots.procfs}", f"--sysfs={roots.sysfs}", f"--rootfs={roots.rootfs}"]


def has_clients(machine: DrmMachine) -> bool:
    links = (os.readlink(link) for link in machine.roots.procfs.glob("[0-9]*/fd/*"))
    return any("/dev/dri/" in link for link in links)


def used(shares: Any, share: str = "gpu0.buffers") -> Any:
    return next((one["used_bytes"] for one in shares if one["id"] == share), None)


@pytest.mark.parametrize(
    ("name", "from_start"),
    [
        *(pytest.param(name, False, id=name) for name in WITH_GPU),
        pytest.param(WITH_GPU[-1], True, id=f"{WITH_GPU[-1]} from its start"),
    ],
)
def test_no_device_file_is_opened(name: str, from_start: bool, tmp_path: Path) -> None:
    """Opening /dev/dri wakes a sleeping GPU, and opening /dev/kfd makes the process a client.

    `from_start`: also while the modules are imported.
    """
    machine = copy_of(name, tmp_path / "host")
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    seen = tmp_path / "seen"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {"SEEN": str(seen), **({"PYTHONPATH": path} if from_start else {})}
    put_devices(machine.roots.rootfs)
    with watching(machine.roots.rootfs) as opens:
        with running_daemon(
            tmp_path,
            "--interval",
            "200ms",
            *arguments(machine),
            environ=environ,
            prelude="" if from_start else RECORDER,
        ) as daemon:
            daemon.wait_until_ok("drm")
            daemon.get("/api/v1/backends")
            time.sleep(0.5)
        count = opens()
        (machine.roots.rootfs / "dev/kfd").read_bytes()
        assert opens() == 1  # the watch works

    assert count == 0
    opened = seen.read_text().splitlines()
    assert any(path.endswith("/meminfo") for path in opened)
    assert any(re.fullmatch(r"\d+/fdinfo/\d+", path) for path in opened) == has_clients(machine)
    assert [path for path in opened if DEVICE.search(path)] == []


def test_new_and_closed_client_is_shown_within_two_periods(tmp_path: Path) -> None:
    """Its process is listed even if its own memory is small."""
    machine = copy_of("n100", tmp_path / "host")
    config = '[processes]\ntop = 1\ninterval = "1s"\n'
    with running_daemon(tmp_path, "--interval", "200ms", *arguments(machine), config=config) as daemon:
        daemon.wait_until_ok("drm")
        before = used(daemon.get("/api/v1/shares").json)
        machine.process(7000, "vainfo")
        (machine.roots.procfs / "7000/stat").write_text(
            (machine.roots.procfs / "1/stat").read_text().replace("1 (systemd)", "7000 (vainfo)")
        )
        machine.opens(7000, 4, fdinfo("i915", 77, IGPU, system0="100 MiB"))
        shown_at = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/shares", lambda shares: used(shares) == before + 100 * MIB)
        appeared_ticks = daemon.snapshot()["seq"] - shown_at
        listed = daemon.wait_for("/api/v1/processes", lambda found: any(one["pid"] == 7000 for one in found))
        machine.ends(7000)
        ended_at = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/shares", lambda shares: used(shares) == before)
        gone_ticks = daemon.snapshot()["seq"] - ended_at

    assert max(appeared_ticks, gone_ticks) < 53  # ten seconds and a half
    (process,) = (one for one in listed if one["pid"] == 7000)
    assert process["device_bytes"] == {"gpu0.buffers": 100 * MIB}
    assert process["footprint_basis"] == "rss + device, perhaps overlapping"
    assert process["footprint_low_bytes"] == max(process["rss_bytes"], 100 * MIB)
    assert process["footprint_high_bytes"] == process["rss_bytes"] + 100 * MIB


def test_hanging_driver_makes_only_gpu_values_stale(tmp_path: Path) -> None:
    """Reading fdinfo waits for driver locks: the buffers turn stale, System RAM keeps updating."""
    machine = copy_of("n100", tmp_path / "host")
    with running_daemon(tmp_path, "--interval", "200ms", *arguments(machine)) as daemon:
        daemon.wait_until_ok("drm")
        stuck = machine.roots.procfs / "6120/fdinfo/5"
        stuck.unlink()
        os.mkfifo(stuck)
        shares = daemon.wait_for(
            "/api/v1/shares", lambda found: any(one["absent"].get("used_bytes") == "stale" for one in found)
        )
        snapshot = daemon.snapshot()
        # Open the FIFO for writing so that the blocked thread of the daemon can end.
        os.close(os.open(stuck, os.O_WRONLY))

    (share,) = shares
    assert share["used_bytes"] is None
    ram = snapshot["pools"][0]
    assert ram["used_bytes"] is not None
    assert snapshot["devices"][0]["state"] == "stalled"
    assert snapshot["devices"][0]["process_list"] is None


@pytest.mark.parametrize("name", OURS)
def test_no_byte_is_counted_twice(name: str, tmp_path: Path) -> None:
    """Pools add up to the machine's memory. Buffers are a part of System RAM."""
    machine = DrmMachine(MACHINES / name)
    with running_daemon(tmp_path, "--interval", "200ms", *arguments(machine)) as daemon:
        daemon.wait_until_ok("drm")
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: found["devices"])

    pools, shares = snapshot["pools"], snapshot["shares"]
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in pools)
    for pool in pools:
        assert not pool["contents"] or sum(pool["contents"].values()) == pool["size_bytes"]
        assert not pool["overlap"]
    for share in shares:
        assert share["within"] == "ram"
        assert share["used_bytes"] is None or share["used_bytes"] <= pools[0]["used_bytes"]
