"""Rows of the checks in PyTorch, and memory of the GPU that they use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hardware.comparison import Row, Verdict, compare_whole

MIB, GIB = 1 << 20, 1 << 30
GPU = "cuda:0"
# PyTorch's caching allocator rounds to 512 bytes, and takes 2 or 20 MiB from the driver.
ROUNDING_BYTES = 2 * MIB
Rows = Iterator[Row]


def blocks(count: int) -> Any:
    """Return a tensor of `count` MiB on the GPU."""
    return torch.empty(count * MIB, dtype=torch.uint8, device=GPU)


def settle() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def yes(step: str, label: str, found: object, note: str = "") -> Row:
    """Judge a statement."""
    return Row(step, label, "yes", "yes" if found else "no", "", None, Verdict.OK if found else Verdict.WRONG, note)


def beside(step: str, label: str, shown: object, theirs: int, tolerance: float, unit: str = "bytes") -> Row:
    """Judge a figure beside PyTorch's. One that is absent is wrong."""
    return compare_whole(step, label, shown if isinstance(shown, int) else str(shown), theirs, tolerance, unit)
