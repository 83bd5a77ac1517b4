"""Processes that only a driver lists, and orphans, in the running daemon: JSON, metrics, pages and command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import host_of, roots_arguments
from simulators import sample_nvml, sample_nvml_integrated
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Holder
from support.budget import within
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.library_process import roots_environment, run_json
from support.mutable_machine import MutableMachine
from support.waiting import Stopwatch

MIB = 1 << 20
OFTEN = '[processes]\ninterval = "1s"\n'


@contextmanager
def machine(name: str, tmp_path: Path) -> Iterator[tuple[RunningDaemon, Simulator]]:
    simulator = Simulator.of(tmp_path, sample_nvml.READY[name])
    with running_daemon(
        tmp_path, "--interval", "200ms", *simulator.roots, config=OFTEN, environ=simulator.environ
    ) as daemon:
        yield daemon, simulator


def ghosts_in(snapshot: Any) -> dict[int, dict[str, int]]:
    return {one["pid"]: one["device_bytes"] for one in snapshot["processes"] if not one["visible"]}


def wait_for_ghosts(daemon: RunningDaemon) -> Any:
    return daemon.wait_for("/api/v1/snapshot", ghosts_in)


def test_daemon_in_a_container_lists_pids_of_the_host_as_not_visible(tmp_path: Path) -> None:
    """A driver of 2021 reports them. The bytes are explained, and no output leaves them out."""
    with machine("a40-docker-470", tmp_path) as (daemon, _):
        found = wait_for_ghosts(daemon)
        owners = daemon.get("/api/v1/owners").json["owners"]
        metrics = daemon.get("/metrics").text
        pages = [daemon.get(path).text for path in ("/", "/processes", "/processes?by=unit", "/devices")]
        status, top = (memwatch(word, "--url", daemon.url).stdout for word in ("status", "top"))

    ghost = next(one for one in found["processes"] if not one["visible"])
    vram = next(one for one in found["pools"] if one["id"] == "gpu0")
    assert (ghost["pid"], ghost["device_bytes"]) == (48213, {"gpu0": 39402 * MIB})
    assert (ghost["name"], ghost["user"]) == (None, None)
    assert {ghost["absent"][key] for key in ("name", "user", "start_time", "rss_bytes")} == {"not_available"}
    assert "outside this container" in ghost["note"]
    assert found["devices"][0]["process_list"] == "partial"
    assert vram["unattributed_bytes"] == 40100 * MIB - 39402 * MIB
    assert [one["device_bytes"] for one in owners if not one["visible"]] == [{"gpu0": 39402 * MIB}]
    assert 'memwatch_processes_not_visible_bytes{where="gpu0"} 4.1315991552e+10' in metrics
    for page in pages:
        assert "not visible" in page
    for text in (status, top):
        assert "PID 48213) holds 38.5 GiB. Not visible from here: it runs outside this container" in text


def test_ended_process_that_the_driver_lists_is_shown_until_it_is_dropped(tmp_path: Path) -> None:
    """On a GB10, memory came back minutes after the container's end."""
    with machine("gb10-ended-container", tmp_path) as (daemon, simulator):
        found = wait_for_ghosts(daemon)
        simulator.show(sample_nvml_integrated.GB10_ENDED_CONTAINER.with_gpu(0, compute=()))
        after = daemon.wait_for("/api/v1/snapshot", lambda one: not ghosts_in(one))

    assert ghosts_in(found) == {3921: {"cuda0": 63931 * MIB}}
    note = next(one["note"] for one in found["processes"] if not one["visible"])
    assert "it ended and its memory was not given back" in note
    assert found["devices"][0]["process_list"] == "partial"
    assert after["devices"][0]["process_list"] == "complete"
    assert after["devices"][0]["notes"] == []


@pytest.mark.measure
def test_new_process_of_the_gpu_is_listed_within_seconds(tmp_path: Path) -> None:
    """The driver lists it after 1 s. Processes are read every 10 s otherwise.

    A list is read again after 333 times as long as it took, so other tests would delay it.
    """
    machine = MutableMachine.of("rtx-4090", tmp_path / "machine")
    simulator = Simulator.of(tmp_path, sample_nvml.RTX_4090)
    before = sample_nvml.RTX_4090.gpus[0].compute or ()
    with running_daemon(tmp_path, *machine.arguments, environ=simulator.environ) as daemon:
        daemon.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
        copy_process(machine.folder / "proc", 31337, 31400)
        simulator.show(sample_nvml.RTX_4090.with_gpu(0, compute=(*before, Holder(31400, 512 * MIB))))
        watch = Stopwatch(daemon.pid)
        found = daemon.wait_for("/api/v1/processes", lambda found: held_by(found, 31400) != {})
        took = watch.seconds

    assert held_by(found, 31400) == {"gpu0": 512 * MIB}
    within("from the driver's list to the list of processes", took, 5.0, "s")


def held_by(processes: list[Any], pid: int) -> Any:
    """Return the device memory of a listed process, empty if it is not listed."""
    return next((one["device_bytes"] for one in processes if one["pid"] == pid), {})


def copy_process(proc: Path, pid: int, new: int) -> None:
    shutil.copytree(proc / str(pid), proc / str(new), symlinks=True)
    stat = proc / str(new) / "stat"
    stat.write_text(stat.read_text().replace(str(pid), str(new)))


def test_visible_processes_are_never_marked(tmp_path: Path) -> None:
    """All that the driver lists are in /proc; none is an orphan."""
    with machine("gb10", tmp_path) as (daemon, _):
        seen = [daemon.wait_for("/api/v1/snapshot", lambda one, at=at: one["seq"] > at) for at in (2, 8, 14)]

    for snapshot in seen:
        assert all(one["visible"] and not one["orphan"] and not one["note"] for one in snapshot["processes"])


def test_orphaned_engine_is_named_as_such(tmp_path: Path) -> None:
    """104,277 MiB in the scope of a login session, with a dead parent."""
    with machine("gb10-orphaned-engine", tmp_path) as (daemon, _):
        found = daemon.wait_for("/api/v1/snapshot", lambda one: any(each["orphan"] for each in one["processes"]))
        events = daemon.get("/api/v1/events").json
        page = daemon.get("/processes").text
        status = memwatch("status", "--url", daemon.url).stdout

    (orphan,) = (one for one in found["processes"] if one["orphan"])
    assert (orphan["pid"], orphan["unit"], orphan["user"]) == (41877, "session-7.scope", "ada")
    assert orphan["device_bytes"] == {"cuda0": 104277 * MIB}
    assert [one["text"] for one in events if one["kind"] == "process.orphaned"] == [
        "VLLM::EngineCor (PID 41877) lost its parent process and holds 101.8 GiB of GPU memory"
    ]
    assert '<span class="chip chip-warn">orphan</span> its parent process has ended' in page
    assert "kill 41877" in page
    assert "VLLM::EngineCor (PID 41877) holds 101.8 GiB. Orphan: its parent process has ended" in status


def test_supervised_engine_is_no_orphan(tmp_path: Path) -> None:
    """The same process in a systemd service."""
    folder = tmp_path / "machine"
    shutil.copytree(
        Path(roots_arguments("gb10-orphaned-engine")[0].removeprefix("--procfs=")).parent, folder, symlinks=True
    )
    (folder / "proc/41877/cgroup").write_text("0::/system.slice/vllm.service\n")
    simulator = Simulator.of(tmp_path, sample_nvml_integrated.GB10_ORPHANED_ENGINE)
    arguments = [f"--{root}fs={folder / root}" for root in ("proc", "sys", "root")]
    with running_daemon(tmp_path, *arguments, config=OFTEN, environ=simulator.environ) as daemon:
        found = daemon.wait_for("/api/v1/processes", lambda one: any(each["device_bytes"] for each in one))

    assert not any(one["orphan"] for one in found)


def test_jetson_in_docker_is_a_unified_gpu(tmp_path: Path) -> None:
    """Docker hides the device tree: the kernel's memory lines, and the files of the runtime, show a Tegra."""
    host = host_of("jetson-orin-nano-docker", tmp_path)
    with running_daemon(tmp_path, *host.roots) as daemon:
        found = daemon.snapshot()
    library = run_json(
        "import json, memwatch as m; print(json.dumps([m.is_unified_memory_gpu(), m.machine().architecture]))",
        **roots_environment("jetson-orin-nano-docker"),
    )

    (device,), (share,) = found["devices"], found["shares"]
    assert (device["name"], device["architecture"]) == ("NVIDIA Tegra", "unified")
    assert device["evidence"][0].startswith("/proc/meminfo has the line NvMapMemUsed")
    assert (share["relation"], share["used_bytes"]) == ("CUDA Pool ⊂ System RAM", 3317760 << 10)
    assert found["machine"]["details"] == {"container": "Docker", "l4t": "36.4.3", "jetpack": "6"}
    assert library == [True, "unified"]


def test_amd_card_on_an_old_kernel_is_discrete(tmp_path: Path) -> None:
    """Linux 4.19 has neither board_info nor gpu_metrics, and no compute driver is loaded: the PCI id decides."""
    with running_daemon(tmp_path, *roots_arguments("rx-580-linux-4.19")) as daemon:
        found = daemon.wait_for("/api/v1/snapshot", lambda one: one["devices"])

    (device,) = found["devices"]
    assert (device["name"], device["architecture"]) == ("Radeon RX 580 Series", "discrete")
    assert device["evidence"] == ["its PCI id is 1002:67df, a discrete GPU's (Tahiti, Hawaii, Polaris 10 and 11)"]
    assert {pool["id"]: pool["kind"] for pool in found["pools"]} == {"ram": "system_ram", "gpu0": "vram"}


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("rootless-podman", "Podman, rootless", 127600748 << 10),
        ("lxc-alpine", "LXC, unprivileged", 127600748 << 10),
    ],
)
def test_container_is_shown_as_what_it_is(name: str, kind: str, size: int, tmp_path: Path) -> None:
    """System RAM is the machine's, and the container's limit a share of it, also where lxcfs hides the machine."""
    with running_daemon(tmp_path, *roots_arguments(name)) as daemon:
        found = daemon.wait_for("/api/v1/snapshot", lambda one: one["process_scan"] and one["shares"])
        page = daemon.get("/").text

    (ram,), (limit,) = found["pools"], found["shares"]
    assert found["machine"]["in_container"]
    assert found["machine"]["details"]["container"] == kind
    assert kind in page
    assert found["process_scan"]["process_list"] == "partial"
    assert ram["size_bytes"] == size
    assert (limit["relation"], limit["limit_bytes"]) == ("Container limit ⊂ System RAM", 12 << 30)
