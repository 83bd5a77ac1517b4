"""Memory of one GPU or NPU before it is related to System RAM, and the parts of it that processes hold.

A client of a driver counts a shared buffer in full. Two clients of one process that share 3 GiB may hold them once.
The process holds at least every client's own part, and the largest shared part.

Holders that need attention are processes that only a driver lists, and orphans. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.accounting import memoize
from memwatch.core.findings import Findings, absent_device, stale_device, stale_pool, stale_share
from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, Process, Share, known_or, sum_figures
from memwatch.core.snapshot import Node, ProcessScan
from memwatch.core.units import size

# How the memory of a GPU relates to System RAM, where a vendor's accounting has no more precise sentence.
EXPLANATIONS: Mapping[Architecture, str] = {
    Architecture.UNIFIED: "GPU memory is part of System RAM: CPU and GPU share this memory.",
    Architecture.DISCRETE: "Dedicated GPU memory, separate from System RAM.",
    Architecture.UNKNOWN: "A GPU was found, but the relation of its memory to System RAM is unknown.",
}


class DeviceMemory(Struct, frozen=True):
    """One device with its memory.

    `held`: bytes by process id, then by pool or share; `held_most`: upper bounds where these are lower bounds.
    `node`: the NUMA node inside MemTotal that is this GPU's own memory. `beyond_meminfo`: System RAM of the device
    that no line of /proc/meminfo contains, in bytes; None for a device that does not use System RAM. `unplaced`:
    processes with further memory of it, whose pool or share is not known.
    """

    device: Device
    explanation: str
    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)
    node: Node | None = None
    beyond_meminfo: Bytes | None = None
    held_most: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    unplaced: frozenset[int] = frozenset()

    def as_stale(self) -> DeviceMemory:
        """Return the device after its collector stopped answering. Figures from a NUMA node stay valid."""
        return self._without_figures(stale_device(self.device), Absent.STALE)

    def as_suspended(self) -> DeviceMemory:
        """Return the device while it is suspended: its memory has the same size, and no known use."""
        return self._without_figures(absent_device(self.device, Absent.SUSPENDED), Absent.SUSPENDED)

    def _without_figures(self, device: Device, why: Absent) -> DeviceMemory:
        return replace(
            self,
            device=device,
            pools=self.pools if self.node else tuple(stale_pool(pool, why) for pool in self.pools),
            shares=tuple(stale_share(share, why) for share in self.shares),
            held=without_figures(self.held, why),
            held_most={},
            beyond_meminfo=None if self.beyond_meminfo is None else why,
        )


class NpuMemory(Struct, frozen=True):
    """Memory of a neural processing unit, all of it in System RAM. `held` is as in `DeviceMemory`."""

    shares: tuple[Share, ...]
    held: Mapping[int, Mapping[str, Bytes]] = field(default_factory=dict)
    held_most: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    unplaced: frozenset[int] = frozenset()

    def as_stale(self) -> NpuMemory:
        shares = tuple(stale_share(share) for share in self.shares)
        return NpuMemory(shares, without_figures(self.held, Absent.STALE))


def without_figures(held: Mapping[int, Mapping[str, Bytes]], why: Absent) -> Mapping[int, Mapping[str, Bytes]]:
    """Return the places in which processes held memory, of which it is not known how much they hold now."""
    return {pid: dict.fromkeys(places, why) for pid, places in held.items()}


class Remainder(NamedTuple):
    """Used memory without a known holder. `overlap`: the known holders add up to more than is used."""

    bytes: Bytes
    overlap: bool = False


def remainder(used: Bytes, reserved: Bytes, held: Iterable[Bytes] | Absent) -> Remainder:
    """Subtract reserved and held memory from used memory. One unknown holder makes the result unknown."""
    if isinstance(used, Absent):
        return Remainder(used)
    known = sum_figures(held)
    if isinstance(known, Absent):
        return Remainder(known)
    rest = used - known_or(reserved, 0) - known
    return Remainder(max(0, rest), rest < 0)


class ClientPart(NamedTuple):
    """Bytes of one client in one place. `shared_bytes` of them may be held by other clients too.

    A client that several processes have open counts for each of them.
    """

    pids: tuple[int, ...]
    size_bytes: int
    shared_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        return max(0, self.size_bytes - self.shared_bytes)


class ClientTotals(Struct, frozen=True):
    """Memory of clients in one place: the total, and by process id at least and, where that is more, at most.

    `unread_pids`: processes of which the size of a client cannot be read. The total and their figures lack it.
    """

    total: int
    by_pid: Mapping[int, int]
    most_by_pid: Mapping[int, int] = field(default_factory=dict)
    unread_pids: tuple[int, ...] = ()

    @property
    def is_partial(self) -> bool:
        return bool(self.unread_pids)


def sum_parts(parts: Iterable[ClientPart], used: Bytes) -> ClientTotals:
    """Sum the clients by process. `used`: the use of the whole place, which bounds every part of it."""
    parts = [part for part in parts if part.size_bytes]
    by_pid: dict[int, list[ClientPart]] = {}
    groups: dict[tuple[int, ...], list[ClientPart]] = {}
    for part in parts:
        groups.setdefault(part.pids, []).append(part)
        for pid in part.pids:
            by_pid.setdefault(pid, []).append(part)
    all_own = sum(part.own_bytes for part in parts)
    least, most = {}, {}
    for pid, mine in by_pid.items():
        others = all_own - sum(part.own_bytes for part in mine)
        least[pid], high = bound(mine, used if isinstance(used, Absent) else used - others)
        if high > least[pid]:
            most[pid] = high
    return ClientTotals(sum(bound(mine, Absent.NOT_SUPPORTED)[0] for mine in groups.values()), least, most)


def bound(parts: Sequence[ClientPart], left: Bytes) -> tuple[int, int]:
    """Return what a process holds at least and at most. `left`: the use, less what only others hold.

    At least: the largest client. Its whole size is certain, even if the readings of others are older.
    """
    least = sum(part.own_bytes for part in parts) + max(min(part.size_bytes, part.shared_bytes) for part in parts)
    most = sum(part.size_bytes for part in parts)
    if isinstance(left, int):
        least = max(min(least, left), *(part.size_bytes for part in parts), 0)
        most = max(least, min(most, left))
    return least, most


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
