"""Recommended settings for programs on this machine, with reasons and sources. Nothing is set here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.library.device_selection import hidden_devices
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine
from memwatch.model import Architecture, Device
from memwatch.units import size

Certainty = Literal["recommended", "try both"]
SHARING = frozenset({Architecture.UNIFIED, Architecture.CARVEOUT})

TORCH_CUDA = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
TORCH_HIP = "https://docs.pytorch.org/docs/stable/notes/hip.html"
TORCH_DATA = "https://docs.pytorch.org/docs/stable/data.html"
PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
TEGRA = "https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/index.html"
MIOPEN = "https://rocm.docs.amd.com/projects/MIOpen/en/latest/find_and_immediate.html"
JAX = "https://docs.jax.dev/en/latest/gpu_memory_allocation.html"
ISSUES = "https://github.com/"
# Below this size, dedicated GPU memory is small for a diffusion or language model in 16 bits.
LITTLE_BYTES = 8 << 30
CRITICAL_RATIO = 0.95
MAX_WORKERS = 8


class Advice(Struct, frozen=True):
    """A recommended setting. `name`: an environment variable if `environment`, else a program setting's usual name.

    `certainty`: "try both" if reports contradict each other.
    """

    name: str
    value: str
    reason: str
    sources: tuple[str, ...]
    certainty: Certainty = "recommended"
    environment: bool = False


def advise() -> tuple[Advice, ...]:
    """Return the recommended settings for this machine and the GPUs that this program sees."""
    return advice_for(with_visible_gpus(machine()), os.cpu_count() or 1)


def with_visible_gpus(here: Machine) -> Machine:
    """Return the machine without the GPUs that are hidden from this program."""
    hidden = hidden_devices(here.devices, here.program)
    return replace(here, devices=tuple(device for device in here.devices if device.id not in hidden))


def recommended_env() -> dict[str, str]:
    """Return the recommended environment variables, without contested ones. Set them before importing torch."""
    return select_environment(advise())


def select_environment(advice: tuple[Advice, ...]) -> dict[str, str]:
    return {one.name: one.value for one in advice if one.environment and one.certainty == "recommended"}


def advice_for(here: Machine, cpus: int | None) -> tuple[Advice, ...]:
    """Return the settings for a machine. `cpus`: None if not known, as for another machine."""
    found = [one for device in here.devices for rule in RULES for one in rule(device, here)]
    general = [*(_workers(here, cpus) if cpus else ()), *_leave_free(here)]
    return tuple({one.name: one for one in reversed([*found, *general])}.values())[::-1]


def _pinning(device: Device, _here: Machine) -> Iterator[Advice]:
    if device.architecture in SHARING:
        reason = (
            "pinned pages use the memory that the GPU allocates from and cannot be reclaimed; "
            "some programs are slower without them"
        )
        sources = (TEGRA, ISSUES + "Comfy-Org/ComfyUI/issues/14969", ISSUES + "Comfy-Org/ComfyUI/issues/11106")
        yield Advice("pin_memory", "False", reason, sources, "try both")
    elif device.architecture in (Architecture.DISCRETE, Architecture.COHERENT):
        reason = "copies to dedicated GPU memory are faster from pinned pages and can overlap with computation"
        yield Advice("pin_memory", "True", reason, (PINNING,))


def _nvidia_allocator(device: Device, here: Machine) -> Iterator[Advice]:
    if device.vendor.lower() != "nvidia":
        return
    name, value = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    if _is_tegra(here):
        reason = "not expandable_segments: with it, loading a model fails on Tegra boards despite free memory"
        yield Advice(
            name, "backend:native", reason, (ISSUES + "unslothai/unsloth-zoo/pull/1235",), "recommended", True
        )
    elif device.architecture in SHARING:
        reason = "less fragmentation; reports from GB10 contradict each other"
        yield Advice(name, value, reason, (TORCH_CUDA, ISSUES + "vllm-project/vllm/issues/45179"), "try both", True)
    else:
        reason = (
            "less fragmentation if sizes change from step to step; "
            "PyTorch 2.9 ignored the newer name PYTORCH_ALLOC_CONF"
        )
        yield Advice(
            name, value, reason, (TORCH_CUDA, ISSUES + "pytorch/pytorch/issues/183387"), "recommended", True
        )


def _is_tegra(here: Machine) -> bool:
    return "jetson" in str(here.name).lower() or "tegra" in str(here.name).lower()


def _amd(device: Device, _here: Machine) -> Iterator[Advice]:
    if device.vendor.lower() != "amd":
        return
    reason = "blocks above 512 MiB are not split, cached ones are freed at 80%; expandable_segments may crash"
    value = "garbage_collection_threshold:0.8,max_split_size_mb:512"
    sources = (TORCH_HIP, TORCH_CUDA, ISSUES + "pytorch/pytorch/issues/187343")
    yield Advice("PYTORCH_HIP_ALLOC_CONF", value, reason, sources, "recommended", True)
    reason = "MIOpen's search for the fastest convolution takes time and GPU memory for a workspace; FAST skips it"
    yield Advice("MIOPEN_FIND_MODE", "FAST", reason, (MIOPEN,), "recommended", True)


def _jax(device: Device, _here: Machine) -> Iterator[Advice]:
    if device.architecture in SHARING:
        reason = "JAX preallocates three quarters of the GPU's memory at startup, which here is System RAM"
        yield Advice("XLA_PYTHON_CLIENT_PREALLOCATE", "false", reason, (JAX,), "recommended", True)


def _low_vram(device: Device, here: Machine) -> Iterator[Advice]:
    own = [pool for pool in here.pools if pool.id in device.allocates_from and pool != here.ram]
    if device.architecture in SHARING:
        reason = "moving weights between GPU and System RAM copies within the same memory and frees nothing"
        yield Advice("low_vram", "False", reason, (TEGRA,))
    elif own and sum(pool.size_bytes for pool in own) < LITTLE_BYTES:
        reason = f"{device.name} has {size(sum(pool.size_bytes for pool in own))} of dedicated memory"
        yield Advice("low_vram", "True", reason, (TORCH_CUDA,))


RULES: tuple[Callable[[Device, Machine], Iterator[Advice]], ...] = (
    _pinning,
    _low_vram,
    _nvidia_allocator,
    _amd,
    _jax,
)


def _workers(here: Machine, cpus: int) -> Iterator[Advice]:
    shared = any(device.architecture in SHARING for device in here.devices)
    value = max(1, min(MAX_WORKERS, cpus // 2 if shared else cpus - 1))
    reason = f"this machine has {cpus} CPUs, and each worker process has its own copy of the memory it touches"
    if shared:
        reason += ", in the memory that the GPU allocates from"
    yield Advice("num_workers", str(value), reason, (TORCH_DATA,))


def _leave_free(here: Machine) -> Iterator[Advice]:
    if here.ram is not None:
        rest = here.ram.size_bytes - int(here.ram.size_bytes * CRITICAL_RATIO)
        reason = f"memwatchd reports {here.ram.label} as critical at {CRITICAL_RATIO:.0%} usage"
        yield Advice("leave_free", size(rest), reason, ("memwatchd: [pressure] critical_percent",))
