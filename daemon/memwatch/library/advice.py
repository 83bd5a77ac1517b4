"""Recommended settings for programs on this machine, with reasons and sources. Nothing is set here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.model import Architecture, Device, Pool, Thresholds
from memwatch.core.units import size
from memwatch.library.device_selection import hidden_devices
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine

Certainty = Literal["recommended", "try both", "if needed", "avoid"]
SHARING = frozenset({Architecture.UNIFIED, Architecture.CARVEOUT})

TORCH_CUDA = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
TORCH_DATA = "https://docs.pytorch.org/docs/stable/data.html"
TEGRA = "https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/index.html"
JAX = "https://docs.jax.dev/en/latest/gpu_memory_allocation.html"
ISSUES = "https://github.com/"
# NVIDIA GPUs since Ampere (compute capability 8.0) by name, as NVML has no context to ask for the capability.
AMPERE_OR_NEWER = re.compile(
    r"\b(?:A(?:2|10|10G|16|30|40|100|800)|L4|L20|L40S?|H(?:20|100|200|800)|B(?:100|200|300)|GH200|GB(?:10|200|300)|GB20B"
    r"|RTX (?:30|40|50)\d\d|RTX A\d{3,4}|RTX \d{4} Ada|RTX PRO|Orin|Thor|N1X)\b"
)
# AMD GPUs with bfloat16 in hardware: MI100 and newer, RDNA 3 and newer.
BFLOAT16_GFX = re.compile(r"gfx(?:908|90a|94\d|950|11\w{2}|12\w{2})")


class Advice(Struct, frozen=True):
    """A recommended setting. `name`: an environment variable if `environment`, else a program setting's usual name.

    `certainty`: "try both" if reports contradict each other, "if needed" if only the case in `reason` needs it,
    "avoid" for a setting that should not be made.
    """

    name: str
    value: str
    reason: str
    sources: tuple[str, ...]
    certainty: Certainty = "recommended"
    environment: bool = False


def is_ampere_or_newer(device: Device) -> bool:
    """Return True for NVIDIA GPUs that are known to be. They compute in TF32 and bfloat16."""
    return device.vendor.lower() == "nvidia" and AMPERE_OR_NEWER.search(device.name) is not None


def has_bfloat16(device: Device) -> bool:
    """Return True for GPUs that are known to compute in bfloat16."""
    return is_ampere_or_newer(device) or BFLOAT16_GFX.fullmatch(device.details.get("gfx", "")) is not None


# Recommended settings of PyTorch's DataLoader, by the machine's CPUs and memory and by where copies go.

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


# Recommended settings for AMD's GPUs: PyTorch's allocator, MIOpen, and the HSA runtime.

TORCH_HIP = "https://docs.pytorch.org/docs/stable/notes/hip.html"
MIOPEN = "https://rocm.docs.amd.com/projects/MIOpen/en/latest/find_and_immediate.html"
MIOPEN_DB = "https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/tuningdb.html"
HIP_UNIFIED = (
    "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/hip_runtime_api/memory_management/unified_memory.html"
)
ROCR = "https://rocm.docs.amd.com/projects/ROCR-Runtime/en/docs-6.2.1/api-reference/environment_variables.html"
# GPUs that can retry a page fault, as a setting of the process: MI200, MI300.
XNACK_GFX = frozenset({"gfx90a", "gfx942"})
TF32_GFX = "gfx942"


def advise_amd(device: Device) -> Iterator[Advice]:
    if device.vendor.lower() != "amd":
        return
    gfx = device.details.get("gfx", "")
    yield from _allocator()
    yield from _miopen()
    yield from _hsa(device, gfx)
    if gfx == TF32_GFX:
        reason = (
            "float32 matrix products on the matrix cores in TF32: faster, with 10 of 23 bits of mantissa; "
            "together with torch.backends.cuda.matmul.allow_tf32"
        )
        sources = (ISSUES + "ROCm/pytorch/pull/1838",)
        yield Advice("HIPBLASLT_ALLOW_TF32", "1", reason, sources, "if needed", True)


def _allocator() -> Iterator[Advice]:
    reason = "blocks above 512 MiB are not split, cached ones are freed at 80%; expandable_segments may crash"
    value = "garbage_collection_threshold:0.8,max_split_size_mb:512"
    sources = (TORCH_HIP, TORCH_CUDA, ISSUES + "pytorch/pytorch/issues/187343")
    yield Advice("PYTORCH_HIP_ALLOC_CONF", value, reason, sources, "recommended", True)


def _miopen() -> Iterator[Advice]:
    reason = "MIOpen's search for the fastest convolution takes time and GPU memory for a workspace; FAST skips it"
    yield Advice("MIOPEN_FIND_MODE", "FAST", reason, (MIOPEN,), "recommended", True)
    reason = (
        "MIOpen keeps tuning results in ~/.config/miopen: set a local folder if that is lost with a container, "
        "or on a network file system, where programs wait for each other's locks"
    )
    yield Advice("MIOPEN_USER_DB_PATH", "/var/tmp/miopen", reason, (MIOPEN_DB,), "if needed", True)  # noqa: S108


def _hsa(device: Device, gfx: str) -> Iterator[Advice]:
    if gfx in XNACK_GFX:
        reason = (
            "the GPU retries page faults, so that kernels can use memory of malloc, and managed memory beyond its "
            "size; libraries built without xnack do not run with it, and PyTorch does not need it"
        )
        yield Advice("HSA_XNACK", "1", reason, (HIP_UNIFIED,), "if needed", True)
    if device.architecture in SHARING:
        reason = "copies use the shaders in place of the DMA engine: for APUs on which copies hang or corrupt data"
        sources = (ROCR, ISSUES + "lamikr/rocm_sdk_builder/issues/257")
        yield Advice("HSA_ENABLE_SDMA", "0", reason, sources, "if needed", True)
    if gfx and not gfx.startswith("gfx9"):
        reason = (
            f"it makes ROCm load kernels of another GPU than this {gfx}, which hang or compute wrong results where "
            "instructions differ; only for a GPU that ROCm does not support, with a version of the same family"
        )
        sources = (ISSUES + "ROCm/TheRock/issues/1719", ISSUES + "ROCm/ROCm/issues/3065")
        yield Advice("HSA_OVERRIDE_GFX_VERSION", "unset", reason, sources, "avoid", True)


# Below this size, dedicated GPU memory is small for a diffusion or language model in 16 bits.
LITTLE_BYTES = 8 << 30
CRITICAL_RATIO = Thresholds().critical


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
