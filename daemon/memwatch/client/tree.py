"""Format a snapshot as a tree: pools, their contents, and shares, which are subsets and never added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from memwatch.client.figures import Json, certain_headroom, decode_pressure, decode_vitals, figure, size, state_of
from memwatch.model import Absent, ShareKind
from memwatch.render import words as wording

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
    yield from _head(snapshot, age_seconds)
    yield ""
    yield from draw([*(pool_branch(pool, snapshot) for pool in snapshot["pools"]), *_bare_devices(snapshot)])
    yield from _swap(snapshot)
    yield from lease_lines(snapshot)
    yield ""
    labels = {place["id"]: place["label"] for place in (*snapshot["pools"], *snapshot["shares"])}
    for pressure in snapshot["pressure"]:
        yield wording.verdict(labels[pressure["target"]], decode_pressure(pressure)) + "."
    if snapshot["devices"]:
        yield ""
    for device in snapshot["devices"]:
        yield from device_lines(device)
    noted = [*_unreturned(snapshot), *process_notes(snapshot["processes"])]
    yield from ["", *noted] if noted else []
    yield from _troubles(snapshot)


def _head(snapshot: Json, age_seconds: float | None) -> Iterator[str]:
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
    """Return a pool with its shares, which are subsets, and its used and available halves, which add up to it."""
    shares = _shares_within(pool["id"], snapshot)
    return Branch(pool["label"], size(pool, "size_bytes"), "", (*shares, *_halves(pool)))


def _bare_devices(snapshot: Json) -> Iterator[Branch]:
    """Yield the devices whose memory size is unknown, with the shares inside: limits of a memory partition."""
    for device in snapshot["devices"]:
        shares = _shares_within(device["id"], snapshot)
        if shares and device["id"] not in {pool["id"] for pool in snapshot["pools"]}:
            yield Branch(f"{device['name']} memory", wording.absent(Absent.NOT_AVAILABLE), "", shares)


def _shares_within(place: str, snapshot: Json) -> tuple[Branch, ...]:
    return tuple(
        Branch(
            f"of which {share['label']}",
            size(share, "used_bytes"),
            "; ".join(filter(None, (_limit(share), share["note"] if share["kind"] == GPU_LIMIT else None))),
            _shares_within(share["id"], snapshot),
        )
        for share in snapshot["shares"]
        if share["within"] == place
    )


def _limit(share: Json) -> str:
    if share["limit_bytes"] is None:
        return ""
    used, limit = share["used_bytes"], share["limit_bytes"]
    part = (
        f", {wording.ratio(used / limit)} used" if share["kind"] == GPU_LIMIT and used is not None and limit else ""
    )
    return f"limit {size(share, 'limit_bytes')}{part}"


def _halves(pool: Json) -> Iterator[Branch]:
    parts = {kind.removesuffix("_bytes"): part for kind, part in pool["contents"].items()} or split_contents(pool)
    used = {kind: part for kind, part in parts.items() if kind not in AVAILABLE_PARTS}
    available = {kind: part for kind, part in parts.items() if kind in AVAILABLE_PARTS}
    yield Branch("used", size(pool, "used_bytes"), _ratio(pool), _parts(used))
    yield Branch("available", size(pool, "available_bytes"), "", _parts(available))


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


def _parts(parts: dict[str, int]) -> tuple[Branch, ...]:
    return tuple(Branch(wording.content(kind), wording.size(part)) for kind, part in parts.items())


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


def _swap(snapshot: Json) -> Iterator[str]:
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


def _unreturned(snapshot: Json) -> Iterator[str]:
    for one in snapshot.get("not_returned", ()):  # older daemons do not report it
        yield f"{one['text']}, since {wording.when(one['since_unix'], snapshot['unix'])}."


def process_notes(processes: Sequence[Json]) -> Iterator[str]:
    """Yield a line about each process that is not visible or an orphan. Older daemons do not send notes."""
    for process in processes:
        if process.get("note"):
            held = [count for count in process["device_bytes"].values() if isinstance(count, int)]
            name = process["name"] or "Process"
            yield f"{name} (PID {process['pid']}) holds {wording.size(sum(held))}. {process['note']}"


def _troubles(snapshot: Json) -> Iterator[str]:
    failing = [one for one in snapshot["collectors"] if one["state"] in ("failing", "stalled")]
    if failing:
        yield ""
    for one in failing:
        yield f"collector {one['name']} is {one['state']}: {one['error']}"
