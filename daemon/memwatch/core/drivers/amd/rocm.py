"""Placement of ROCm's allocations (VRAM or GTT) and the memory ROCm reports as free. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from memwatch.core.drivers.amd.records import AmdGpu, AmdReading
from memwatch.core.model import Absent, Bytes, sum_figures

# Linux 6.10 puts all of an APU's allocations into System RAM (GTT). Linux 6.15 (commit 759e764f7d58) does so only
# if the GTT limit is larger than the carve-out. Before 6.10 they could only go into the carve-out.
GTT_ALWAYS_SINCE = (6, 10)
GTT_IF_LARGER_SINCE = (6, 15)


def takes_gtt(gpu: AmdGpu, is_apu: bool | None, pages_limit_bytes: Bytes) -> bool:
    """Return True if ROCm's VRAM allocations use System RAM: by the compute driver's size, else by version."""
    vram, gtt = gpu.card.vram_bytes, gpu.card.gtt_bytes
    if not is_apu:
        return False
    if not isinstance(vram, int) or not vram:
        return True
    by_bank = _by_bank(gpu.card.nodes[0].bank_bytes if gpu.card.nodes else None, vram, pages_limit_bytes)
    if by_bank is not None:
        return by_bank
    if gpu.card.release < GTT_IF_LARGER_SINCE:
        return gpu.card.release >= GTT_ALWAYS_SINCE
    return isinstance(gtt, int) and vram < gtt


def _by_bank(bank: Bytes | None, vram: int, pages_limit: Bytes) -> bool | None:
    # The compute driver reports the limit on System RAM as its memory size if it uses GTT, else the carve-out.
    if not isinstance(bank, int) or bank == vram == pages_limit:
        return None
    if bank > vram or bank == pages_limit:
        return True
    return False if bank == vram else None


def free_bytes(gpu: AmdGpu, in_gtt: bool, reading: AmdReading, ram_bytes: int, available_bytes: Bytes) -> Bytes:
    """Return the bytes that ROCm can allocate now. It uses either VRAM or GTT, never both."""
    if not in_gtt:
        return _left(gpu.vram.total_bytes, gpu.vram.used_bytes)
    limit = reading.pages_limit_bytes
    bounds = [available_bytes, _left(gpu.gtt.total_bytes, gpu.gtt.used_bytes), _kfd_left(reading, ram_bytes)]
    if isinstance(limit, int):
        bounds.append(_left(limit, sum_figures([one.gtt.used_bytes for one in reading.gpus])))
    return least(bounds)


def least(bounds: Iterable[Bytes]) -> Bytes:
    """Return the smallest bound, or the reason if one is unknown."""
    known = []
    for bound in bounds:
        if isinstance(bound, Absent):
            return bound
        known.append(bound)
    return min(known)


def _left(total: Bytes, used: Bytes) -> Bytes:
    if isinstance(total, Absent) or isinstance(used, Absent):
        return used if isinstance(used, Absent) else total
    return max(0, total - used)


def _kfd_left(reading: AmdReading, ram_bytes: int) -> int:
    # The compute driver never uses the last 1/64 of System RAM plus 1.5 GiB (kfd_mem_limit, Linux 7.2).
    most = ram_bytes - (ram_bytes >> 6) - (3 << 29)
    return max(0, most - sum(sum(gpu.held.values()) for gpu in reading.gpus))
