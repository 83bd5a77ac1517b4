"""Validation of a driver's values: reject implausible ones, merge duplicate process rows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory, GpuProcess
from memwatch.core.model import MAX_BYTES, Absent, Bytes, known_or

T = TypeVar("T")
Row = tuple[int, int, int]  # pid, bytes, GPU instance, as in a process list

NVML_VALUE_NOT_AVAILABLE = 0xFFFFFFFF_FFFFFFFF
NO_INSTANCE = 0xFFFFFFFF
# Parts of a GPU's memory may differ from its total by this much, as they are not counted at the same instant.
MIN_GAP_BYTES, MIN_GAP_RATIO = 64 << 20, 0.02


class ImplausibleAnswerError(ValueError):
    """An implausible value. `what` is the key under which it is counted."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Limits(Struct, frozen=True):
    """Upper bounds of valid values. `system_bytes` is MemTotal, if known."""

    pid_max: int
    system_bytes: int | None = None


def plausible_memory(memory: GpuMemory) -> GpuMemory:
    """Return `memory`, with a part that the others refute replaced by what they leave of the total.

    Raises `ImplausibleAnswerError` if the total exceeds that of any GPU, or more than one part exceeds the total.
    """
    total = memory.total_bytes
    reserved = known_or(memory.reserved_bytes, 0)
    parts = {"used_bytes": memory.used_bytes, "free_bytes": memory.free_bytes, "reserved_bytes": reserved}
    too_large = [name for name, size in parts.items() if size > total]
    if total > MAX_BYTES or len(too_large) > 1:
        raise ImplausibleAnswerError("memory")
    if too_large == ["reserved_bytes"]:
        return replace(memory, reserved_bytes=Absent.INCONSISTENT, is_estimated=True)
    if too_large:
        left = total - sum(size for name, size in parts.items() if name not in too_large)
        return replace(memory, **{too_large[0]: max(0, left)}, is_estimated=True)
    if abs(total - sum(parts.values())) <= max(MIN_GAP_BYTES, MIN_GAP_RATIO * total):
        return memory
    # One of them is wrong: the smaller figure of free memory is the safe one.
    left = max(0, total - memory.used_bytes - reserved)
    return replace(memory, free_bytes=min(memory.free_bytes, left), is_estimated=True)


def process_capacity(memory: GpuMemory | Absent, bar1: Bytes, limits: Limits) -> int | None:
    """Return the upper bound of one process's memory in bytes, or None if it is unknown.

    The driver of a GPU without BAR1 also charges system memory to processes.
    """
    if isinstance(memory, Absent) and memory is not Absent.NOT_SUPPORTED:
        return None
    own = 0 if isinstance(memory, Absent) else memory.total_bytes
    if own and bar1 is not Absent.NOT_SUPPORTED:
        return own
    return max(own, limits.system_bytes) if limits.system_bytes else None


def merge_rows(rows: Iterable[Row], limits: Limits, capacity: int | None) -> tuple[GpuProcess, ...]:
    """Return each process once (under MIG, once per instance), with the maximum over its rows.

    Several lists contain the same memory of a process, so rows are never added. One impossible row invalidates all
    of them: drivers 535.54 to 535.98 shift every record after the first.
    """
    greatest: dict[tuple[int, int], int] = {}
    most = MAX_BYTES if capacity is None else capacity
    for pid, used, instance in rows:
        if not 0 < pid <= limits.pid_max or most < used != NVML_VALUE_NOT_AVAILABLE:
            raise ImplausibleAnswerError("process_list")
        key = pid, instance
        known = greatest.get(key, NVML_VALUE_NOT_AVAILABLE)
        if known == NVML_VALUE_NOT_AVAILABLE or known < used != NVML_VALUE_NOT_AVAILABLE:
            greatest[key] = used
    return tuple(
        [
            GpuProcess(
                pid,
                Absent.NOT_AVAILABLE if used == NVML_VALUE_NOT_AVAILABLE else used,
                None if instance == NO_INSTANCE else instance,
            )
            for (pid, instance), used in greatest.items()
        ]
    )


def join_lists(lists: Sequence[list[Row] | Absent]) -> list[Row] | Absent:
    """Concatenate the rows of all supported lists. If one failed, processes are missing: return its reason."""
    rows: list[Row] = []
    supported = [one for one in lists if one is not Absent.NOT_SUPPORTED]
    for one in supported:
        if isinstance(one, Absent):
            return one
        rows += one
    return rows if supported else Absent.NOT_SUPPORTED


def by_instance(devices: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """Group MIG devices by the GPU instance whose memory they share, in the driver's order."""
    groups: dict[int, list[T]] = {}
    for instance, device in devices:
        groups.setdefault(instance, []).append(device)
    return groups


def capacity_of_instances(instances: Sequence[GpuInstance]) -> int | None:
    """Return the total memory of all GPU instances, or None if one is unknown. Used if the GPU's own is unknown."""
    total = 0
    for instance in instances:
        if isinstance(instance.memory, Absent):
            return None
        total += instance.memory.total_bytes
    return total or None


class AnswerValidator:
    """Filter of implausible values. It counts what it rejects by kind."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rejected: dict[str, int] = {}

    def memory(self, memory: GpuMemory | Absent) -> GpuMemory | Absent:
        if isinstance(memory, Absent):
            return memory
        try:
            found = plausible_memory(memory)
        except ImplausibleAnswerError as implausible:
            return self._reject(implausible)
        if found.is_estimated:
            self._reject(ImplausibleAnswerError("memory"))
        return found

    def processes(self, rows: list[Row] | Absent, capacity: int | None) -> tuple[GpuProcess, ...] | Absent:
        if isinstance(rows, Absent):
            return rows
        try:
            return merge_rows(rows, self.limits, capacity)
        except ImplausibleAnswerError as implausible:
            return self._reject(implausible)

    def figure(self, kind: str, value: Bytes, most: int) -> Bytes:
        """Return `value`, or reject it if it exceeds `most`."""
        if isinstance(value, Absent) or value <= most:
            return value
        return self._reject(ImplausibleAnswerError(kind))

    def _reject(self, implausible: ImplausibleAnswerError) -> Absent:
        self.rejected[implausible.what] = self.rejected.get(implausible.what, 0) + 1
        return Absent.INCONSISTENT
