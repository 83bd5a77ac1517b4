"""Format a snapshot as a tree: pools, their contents, and shares, which are subsets and never added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.cli.figures import (
    Json,
    certain_headroom,
    decode_pressure,
    decode_vitals,
    figure,
    silence_lines,
    size,
    state_of,
)
from memwatch.cli.terminal.memory_map import DEVICE_SHARES as DEVICE_KINDS
from memwatch.cli.terminal.moment import labels_of, share_label
from memwatch.cli.times import when
from memwatch.core.model import Absent, ShareKind
from memwatch.monitor.render import words as wording

# The available parts of a pool. All others are used.
AVAILABLE_PARTS = ("page_cache", "free", "available")
GPU_LIMIT = ShareKind.GPU_LIMIT.value
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


def render_lines(snapshot: Json, age_seconds: float | None) -> Iterator[str]:
    """Yield all lines of `memwatch status`. `age_seconds`: age of the snapshot when it was sent, if known."""
    labels = labels_of(snapshot)
    for pressure in snapshot["pressure"]:
        yield wording.verdict(labels[pressure["target"]], decode_pressure(pressure)) + "."
    yield from silence_lines(snapshot)
    yield from head_lines(snapshot, age_seconds)
    yield ""
    branches = [
        branch for pool in snapshot["pools"] for branch in (pool_branch(pool, snapshot), *_apart(pool, snapshot))
    ]
    yield from draw([*branches, *_bare_devices(snapshot)])
    yield from swap_lines(snapshot)
    yield from lease_lines(snapshot)
    if snapshot["devices"]:
        yield ""
    for device in snapshot["devices"]:
        yield from device_lines(device)
    noted = list(note_lines(snapshot))
    yield from ["", *noted] if noted else []
    yield from trouble_lines(snapshot)


def head_lines(snapshot: Json, age_seconds: float | None) -> Iterator[str]:
    machine = snapshot["machine"]
    yield ", ".join(name for name in (snapshot["host"], machine["name"]) if name)
    if machine["explanation"]:
        yield machine["explanation"]
    if snapshot["simulated"]:
        yield wording.SIMULATED
    # A Date header has no fractions, so an age is known to the second.
    if age_seconds is not None and age_seconds > 3 * snapshot["interval_seconds"] + 1:
        yield f"Stale data, from {wording.age(age_seconds)}: memwatchd is not sampling."


def pool_branch(pool: Json, snapshot: Json) -> Branch:
    """Return a pool with its used and available halves. The children of each line add up to it, except shares.

    A share stands below the part that it is inside: memory of devices below their part, else below `used`.
    """
    return Branch(pool["label"], size(pool, "size_bytes"), "", tuple(_halves(pool, snapshot)))


def _apart(pool: Json, snapshot: Json) -> Iterator[Branch]:
    """Yield the shares that cross the parts of a pool, such as a control group: they are no part of one."""
    if _parts_of(pool):
        for branch in _shares_within(pool["id"], snapshot, lambda share: not _is_inside_a_part(share, pool)):
            yield replace(branch, label=f"{branch.label} ⊂ {pool['label']}")


def _is_inside_a_part(share: Json, pool: Json) -> bool:
    return share["kind"] in DEVICE_KINDS and "devices" in _parts_of(pool)


def _bare_devices(snapshot: Json) -> Iterator[Branch]:
    """Yield the devices whose memory size is unknown, with the shares inside: limits of a memory partition."""
    for device in snapshot["devices"]:
        shares = _shares_within(device["id"], snapshot)
        if shares and device["id"] not in {pool["id"] for pool in snapshot["pools"]}:
            yield Branch(f"{device['name']} memory", wording.absent(Absent.NOT_AVAILABLE), "", shares)


def _shares_within(place: str, snapshot: Json, is_wanted: Callable[[Json], bool] = bool) -> tuple[Branch, ...]:
    return tuple(
        Branch(
            share_label(share),
            size(share, "used_bytes"),
            "; ".join(filter(None, (_limit(share), share["note"] if share["kind"] == GPU_LIMIT else None))),
            _shares_within(share["id"], snapshot),
        )
        for share in snapshot["shares"]
        if share["within"] == place and is_wanted(share)
    )


def _limit(share: Json) -> str:
    if share["limit_bytes"] is None:
        return ""
    used, limit = share["used_bytes"], share["limit_bytes"]
    part = (
        f", {wording.ratio(used / limit)} used" if share["kind"] == GPU_LIMIT and used is not None and limit else ""
    )
    return f"limit {size(share, 'limit_bytes')}{part}"


def _parts_of(pool: Json) -> dict[str, int]:
    return {kind.removesuffix("_bytes"): part for kind, part in pool["contents"].items()} or split_contents(pool)


def _halves(pool: Json, snapshot: Json) -> Iterator[Branch]:
    parts = _parts_of(pool)
    used = {kind: part for kind, part in parts.items() if kind not in AVAILABLE_PARTS}
    available = {kind: part for kind, part in parts.items() if kind in AVAILABLE_PARTS}
    inside = _shares_within(pool["id"], snapshot, lambda share: not parts or _is_inside_a_part(share, pool))
    below = tuple(replace(one, below=inside) if kind == "devices" else one for kind, one in _branches(used))
    yield Branch("used", size(pool, "used_bytes"), _ratio(pool), below or inside)
    yield Branch("available", size(pool, "available_bytes"), "", tuple(one for _, one in _branches(available)))


def split_contents(pool: Json) -> dict[str, int]:
    """Split the used part of a GPU's memory, if its driver reports the use of processes.

    Without any, none is a part: the driver's list may be empty because it is not complete.
    """
    used, rest, reserved = (figure(pool, f"{name}_bytes") for name in ("used", "unattributed", "reserved"))
    if isinstance(used, Absent) or isinstance(rest, Absent):
        return {}
    kept = {} if isinstance(reserved, Absent) else {"reserved": reserved}
    held = max(0, used - rest - sum(kept.values()))
    return {**({"processes": held} if held else {}), **kept, "unattributed": rest}


def _ratio(pool: Json) -> str:
    used, whole = figure(pool, "used_bytes"), pool["size_bytes"]
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


def swap_lines(snapshot: Json) -> Iterator[str]:
    swap = snapshot["swap"]
    if swap and swap["size_bytes"]:
        yield f"Swap: {size(swap, 'used_bytes')} of {size(swap, 'size_bytes')} used (not counted as memory)"


def lease_lines(snapshot: Json) -> Iterator[str]:
    """Yield a line about each lease. Older daemons have none."""
    labels = {place["id"]: place["label"] for place in (*snapshot["pools"], *snapshot["shares"])}
    for lease in snapshot.get("leases", ()):
        held = [f"{wording.size(count)} of {labels.get(place, place)}" for place, count in lease["held"].items()]
        left = wording.duration(max(0.0, lease["until_unix"] - snapshot["unix"]))
        arrived = f", {wording.size(lease['arrived_bytes'])} more arrived" if lease["arrived_bytes"] else ""
        yield f"Leased: {' and '.join(held)} to {lease['name']} (PID {lease['pid']}), {left} left{arrived}"


def device_lines(device: Json) -> Iterator[str]:
    """Yield a line about a device, then its notes."""
    state = "" if device["state"] == "ok" else f", {state_of(device)}"
    can = wording.can_allocate(certain_headroom(device), figure(device, "headroom_bytes"))
    yield f"{device['id']}: {device['name']} ({wording.architecture(device['architecture'])}{state}): {can}"
    if known := wording.vitals(decode_vitals(device)):
        yield f"  {known}"
    for note in device.get("notes", ()):  # daemons before 0.1 have none
        yield f"  {note}"


def note_lines(snapshot: Json) -> Iterator[str]:
    """Yield notes about memory that was not returned, and about processes."""
    yield from _unreturned(snapshot)
    yield from process_notes(snapshot["processes"])


def _unreturned(snapshot: Json) -> Iterator[str]:
    for one in snapshot.get("not_returned", ()):  # older daemons do not report it
        yield f"{one['text']}, since {when(one['since_unix'], snapshot['unix'])}."


def process_notes(processes: Sequence[Json]) -> Iterator[str]:
    """Yield a line about each process that is not visible or an orphan. Older daemons do not send notes."""
    for process in processes:
        if process.get("note"):
            held = [count for count in process["device_bytes"].values() if isinstance(count, int)]
            name = process["name"] or "Process"
            yield f"{name} (PID {process['pid']}) holds {wording.size(sum(held))}. {process['note']}"


def trouble_lines(snapshot: Json) -> Iterator[str]:
    failing = [one for one in snapshot["collectors"] if one["state"] in ("failing", "stalled")]
    if failing:
        yield ""
    for one in failing:
        yield f"collector {one['name']} is {one['state']}: {one['error']}"
