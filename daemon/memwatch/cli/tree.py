"""Format a snapshot as a tree: pools, their contents, and shares, which are subsets and never added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.cli.terminal.moment import labels_of, share_label
from memwatch.cli.times import when
from memwatch.core.model import Absent, Device, Pool, Process, Share, ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.memory_map import AVAILABLE, HELD_BY_DEVICES
from memwatch.monitor.render.silence_words import notice_lines as silence_lines
from memwatch.monitor.render.silence_words import notices_of

ENDS = {True: ("└─ ", "   "), False: ("├─ ", "│  ")}


class Branch(Struct, frozen=True):
    """A line of the tree, with its children."""

    label: str
    figure: str
    remark: str = ""
    below: tuple[Branch, ...] = ()


class Row(Struct, frozen=True):
    label: str
    figure: str
    remark: str


def render_lines(snapshot: Snapshot, age_seconds: float | None) -> Iterator[str]:
    """Yield all lines of `memwatch status`. `age_seconds`: age of the snapshot when it was sent, if known."""
    labels = labels_of(snapshot)
    for pressure in snapshot.pressure:
        yield wording.verdict(labels[pressure.target], pressure) + "."
    yield from silence_lines(notices_of(snapshot), snapshot.unix)
    yield from head_lines(snapshot, age_seconds)
    yield ""
    branches = [
        branch for pool in snapshot.pools for branch in (pool_branch(pool, snapshot), *_apart(pool, snapshot))
    ]
    yield from draw([*branches, *_bare_devices(snapshot)])
    yield from swap_lines(snapshot)
    yield from lease_lines(snapshot)
    if snapshot.devices:
        yield ""
    for device in snapshot.devices:
        yield from device_lines(device)
    noted = list(note_lines(snapshot))
    yield from ["", *noted] if noted else []
    yield from trouble_lines(snapshot)


def head_lines(snapshot: Snapshot, age_seconds: float | None) -> Iterator[str]:
    machine = snapshot.machine
    yield snapshot.host if isinstance(machine.name, Absent) else f"{snapshot.host}, {machine.name}"
    if machine.explanation:
        yield machine.explanation
    if snapshot.simulated:
        yield wording.SIMULATED
    # A Date header has no fractions, so an age is known to the second.
    if age_seconds is not None and age_seconds > 3 * snapshot.interval_seconds + 1:
        yield f"Stale data, from {wording.age(age_seconds)}: memwatchd is not sampling."


def pool_branch(pool: Pool, snapshot: Snapshot) -> Branch:
    """Return a pool with its used and available halves. The children of each line add up to it, except shares.

    A share stands below the part that it is inside: memory of devices below their part, else below `used`.
    """
    return Branch(pool.label, wording.size(pool.size_bytes), "", tuple(_halves(pool, snapshot)))


def _apart(pool: Pool, snapshot: Snapshot) -> Iterator[Branch]:
    """Yield the shares that cross the parts of a pool, such as a control group: they are no part of one."""
    if _parts_of(pool):
        for branch in _shares_within(pool.id, snapshot, lambda share: not _is_inside_a_part(share, pool)):
            yield replace(branch, label=f"{branch.label} ⊂ {pool.label}")


def _is_inside_a_part(share: Share, pool: Pool) -> bool:
    return share.kind in HELD_BY_DEVICES and "devices" in _parts_of(pool)


def _bare_devices(snapshot: Snapshot) -> Iterator[Branch]:
    """Yield the devices whose memory size is unknown, with the shares inside: limits of a memory partition."""
    for device in snapshot.devices:
        shares = _shares_within(device.id, snapshot)
        if shares and device.id not in {pool.id for pool in snapshot.pools}:
            yield Branch(f"{device.name} memory", wording.absent(Absent.NOT_AVAILABLE), "", shares)


def _shares_within(place: str, snapshot: Snapshot, is_wanted: Callable[[Share], bool] = bool) -> tuple[Branch, ...]:
    return tuple(
        Branch(
            share_label(share),
            wording.size(share.used_bytes),
            "; ".join(filter(None, (_limit(share), share.note if share.kind is ShareKind.GPU_LIMIT else None))),
            _shares_within(share.id, snapshot),
        )
        for share in snapshot.shares
        if share.within == place and is_wanted(share)
    )


def _limit(share: Share) -> str:
    if isinstance(share.limit_bytes, Absent):
        return ""
    ratio = share.judged_ratio if share.kind is ShareKind.GPU_LIMIT else Absent.NOT_AVAILABLE
    part = "" if isinstance(ratio, Absent) else f", {wording.ratio(ratio)} used"
    return f"limit {wording.size(share.limit_bytes)}{part}"


def _parts_of(pool: Pool) -> dict[str, int]:
    return {part.kind: part.size_bytes for part in pool.contents} or split_contents(pool)


def _halves(pool: Pool, snapshot: Snapshot) -> Iterator[Branch]:
    parts = _parts_of(pool)
    used = {kind: part for kind, part in parts.items() if kind not in AVAILABLE}
    available = {kind: part for kind, part in parts.items() if kind in AVAILABLE}
    inside = _shares_within(pool.id, snapshot, lambda share: not parts or _is_inside_a_part(share, pool))
    below = tuple(replace(one, below=inside) if kind == "devices" else one for kind, one in _branches(used))
    yield Branch("used", wording.size(pool.used_bytes), _ratio(pool), below or inside)
    yield Branch("available", wording.size(pool.available_bytes), "", tuple(one for _, one in _branches(available)))


def split_contents(pool: Pool) -> dict[str, int]:
    """Split the used part of a GPU's memory, if its driver reports the use of processes.

    Without any, none is a part: the driver's list may be empty because it is not complete.
    """
    used, rest, reserved = pool.used_bytes, pool.unattributed_bytes, pool.reserved_bytes
    if isinstance(used, Absent) or isinstance(rest, Absent):
        return {}
    kept = {} if isinstance(reserved, Absent) else {"reserved": reserved}
    held = max(0, used - rest - sum(kept.values()))
    return {**({"processes": held} if held else {}), **kept, "unattributed": rest}


def _ratio(pool: Pool) -> str:
    used, whole = pool.used_bytes, pool.size_bytes
    return wording.ratio(used / whole) if isinstance(used, int) and whole else ""


def _branches(parts: dict[str, int]) -> list[tuple[str, Branch]]:
    return [(kind, Branch(wording.content(kind), wording.size(part))) for kind, part in parts.items()]


def draw(roots: Sequence[Branch]) -> list[str]:
    """Render the trees as lines with aligned values."""
    rows = [row for root in roots for row in _rows(root, "", "")]
    label = max((len(row.label) for row in rows), default=0)
    width = max((len(row.figure) for row in rows), default=0)
    return [f"{row.label:<{label}}  {row.figure:>{width}}  {row.remark}".rstrip() for row in rows]


def _rows(branch: Branch, first: str, rest: str) -> Iterator[Row]:
    yield Row(first + branch.label, branch.figure, branch.remark)
    for one in branch.below:
        end, further = ENDS[one is branch.below[-1]]
        yield from _rows(one, rest + end, rest + further)


def swap_lines(snapshot: Snapshot) -> Iterator[str]:
    swap = snapshot.swap
    if not isinstance(swap, Absent) and swap.size_bytes:
        used, whole = wording.size(swap.used_bytes), wording.size(swap.size_bytes)
        yield f"Swap: {used} of {whole} used (not counted as memory)"


def lease_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield a line about each lease."""
    labels = snapshot.labels
    for lease in snapshot.leases:
        held = [f"{wording.size(count)} of {labels.get(place, place)}" for place, count in lease.held.items()]
        left = wording.duration(max(0.0, lease.until_unix - snapshot.unix))
        arrived = f", {wording.size(lease.arrived_bytes)} more arrived" if lease.arrived_bytes else ""
        yield f"Leased: {' and '.join(held)} to {lease.name} (PID {lease.pid}), {left} left{arrived}"


def device_lines(device: Device) -> Iterator[str]:
    """Yield a line about a device, then its notes."""
    yield device_line(device)
    if known := wording.vitals(device.vitals):
        yield f"  {known}"
    for note in device.notes:
        yield f"  {note}"


def device_line(device: Device) -> str:
    state = "" if device.state == "ok" else f", {device.state.replace('_', ' ')}"
    can = wording.can_allocate(device.headroom_certain_bytes, device.headroom_bytes)
    return f"{device.id}: {device.name} ({wording.architecture(device.architecture.value)}{state}): {can}"


def note_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield notes about memory that was not returned, and about processes."""
    yield from _unreturned(snapshot)
    yield from process_notes(snapshot.processes)


def _unreturned(snapshot: Snapshot) -> Iterator[str]:
    for one in snapshot.not_returned:
        yield f"{one.text}, since {when(one.since_unix, snapshot.unix)}."


def process_notes(processes: Sequence[Process]) -> Iterator[str]:
    """Yield a line about each process that is not visible or an orphan."""
    for process in processes:
        if process.note:
            held = [count for count in process.device_bytes.values() if isinstance(count, int)]
            name = "Process" if isinstance(process.name, Absent) else process.name
            yield f"{name} (PID {process.pid}) holds {wording.size(sum(held))}. {process.note}"


def trouble_lines(snapshot: Snapshot) -> Iterator[str]:
    failing = [one for one in snapshot.collectors if one.state in ("failing", "stalled")]
    if failing:
        yield ""
    for one in failing:
        yield f"collector {one.name} is {one.state}: {one.error}"
