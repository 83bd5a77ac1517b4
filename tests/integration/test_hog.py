"""A program that fills its memory limit is reported as critical before the kernel kills it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.daemon_process import RunningDaemon, running_daemon
from support.memory_cgroup import HOG, memory_cgroup
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS, wait_until

MIB = 1 << 20
LIMIT = 128 * MIB
MIB_PER_SECOND = 16
CONFIG = '[collectors.cgroup]\nscope = "cgroup"\n'


def limit_of(snapshot: Any) -> int | None:
    return next((share["limit_bytes"] for share in snapshot["shares"] if share["id"] == "cgroup"), None)


def events(daemon: RunningDaemon, kind: str, target: str | None = None) -> list[Any]:
    found = daemon.get("/api/v1/events").json
    return [event for event in found if event["kind"] == kind and event["target"] == target]


@pytest.mark.host
def test_hog_is_critical_before_the_oom_kill(tmp_path: Path) -> None:
    """Limit 128 MiB, growth 16 MiB/s: the daemon in the cgroup reports critical, then the OOM kill."""
    with memory_cgroup(LIMIT) as cgroup:
        if cgroup is None:
            check_simulated_hog(tmp_path)
            return
        # A forked daemon holds pages of the demos of other tests, and would be killed in place of the hog.
        with running_daemon(tmp_path, config=CONFIG, watches_this_machine=True, installed=True) as daemon:
            cgroup.add(daemon.pid)
            daemon.wait_for("/api/v1/snapshot", lambda found: limit_of(found) == LIMIT)
            hog = cgroup.run(HOG, str(MIB_PER_SECOND), "1024")
            hog.wait(MAX_WAIT_SECONDS)
            killed_at = time.time()
            daemon.wait_for("/api/v1/events", lambda found: any(event["kind"] == "oom_kill" for event in found))
            if any((one["name"], one["state"]) == ("kmsg", "ok") for one in daemon.get("/api/v1/collectors").json):
                # Other programs of this machine may be killed as well.
                words = f"({hog.pid}), ", f"/{cgroup.folder.name} reached its limit of 128.0 MiB)"
                wait_until(
                    lambda: any(all(word in one["text"] for word in words) for one in events(daemon, "oom_kill"))
                )
            critical = [one for one in events(daemon, "level", "cgroup") if "→ critical" in one["text"]]

    assert hog.returncode == -9
    assert critical, "never critical"
    assert critical[-1]["unix"] < killed_at


def test_growing_cgroup_files_become_critical(tmp_path: Path) -> None:
    """Without permission to set a limit: the files of a container, written as a hog would change them."""
    check_simulated_hog(tmp_path)


def check_simulated_hog(tmp_path: Path) -> None:
    """Grow the usage of a recorded container from a third of its limit to all of it in five seconds."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "container-v2", machine, symlinks=True)
    limit_file = next(machine.glob("sys/fs/cgroup/**/memory.max"))
    folder, limit = limit_file.parent, 1024 * MIB
    limit_file.write_text(f"{limit}\n")
    full_at: list[float] = []

    def grow() -> None:
        for step in range(101):
            used = int(limit * (0.33 + 0.67 * step / 100))
            usage.write(f"{used:010}\n".encode())
            usage.seek(0)
            time.sleep(0.05)
        full_at.append(time.time())

    (folder / "memory.stat").write_text("inactive_file 0\nactive_file 0\nslab_reclaimable 0\n")
    roots = [f"--procfs={machine / 'proc'}", f"--sysfs={machine / 'sys'}", f"--rootfs={machine / 'root'}"]
    with running_daemon(tmp_path, *roots, config=CONFIG) as daemon:
        daemon.wait_for("/api/v1/snapshot", lambda found: limit_of(found) == limit)
        with (folder / "memory.current").open("r+b", buffering=0) as usage:
            growing = threading.Thread(target=grow)
            growing.start()
            growing.join()
        critical = [one for one in events(daemon, "level", "cgroup") if "→ critical" in one["text"]]

    assert critical
    assert critical[-1]["unix"] < full_at[0]
