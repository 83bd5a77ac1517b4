"""Record of a recommended setting, and the sources that several rules cite."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from memwatch.core.model import Architecture, Device

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
