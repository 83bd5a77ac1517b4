"""Recommended settings of PyTorch's DataLoader, by the machine's CPUs and memory and by where copies go."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.core.model import Architecture, Device, Pool
from memwatch.core.units import size
from memwatch.library.advice_record import ISSUES, SHARING, TEGRA, TORCH_DATA, Advice
from memwatch.library.machine_record import Machine

PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
MAX_WORKERS = 8
# Room for a worker: what it loads, two batches, and the objects of the dataset that it copies by touching them.
# An idle one has 18 MiB that it shares with no process (PyTorch 2.14 on Linux).
WORKER_BYTES = 1 << 30
# Below this available System RAM a worker keeps only one batch ready.
LITTLE_RAM_BYTES = 8 << 30
COPIES = frozenset({Architecture.DISCRETE, Architecture.COHERENT})


def advise_copies(device: Device) -> Iterator[Advice]:
    """Yield settings of the copies to a GPU."""
    if device.architecture in SHARING:
        reason = (
            "pinned pages use the memory that the GPU allocates from and cannot be reclaimed; "
            "some programs are slower without them"
        )
        sources = (TEGRA, ISSUES + "Comfy-Org/ComfyUI/issues/14969", ISSUES + "Comfy-Org/ComfyUI/issues/11106")
        yield Advice("pin_memory", "False", reason, sources, "try both")
        reason = "without pinned memory a copy does not overlap with computation; with pin_memory=True, try True"
        yield Advice("non_blocking", "False", reason, (PINNING,), "try both")
    elif device.architecture in COPIES:
        reason = "copies to dedicated GPU memory are faster from pinned pages and can overlap with computation"
        yield Advice("pin_memory", "True", reason, (PINNING,))
        reason = "the CPU goes on during a copy from pinned memory; synchronize before it reads a copy from the GPU"
        yield Advice("non_blocking", "True", reason, (PINNING,))


def advise_workers(here: Machine, cpus: int | None) -> Iterator[Advice]:
    """Yield settings of the worker processes. `cpus`: None if not known; then their number is not either."""
    shared = any(device.architecture in SHARING for device in here.devices)
    where = ", in the memory that the GPU allocates from" if shared else ""
    number = _count_workers(here.ram, cpus, shared, where) if cpus else None
    if number is not None:
        yield number
    if here.devices and (number is None or number.value != "0"):  # PyTorch refuses them without workers
        yield _keep_workers(shared)
        yield _prefetch(here.ram, where)


def _count_workers(ram: Pool | None, cpus: int, shared: bool, where: str) -> Advice:
    value = max(1, min(MAX_WORKERS, cpus // 2 if shared else cpus - 1))
    reason = (
        f"this machine has {cpus} CPUs, and each worker process has its own copy of the memory it touches{where}"
    )
    available = None if ram is None else ram.available_bytes
    if isinstance(available, int) and available // WORKER_BYTES < value:
        value = available // WORKER_BYTES
        reason += f"; {size(available)} of System RAM are available, and each should have {size(WORKER_BYTES)}"
        reason += "" if value else ": 0 loads data in the training process"
    return Advice("num_workers", str(value), reason, (TORCH_DATA,))


def _keep_workers(shared: bool) -> Advice:
    if shared:
        reason = (
            "the idle workers of every loader keep memory that the GPU could use; with False they start again "
            "in each epoch, which may take seconds"
        )
        return Advice("persistent_workers", "False", reason, (TORCH_DATA,), "try both")
    reason = "workers start once and not in each epoch; those of every loader keep their memory in between"
    return Advice("persistent_workers", "True", reason, (TORCH_DATA,))


def _prefetch(ram: Pool | None, where: str) -> Advice:
    available = None if ram is None else ram.available_bytes
    value = 1 if isinstance(available, int) and available < LITTLE_RAM_BYTES else 2
    reason = f"each worker keeps that many batches ready{where}; more only if the GPU waits for data"
    return Advice("prefetch_factor", str(value), reason, (TORCH_DATA,))
