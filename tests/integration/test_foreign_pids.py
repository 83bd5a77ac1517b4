"""A daemon in a container whose driver lists PIDs of the host: they are no processes of the container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Holder
from support.container_host import OFTEN
from support.daemon_process import RunningDaemon, running_daemon
from support.mutable_machine import MutableMachine
from support.process_folders import add_process, stat_line, statm_line

MIB = 1 << 20
XORG, SERVER = 1600, 1700


@contextmanager
def container(tmp_path: Path, *holders: Holder, **opened: str) -> Iterator[RunningDaemon]:
    """Run the daemon in a container with two processes. `opened`: the file that each of them has open."""
    machine = MutableMachine.of("a40-docker-470", tmp_path / "machine")
    for pid, name in ((XORG, "Xorg"), (SERVER, "python3")):
        procfs = machine.folder / "proc"
        add_process(procfs, stat_line(pid, name, rss=9000), statm=statm_line(9000), cgroup=b"0::/\n")
        (procfs / f"{pid}/fd").mkdir()
        (procfs / f"{pid}/fd/4").symlink_to(opened[name])
    simulator = Simulator.of(tmp_path, sample_nvml.A40_DOCKER_470.with_gpu(0, compute=holders))
    with running_daemon(
        tmp_path, "--interval", "200ms", *machine.arguments, config=OFTEN, environ=simulator.environ
    ) as daemon:
        yield daemon


def held_in(snapshot: Any) -> dict[tuple[int, bool], int]:
    """Return the bytes of the GPU by PID, and if that is a process that is visible here."""
    return {
        (one["pid"], one["visible"]): one["device_bytes"]["gpu0"]
        for one in snapshot["processes"]
        if "gpu0" in one["device_bytes"]
    }


def test_memory_of_the_host_is_not_that_of_a_process_with_the_same_pid(tmp_path: Path) -> None:
    """Xorg here has no GPU open, so 1600 is another process: all of the list is the host's, the server included."""
    holders = Holder(XORG, 20000 * MIB), Holder(SERVER, 5000 * MIB)
    with container(tmp_path, *holders, Xorg="/dev/null", python3="/dev/nvidia0") as daemon:
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda one: len(held_in(one)) == 2 and not seen(one))

    assert held_in(snapshot) == {(XORG, False): 20000 * MIB, (SERVER, False): 5000 * MIB}
    notes = [one["note"] for one in snapshot["processes"] if not one["visible"]]
    assert all("the process with that PID here is another one" in note for note in notes)
    visible = {one["pid"]: one["device_bytes"] for one in snapshot["processes"] if one["visible"]}
    assert (visible[XORG], visible[SERVER]) == ({}, {})
    assert snapshot["devices"][0]["process_list"] == "partial"


def seen(snapshot: Any) -> list[int]:
    return [pid for pid, visible in held_in(snapshot) if visible]


def test_process_with_an_open_gpu_keeps_its_memory(tmp_path: Path) -> None:
    """A driver that lists PIDs of the container's namespace."""
    with container(tmp_path, Holder(SERVER, 5000 * MIB), Xorg="/dev/null", python3="/dev/nvidia0") as daemon:
        snapshot = daemon.wait_for("/api/v1/snapshot", held_in)
        later = daemon.wait_for("/api/v1/snapshot", lambda one: one["seq"] >= snapshot["seq"] + 20)

    assert held_in(snapshot) == held_in(later) == {(SERVER, True): 5000 * MIB}
