"""Limits of cgroups on GPU memory: simulated driver, cgroup files, and the daemon with its pages."""

from __future__ import annotations

import html
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.drivers.nvml.records import CgroupLimit
from memwatch.core.model import Absent
from simulators.nvml_child import running_child
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import GIB, MIB
from simulators.nvml_state import Limit, Machine
from simulators.sample_nvml import (
    CONTAINER_HIDDEN_PIDS,
    CONTAINER_PARTITION,
    H100_MIG,
    RTX_4090,
    RTX_4090_LIMITS,
    THREE_MAKERS_DMEM,
)
from simulators.sample_nvml_integrated import GB10
from support.client_process import call_memwatch
from support.daemon_process import running_daemon, sample_once
from support.mutable_machine import MutableMachine
from support.paths import MACHINES

FUNCTION = "nvmlDeviceGetMemoryLimits_v1"
SESSION = "/user.slice/user-1000.slice/session-4.scope"
POD = "gpu0.limit.kubepods.slice/kubepods-pod7b0e5d1c_3f2a_4c8e_9a61_5d2f0b7c8e19.slice"


def limits_of(
    folder: Path, machine: Machine, hidden: Collection[str] = ()
) -> tuple[tuple[CgroupLimit, ...] | Absent, int]:
    """Return the limits of the first GPU after three readings, and the number of calls for them."""
    simulator = Simulator.of(folder, machine, hidden)
    sysfs = MACHINES / str(machine.host) / "sys"
    with running_child(simulator, f"--sysfs={sysfs}") as child:
        readings = [child.gpu() for _ in range(3)]
    return readings[-1].limits, sum(call.function == FUNCTION for call in simulator.calls())


def once(simulator: Simulator, *roots: str) -> Any:
    return sample_once(*(roots or simulator.roots), **simulator.environ)


def limits_in(snapshot: Any) -> dict[str, Any]:
    return {share["id"]: share for share in snapshot["shares"] if share["kind"] == "gpu_limit"}


def test_driver_is_asked_about_the_cgroups_of_its_processes(tmp_path: Path) -> None:
    """One call for each cgroup that exists, and one for its parent; not again in the next readings."""
    found, calls = limits_of(tmp_path, RTX_4090_LIMITS)

    assert found == (CgroupLimit(SESSION, 8 * GIB, 16 * GIB, 12610 * MIB),)
    assert calls <= 7


@pytest.mark.parametrize(
    ("machine", "hidden", "calls"),
    [
        (RTX_4090, (), 1),
        (RTX_4090_LIMITS, (FUNCTION,), 0),
        (H100_MIG.with_gpu(0, limits=(Limit("/", 0, GIB, 0),)), (), 0),
        (GB10, (), 1),
        (THREE_MAKERS_DMEM.with_gpu(0, limits=(Limit("/", 0, GIB, 0),)), (), 0),
    ],
    ids=["refused", "old-driver", "mig", "gb10", "dmem"],
)
def test_unsupported_limits_are_asked_for_once(
    tmp_path: Path, machine: Machine, hidden: Collection[str], calls: int
) -> None:
    """With dmem the kernel has the limits, and the driver is not asked."""
    assert limits_of(tmp_path, machine, hidden) == (Absent.NOT_SUPPORTED, calls)


def test_limit_of_an_outer_cgroup_is_attributed_to_it(tmp_path: Path) -> None:
    """A cgroup without a limit reads as its nearest limited ancestor."""
    slice_limit = Limit("/user.slice", soft=0, hard=20 * GIB, used=13 * GIB)

    found, _ = limits_of(tmp_path, RTX_4090.with_gpu(0, limits=(slice_limit,)))

    assert found == (CgroupLimit("/user.slice", 0, 20 * GIB, 13 * GIB),)


def test_gb10_that_accepts_limits_has_them_in_its_cuda_pool(tmp_path: Path) -> None:
    machine = MutableMachine.of("gb10", tmp_path / "machine")
    pid = (GB10.gpus[0].compute or ())[0].pid
    cgroup = (tmp_path / f"machine/proc/{pid}/cgroup").read_text().strip().removeprefix("0::")
    (tmp_path / f"machine/sys/fs/cgroup{cgroup}").mkdir(parents=True)
    limit = Limit(cgroup, soft=0, hard=90 * GIB, used=60 * GIB)
    simulator = Simulator.of(tmp_path, GB10.with_gpu(0, limits=(limit,)))

    (share,) = limits_in(once(simulator, *machine.arguments)).values()

    assert (share["within"], share["limit_bytes"], share["used_bytes"]) == ("cuda0", 90 * GIB, 60 * GIB)


def test_dmem_partition_seen_from_inside_is_a_limit(tmp_path: Path) -> None:
    """The same without the driver's own limits: the container's cgroup files have the limit."""
    machine = MutableMachine.of("container-hidden-pids", tmp_path / "machine")
    region, group = "nvidia/0000:01:00.0/vidmem", tmp_path / "machine/sys/fs/cgroup"
    (group / "dmem.current").write_text(f"{region} {15 * GIB}\n")
    (group / "dmem.max").write_text(f"{region} {20 * GIB}\n")
    simulator = Simulator.of(tmp_path, CONTAINER_PARTITION)

    snapshot = once(simulator, *machine.arguments)

    assert [pool["id"] for pool in snapshot["pools"]] == ["ram"]
    assert list(limits_in(snapshot)) == ["gpu0.limit"]
    assert snapshot["devices"][0]["headroom_after_reclaim_bytes"] == 5 * GIB


def test_host_and_container_do_not_count_a_card_twice(tmp_path: Path) -> None:
    """Without the limit the same container has the card as its pool."""
    partition = once(Simulator.of(tmp_path / "a", CONTAINER_PARTITION))
    whole = once(Simulator.of(tmp_path / "b", CONTAINER_HIDDEN_PIDS))

    difference = whole["total"]["size_bytes"] - partition["total"]["size_bytes"]
    assert difference == 46068 * MIB
    assert "inside a GPU memory partition" in partition["machine"]["explanation"]


def test_host_with_three_makers_shows_nested_limits(tmp_path: Path) -> None:
    """Each limit within the pool of that card, on pages, in owners, in metrics, and in `memwatch status`."""
    simulator = Simulator.of(tmp_path, THREE_MAKERS_DMEM)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        for name in ("nvml", "dmem", "amdgpu", "drm", "processes"):
            daemon.wait_until_ok(name)
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: len(limits_in(found)) == 4)
        page = re.sub(r"<[^>]+>|\s+", " ", daemon.get("/devices").text)
        owners = daemon.get("/api/v1/owners?by=container").json["owners"]
        metrics = daemon.get("/metrics").text
        all_events = daemon.get("/api/v1/events").json
        status = call_memwatch("--url", daemon.url, "status", "--tree").stdout

    shares = limits_in(snapshot)
    container = f"{POD}/cri-containerd-4f1c4f1c4f1c.scope"
    assert {its_id: share["within"] for its_id, share in shares.items()} == {
        POD: "gpu0",
        container: POD,
        container.replace("gpu0", "gpu1"): "gpu1",
        "gpu2.limit.system.slice/llama-server.service": "gpu2",
    }
    assert shares[container]["peak_bytes"] == 16 * GIB - 4096
    labels = [place["label"] for place in (*snapshot["pools"], *shares.values())]
    assert labels[:4] == ["System RAM", "VRAM 0", "VRAM 1", "VRAM 2"]
    assert len(set(labels)) == len(labels)
    assert all(label in status for label in labels)
    events = [event["text"] for event in all_events]
    assert len({text.partition(":")[0] for text in events if " → " in text}) == sum(
        " → " in text for text in events
    )
    assert {one["target"] for one in snapshot["pressure"]} >= set(shares)
    (owner,) = [one for one in owners if one["name"] == "4f1c4f1c4f1c"]
    assert owner["cgroup_device_bytes"] == {"gpu1": 11 * GIB, "gpu0": 15 * GIB}
    assert owner["device_bytes"] == {"gpu0": 15 * GIB}
    assert f'memwatch_share_limit_bytes{{device="gpu0",kind="gpu_limit",share="{POD}",within="gpu0"}}' in metrics
    assert "container 4f1c4f1c4f1c limit (gpu0) ⊂ pod 7b0e5d1c-3f2a-4c8e-9a61-5d2f0b7c8e19 limit" in page
    assert "container 4f1c4f1c4f1c limit (gpu1) ⊂ VRAM 1 " in status
    assert "limit 16.0 GiB, 93.8% used; 8.0 GiB guaranteed; peak 16.0 GiB" in status


def test_partition_is_explained_on_the_devices_page_and_in_status(tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, CONTAINER_PARTITION)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_until_ok("nvml")
        daemon.wait_for("/api/v1/snapshot", limits_in)
        pages = [daemon.get(path).text for path in ("/", "/devices", "/processes", "/history")]
        backends = daemon.get("/api/v1/backends").json
        status = call_memwatch("--url", daemon.url, "status", "--tree").stdout

    assert all("GPU memory limit ⊂ NVIDIA L40S" in page for page in pages[1:2])
    assert "inside a GPU memory partition" in pages[0]
    overview = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", pages[0])))
    assert " 75.0% used " in overview
    assert "used of GPU memory limit 15.0 GiB of 20.0 GiB can be allocated on NVIDIA L40S 5.0 GiB" in overview
    assert "└─ GPU memory limit " in status
    sizes = {device["id"]: device["size_bytes"] for one in backends["backends"] for device in one["devices"]}
    assert sizes.get("gpu0", 20 * GIB) == 20 * GIB


def test_gpu_line_of_memory_stat_turns_the_notes_round(tmp_path: Path) -> None:
    """A kernel that charges GPU memory to cgroups: usage contains it, and nothing is added."""
    machine = MutableMachine.of("container-v2", tmp_path / "machine")
    stat = tmp_path / "machine/sys/fs/cgroup/memory.stat"
    before = once(Simulator.of(tmp_path / "nvml-a", RTX_4090), *machine.arguments)
    stat.write_text(stat.read_text() + f"gpu {GIB}\n")
    after = once(Simulator.of(tmp_path / "nvml-b", RTX_4090), *machine.arguments)

    (note, turned) = (snapshot["shares"][0]["note"] for snapshot in (before, after))
    assert "does not include GPU memory" in note
    assert "includes GPU memory in System RAM" in turned
    assert after["machine"]["details"]["gpu_memory_in_cgroups"] == "charged"
    assert before["shares"][0]["used_bytes"] == after["shares"][0]["used_bytes"]
