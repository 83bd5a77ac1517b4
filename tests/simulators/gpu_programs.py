"""Machines on which programs can use a simulated GPU by its driver's API.

with simulated_cuda(tmp_path, sample_nvml.RTX_4090) as environ:
    subprocess.run([...], env=environ)  # cuMemAlloc there changes NVML, nvidia-smi and /proc of the machine
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from simulators.amd_machine import GIB, PCI, AmdMachine, discrete, memory
from simulators.driver_sim import (
    ALL,
    ON_CARD,
    SOURCES,
    Holdings,
    Host,
    built_driver,
    held,
    held_by,
    overwrite,
    serving,
)
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Gpu, Holder, Machine
from simulators.nvml_state_file import SOURCES as NVML_SOURCES
from simulators.nvml_state_file import state_file
from support.mutable_machine import MutableMachine

KFD_GPU = 77


def installed(tmp_path: Path, library: Path, tool: Path) -> dict[str, str]:
    """Install a driver's library and its tool, and return the environment that finds them first."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / library.name).symlink_to(library)
    (folder / tool.name).symlink_to(tool)
    return {name: os.pathsep.join([str(folder), os.environ.get(name, "")]) for name in ("LD_LIBRARY_PATH", "PATH")}


@contextmanager
def simulated_cuda(
    tmp_path: Path, machine: Machine, lie: Callable[[Machine], Machine] = lambda machine: machine
) -> Iterator[dict[str, str]]:
    """Yield the environment of programs on this machine. `lie` changes NVML's state, and not that of nvidia-smi."""
    assert machine.host is not None
    gpu = machine.gpus[0]
    MutableMachine.of(machine.host, tmp_path / "host")
    host, simulator, truth = Host(tmp_path / "host"), Simulator.of(tmp_path, machine), tmp_path / "truth"
    in_ram = ALL if gpu.memory is None else ("pinned",)

    def free(holdings: Holdings) -> tuple[int, int]:
        if gpu.memory is None:
            return host.meminfo("MemFree") - held(holdings, *ALL), host.meminfo("MemTotal")
        spent = gpu.memory.used + gpu.memory.reserved + held(holdings, *ON_CARD)
        return gpu.memory.total - spent, gpu.memory.total

    def show(holdings: Holdings) -> None:
        now = machine.with_gpu(0, **_with_holdings(gpu, holdings))
        simulator.show(lie(now))
        truth.with_name("truth.new").write_text(state_file(now))
        truth.with_name("truth.new").replace(truth)
        host.show(set(holdings), held(holdings, *in_ram))

    environ = installed(tmp_path, built_driver("libcuda.so.1", "cuda.c"), NVML_SOURCES / "nvidia-smi")
    libraries = [simulator.environ["LD_LIBRARY_PATH"], environ.pop("LD_LIBRARY_PATH")]
    facts = {"name": str(gpu.name), "pci": gpu.bus_id[4:], "integrated": str(int(gpu.memory is None))}
    with serving(facts, free, show) as kernel:
        yield {
            **simulator.environ,
            **host.environ,
            **environ,
            **kernel,
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
            "NVIDIA_SMI_STATE": str(truth),
        }


def _with_holdings(gpu: Gpu, holdings: Holdings) -> Mapping[str, object]:
    """Return what changes of a GPU. Managed memory is in no process; without a card pinned memory is."""
    listed = ("context", "device") if gpu.memory else ("context", "device", "pinned")
    holders = tuple(Holder(pid, held_by(holdings, pid, *listed)) for pid in holdings)
    in_use = gpu.memory and replace(gpu.memory, used=gpu.memory.used + held(holdings, *ON_CARD))
    return {"memory": in_use, "compute": None if gpu.compute is None else (*gpu.compute, *holders)}


@contextmanager
def simulated_hip(tmp_path: Path, is_apu: bool = False) -> Iterator[dict[str, str]]:
    """Yield the environment of programs on a machine with an AMD card or an APU.

    Pinned memory is in the GTT, and on the APU all of it: its driver prefers GTT to a small carve-out.
    """
    machine, vram = AmdMachine(tmp_path / "host"), (1 if is_apu else 24) * GIB
    in_gtt = ALL if is_apu else ("pinned",)
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(memory(vram, GIB // 2, 48 * GIB, 0) if is_apu else discrete(vram=vram, used=GIB // 2))
    machine.node(1, KFD_GPU, 0x300, 48 * GIB if is_apu else vram)
    host = Host(machine.folder)

    def free(holdings: Holdings) -> tuple[int, int]:
        return (48 * GIB if is_apu else vram - GIB // 2) - held(holdings, *ON_CARD), vram

    def show(holdings: Holdings) -> None:
        on_card = 0 if is_apu else held(holdings, *ON_CARD)
        overwrite(machine.device() / "mem_info_vram_used", f"{GIB // 2 + on_card}\n")
        overwrite(machine.device() / "mem_info_gtt_used", f"{held(holdings, *in_gtt)}\n")
        for folder in (machine.folder / "sys/class/kfd/kfd/proc").glob("*"):
            if int(folder.name) not in holdings:
                shutil.rmtree(folder)
        for pid in holdings:
            machine.held(pid, KFD_GPU, held_by(holdings, pid, *ON_CARD))
        host.show(set(holdings), held(holdings, *in_gtt))

    environ = installed(tmp_path, built_driver("libamdhip64.so", "hip.c"), SOURCES / "rocm-smi")
    with serving({"name": "AMD Radeon RX 7900 XTX", "pci": PCI}, free, show) as kernel:
        yield {**host.environ, **environ, **kernel, "ROCM_SMI_PCI": PCI}
