"""Recommended settings for AMD's GPUs: PyTorch's allocator, MIOpen, and the HSA runtime."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.core.model import Device
from memwatch.library.advice_record import ISSUES, SHARING, TORCH_CUDA, Advice

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
