"""Holders of device memory that need attention: processes that only a driver lists, and orphans. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory, NpuMemory
from memwatch.core.accounting.memoize import memoize
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Bytes, Device, Process, Share, sum_figures
from memwatch.core.snapshot import ProcessScan
from memwatch.core.units import size

# A process without a parent is an orphan if it holds this part of a pool.
ORPHAN_RATIO = 0.1
GONE = (
    "Not visible from here: it runs in another PID namespace, or it ended and its memory was not given back. "
    "The GPU's driver lists its PID and memory, /proc has no such process."
)
HIDDEN = (
    "Not visible from here: it runs outside this container or is hidden from this user. The GPU's driver lists its "
    "PID and memory, /proc has no such process."
)
FOREIGN = (
    "Not visible from here: it runs outside this container. The GPU's driver lists its PID and memory; the process "
    "with that PID here is another one."
)
ORPHAN = (
    "Orphan: its parent process has ended, and no service or container supervises it. If it is not needed, end it "
    "with: kill {pid}"
)
UNKNOWN = Absent.NOT_AVAILABLE


def with_large_holders(
    found: Findings,
    memories: Sequence[DeviceMemory | NpuMemory],
    sizes: Mapping[str, int],
    scan: ProcessScan | None,
) -> Findings:
    """Add a row for each process that only a driver lists, and decide which processes are orphans.

    `found` is related: its processes have their device memory. `sizes`: by pool or share.
    """
    processes = with_ghosts(found.processes, found.missing_pids, scan, *memories)
    processes = with_orphans(processes, sizes)
    devices = with_partial_lists(found.devices, processes, found.shares)
    if processes is found.processes and devices is found.devices:
        return found
    return replace(found, processes=processes, devices=devices)


@memoize
def with_ghosts(
    processes: tuple[Process, ...],
    missing: frozenset[int],
    scan: ProcessScan | None,
    *memories: DeviceMemory | NpuMemory,
) -> tuple[Process, ...]:
    """Add the processes that are missing in /proc. A visible one with a reused PID loses their memory."""
    held: dict[int, dict[str, Bytes]] = {}
    for memory in memories if missing else ():
        for pid in missing & memory.held.keys():
            held.setdefault(pid, {}).update(memory.held[pid])
    if not held:
        return processes
    hides = scan is not None and scan.process_list == "partial"
    kept = [_without_device(process) if process.pid in held else process for process in processes]
    seen = {process.pid for process in processes}
    notes = {pid: FOREIGN if hides and pid in seen else HIDDEN if hides else GONE for pid in held}
    return (*kept, *(build_ghost(pid, held[pid], notes[pid]) for pid in sorted(held)))


def build_ghost(pid: int, held: Mapping[str, Bytes], note: str) -> Process:
    """Build a process of which only the device memory is known."""
    known = [figure for figure in held.values() if isinstance(figure, int)]
    return Process(
        pid=pid,
        start_time=UNKNOWN,
        name=UNKNOWN,
        rss_bytes=UNKNOWN,
        footprint_bytes=UNKNOWN,
        footprint_basis="device",
        device_bytes=held,
        pod=UNKNOWN,
        job=UNKNOWN,
        footprint_range=(sum(known), UNKNOWN) if known else None,
        visible=False,
        note=note,
    )


def _without_device(process: Process) -> Process:
    rss = process.rss_bytes
    return replace(process, device_bytes={}, footprint_bytes=rss, footprint_basis="rss", footprint_range=None)


class JudgedProcesses(NamedTuple):
    """The result of the last call of `with_orphans`, and what it was made of."""

    processes: tuple[Process, ...] = ()
    sizes: Mapping[str, int] = {}
    judged: tuple[Process, ...] = ()


# Desktop programs have mostly lost their parent, and the processes rarely change from one tick to the next.
_last = JudgedProcesses()


def with_orphans(processes: tuple[Process, ...], sizes: Mapping[str, int]) -> tuple[Process, ...]:
    """Decide by the size of their device memory which of the processes without a parent are orphans."""
    global _last
    if not has_orphans(processes):
        return processes
    if _last.processes is not processes or _last.sizes != sizes:
        judged = tuple(_judge_orphan(process, sizes) if process.orphan else process for process in processes)
        _last = JudgedProcesses(processes, sizes, judged)
    return _last.judged


@memoize
def has_orphans(processes: tuple[Process, ...]) -> bool:
    """Check for processes without a parent. Reading 300 processes on each tick takes 9 µs."""
    return any(process.orphan for process in processes)


@memoize
def list_ghosts(processes: tuple[Process, ...]) -> tuple[Process, ...]:
    """Return the processes that only a driver lists."""
    return tuple(process for process in processes if not process.visible)


def _judge_orphan(process: Process, sizes: Mapping[str, int]) -> Process:
    is_large = any(
        isinstance(held, int) and sizes.get(place, 0) and held >= ORPHAN_RATIO * sizes[place]
        for place, held in process.device_bytes.items()
    )
    return replace(process, note=ORPHAN.format(pid=process.pid)) if is_large else replace(process, orphan=False)


def with_partial_lists(
    devices: tuple[Device, ...], processes: tuple[Process, ...], shares: Iterable[Share]
) -> tuple[Device, ...]:
    """Mark the process list of each device with memory of processes that are not visible as partial."""
    ghosts = list_ghosts(processes)
    if not ghosts:
        return devices
    owners = {share.id: share.device for share in shares if share.device}
    held: dict[str, list[Bytes]] = {}
    for ghost in ghosts:
        for place, figure in ghost.device_bytes.items():
            held.setdefault(owners.get(place, place), []).append(figure)
    return tuple(_mark(device, held[device.id]) if device.id in held else device for device in devices)


def _mark(device: Device, held: Sequence[Bytes]) -> Device:
    total = sum_figures(held)
    words = "memory of unknown size" if isinstance(total, Absent) else size(total)
    who = "1 process that is" if len(held) == 1 else f"{len(held)} processes that are"
    note = f"{words} is held by {who} not visible from here: see the process list."
    listed = device.process_list
    return replace(
        device,
        process_list=listed if isinstance(listed, Absent) else "partial",
        notes=(*device.notes, note),
    )
