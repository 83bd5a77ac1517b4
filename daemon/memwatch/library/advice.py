"""Recommended settings for programs on this machine, with reasons and sources. Nothing is set here."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.model import Device
from memwatch.core.units import size
from memwatch.library.advice_amd import advise_amd
from memwatch.library.advice_loading import advise_copies, advise_workers
from memwatch.library.advice_record import (
    ISSUES,
    JAX,
    SHARING,
    TEGRA,
    TORCH_CUDA,
    Advice,
    is_ampere_or_newer,
)
from memwatch.library.device_selection import hidden_devices
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine

# Below this size, dedicated GPU memory is small for a diffusion or language model in 16 bits.
LITTLE_BYTES = 8 << 30
CRITICAL_RATIO = 0.95


def advise() -> tuple[Advice, ...]:
    """Return the recommended settings for this machine and the GPUs that this program sees."""
    return advice_for(with_visible_gpus(machine()))


def with_visible_gpus(here: Machine) -> Machine:
    """Return the machine without the GPUs that are hidden from this program."""
    hidden = hidden_devices(here.devices, here.program)
    return replace(here, devices=tuple(device for device in here.devices if device.id not in hidden))


def recommended_env() -> dict[str, str]:
    """Return the recommended environment variables, without contested ones. Set them before importing torch."""
    return select_environment(advise())


def select_environment(advice: tuple[Advice, ...]) -> dict[str, str]:
    return {one.name: one.value for one in advice if one.environment and one.certainty == "recommended"}


def advice_for(here: Machine) -> tuple[Advice, ...]:
    """Return the settings for a machine. Without the number of its CPUs, that of workers is not among them."""
    found = [one for device in here.devices for one in _advise_device(device, here)]
    cpus = here.cpus if isinstance(here.cpus, int) else None
    general = [*advise_workers(here, cpus), *_leave_free(here)]
    return tuple({one.name: one for one in reversed([*found, *general])}.values())[::-1]


def _advise_device(device: Device, here: Machine) -> Iterator[Advice]:
    yield from advise_copies(device)
    yield from _low_vram(device, here)
    yield from _nvidia_allocator(device, here)
    yield from _tf32(device)
    yield from advise_amd(device)
    yield from _jax(device)


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


def _tf32(device: Device) -> Iterator[Advice]:
    if is_ampere_or_newer(device):
        reason = (
            "float32 matrix products on the tensor cores: several times as fast, with 10 of 23 bits of mantissa; "
            "convolutions do so by default, and bfloat16 or float16 do not need it"
        )
        yield Advice("torch.backends.cuda.matmul.allow_tf32", "True", reason, (TORCH_CUDA,), "if needed")


def _jax(device: Device) -> Iterator[Advice]:
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


def _leave_free(here: Machine) -> Iterator[Advice]:
    if here.ram is not None:
        rest = here.ram.size_bytes - int(here.ram.size_bytes * CRITICAL_RATIO)
        reason = f"memwatchd reports {here.ram.label} as critical above {CRITICAL_RATIO:.0%} use"
        yield Advice("leave_free", size(rest), reason, ("memwatchd: [pressure] critical_percent",))
