"""Every simulated NVIDIA machine, read once: each byte of its memory is counted in exactly one pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.daemon_process import sample_once

MIB = 1 << 20
GB10 = sample_nvml.READY["gb10"]

# Architecture, and the size of every pool in MiB: facts of the machines, independent of memwatchd.
SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "rtx-4090": ("discrete", {"gpu0": 24564}),
    "8x-h100": ("discrete", {f"gpu{at}": 81559 for at in range(8)}),
    "h100-mig": ("discrete", {"gpu0": 81559}),
    "h200-mig": ("discrete", {"gpu0": 143771}),
    "gb10": ("unified", {}),
    "gb10-total-zero": ("unified", {}),
    "gb10-shim": ("unified", {}),
    "n1x-carveout": ("carveout", {"gpu0": 8128}),
    "thor": ("unified", {}),
    "jetson-orin-nano": ("unified", {}),
    "jetson-agx-orin-jp6": ("unified", {}),
    "jetson-agx-orin-jp7.2": ("unified", {}),
    "gh200-numa": ("coherent", {"gpu0": 97280}),
    "gh200-cdmm": ("discrete", {"gpu0": 97871}),
    "wsl2": ("discrete", {"gpu0": 12282}),
    "wsl2-empty-lists": ("discrete", {"gpu0": 12282}),
    "vgpu-guest": ("discrete", {"gpu0": 12288}),
    "container-hidden-pids": ("discrete", {"gpu0": 46068}),
    "container-hidden-pids-partition": ("discrete", {}),
    "rtx-4090-limits": ("discrete", {"gpu0": 24564}),
    "a40-docker-470": ("discrete", {"gpu0": 45634}),
    "gb10-ended-container": ("unified", {}),
    "gb10-orphaned-engine": ("unified", {}),
}


def once(simulator: Simulator) -> Any:
    return sample_once(*simulator.roots, **simulator.environ)


def mem_total(simulator: Simulator) -> int:
    procfs = Path(simulator.roots[0].removeprefix("--procfs="))
    return int((procfs / "meminfo").read_text().split()[1]) << 10


def test_every_simulated_machine_has_expected_sizes() -> None:
    assert SIZES.keys() | {"three-makers-dmem"} == sample_nvml.READY.keys()


@pytest.mark.parametrize("name", SIZES)
def test_pools_add_up_to_the_machines_memory(name: str, tmp_path: Path) -> None:
    """System RAM and device memory, each byte once; on unified machines System RAM alone."""
    simulator = Simulator.of(tmp_path, sample_nvml.READY[name])
    architecture, gpus = SIZES[name]

    snapshot = once(simulator)

    total = mem_total(simulator)
    outside = 0 if architecture == "coherent" else sum(gpus.values()) * MIB
    sizes = {pool["id"]: pool["size_bytes"] for pool in snapshot["pools"]}
    assert snapshot["machine"]["architecture"] == architecture
    assert sizes == {"ram": total + outside - sum(gpus.values()) * MIB} | {
        at: size * MIB for at, size in gpus.items()
    }
    assert snapshot["total"]["size_bytes"] == total + outside
    assert next(one["state"] for one in snapshot["collectors"] if one["name"] == "nvml") == "ok"
    for pool in snapshot["pools"]:
        assert pool["used_bytes"] + pool["available_bytes"] == pool["size_bytes"]


def test_gb10_has_the_cuda_pool_as_a_share_of_system_ram(tmp_path: Path) -> None:
    """The 63,931 MiB in the lists are the CUDA Pool, within System RAM; there is no second pool."""
    simulator = Simulator.of(tmp_path, GB10)

    snapshot = once(simulator)

    (share,) = snapshot["shares"]
    listed = {
        holder.pid: holder.used for gpu in GB10.gpus for holder in (*(gpu.compute or ()), *(gpu.graphics or ()))
    }
    assert share["relation"] == "CUDA Pool ⊂ System RAM"
    assert share["used_bytes"] == sum(used for used in listed.values() if used)
    assert snapshot["pools"][0]["size_bytes"] == 130663165952
    assert {process["pid"] for process in snapshot["processes"] if process["device_bytes"]} <= listed.keys()


def test_mig_instances_are_counted_once(tmp_path: Path) -> None:
    """Two MIG devices on GPU instance 2 share 16,925 MiB of 71,424."""
    snapshot = once(Simulator.of(tmp_path, sample_nvml.READY["h200-mig"]))

    shares = {share["id"]: share for share in snapshot["shares"]}
    assert shares["gpu0.mig2"]["used_bytes"] == 16925 * MIB
    assert shares["gpu0.mig2"]["limit_bytes"] == 71424 * MIB
    assert sum(share["limit_bytes"] for share in shares.values()) == 137472 * MIB
