"""Which series are drawn together, and what each is called on the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from memwatch.history.series import unit_of
from memwatch.model import ShareKind
from memwatch.snapshot import Snapshot

# As many as one request for history may name.
MOST_SERIES = 20
COLOURS = 6
POOL_WORDS = {
    "used_bytes": "used",
    "available_bytes": "available",
    "free_bytes": "free",
    "unattributed_bytes": "unattributed",
}
LEFT = (".available_bytes", ".free_bytes", ".headroom_bytes")
SAID = {
    "swap.used_bytes": "used",
    "psi.some.ratio_10s": "some tasks waited",
    "psi.full.ratio_10s": "all tasks waited",
    "self.rss_bytes": "memory of memwatchd",
    "self.cpu_seconds": "processor time of memwatchd",
    "self.tick_lag_seconds": "lateness of ticks",
}
TITLES = {
    "pressure": "Pressure",
    "psi": "Waiting for memory",
    "swap": "Swap",
    "bytes": "Other sizes",
    "ratio": "Other parts of a whole",
    "level": "Levels",
    "seconds": "Times",
    "count": "Counts",
}


class Curve(Struct, frozen=True):
    """One series in a chart; `colour` is a number from 1 on. `dashed`: what is left, not what is used."""

    name: str
    label: str
    colour: int
    dashed: bool


class Chart(Struct, frozen=True):
    """Series of one unit that belong together. `top` is the end of the scale where it is known: the size of the
    pool, or all of it. `targets` are those whose levels stand behind the curves."""

    id: str
    label: str
    unit: str
    top: float | None
    targets: tuple[str, ...]
    curves: tuple[Curve, ...]


def charts_of(names: Iterable[str], snapshot: Snapshot) -> tuple[Chart, ...]:
    """The charts in which these series are drawn, pools first."""
    places: dict[str, list[str]] = {place: [] for place in (*(pool.id for pool in snapshot.pools), *TITLES)}
    for name in dict.fromkeys(names):
        places.setdefault(place_of(name, snapshot), []).append(name)
    return tuple(_chart(place, found, snapshot) for place, found in places.items() if found)


def _chart(place: str, names: Sequence[str], snapshot: Snapshot) -> Chart:
    pool = next((one for one in snapshot.pools if one.id == place), None)
    unit = unit_of(names[0])
    label = pool.label if pool else TITLES.get(place, place)
    judged = [one.target for one in snapshot.pressure if pool and one.target == pool.id]
    top = pool.size_bytes if pool else 1.0 if unit == "ratio" else None
    curves = [
        Curve(name, label_of(name, snapshot), number % COLOURS + 1, name.endswith(LEFT))
        for number, name in enumerate(names)
    ]
    return Chart(place, label, unit, top, tuple(judged), tuple(curves))


def place_of(name: str, snapshot: Snapshot) -> str:
    """The chart of a series: its pool, or what else it is about."""
    kind, _, rest = name.partition(".")
    thing = rest.rpartition(".")[0]
    if kind == "pool":
        return thing
    if kind == "share":
        return pool_of(thing, snapshot) or "bytes"
    if kind == "device":
        return _largest_pool_of(thing, snapshot) or "bytes"
    if kind == "pressure" and name.endswith(".ratio"):
        return "pressure"
    return kind if kind in ("swap", "psi") else unit_of(name)


def _largest_pool_of(device: str, snapshot: Snapshot) -> str | None:
    """Where most of what a device may have lies: an APU's headroom is no part of its carve-out of 512 MiB."""
    places = [place for one in snapshot.devices if one.id == device for place in one.allocates_from]
    pools = {pool_of(place, snapshot) for place in places}
    sizes = {pool.id: pool.size_bytes for pool in snapshot.pools if pool.id in pools}
    return max(sizes, key=lambda pool: sizes[pool], default=None)


def pool_of(place: str, snapshot: Snapshot) -> str | None:
    """The pool that a share lies in at last, or that is named itself."""
    parents = {share.id: share.within for share in snapshot.shares}
    while place in parents:
        place = parents[place]
    return place if place in snapshot.labels else None


def label_of(name: str, snapshot: Snapshot) -> str:
    """What a series is called within its chart; of what is gone from the machine, the name of the series."""
    kind, _, rest = name.partition(".")
    thing, _, figure = rest.rpartition(".")
    if name in SAID:
        return SAID[name]
    if kind == "pool" and figure in POOL_WORDS:
        return POOL_WORDS[figure]
    if kind == "share":
        return next((snapshot.relation(one) for one in snapshot.shares if one.id == thing), name)
    if kind == "node":
        return f"largest free block on node {thing}"
    if kind == "device":
        return next((f"headroom of {one.name}" for one in snapshot.devices if one.id == thing), name)
    if kind == "pressure" and thing in snapshot.labels:
        words = {"ratio": "{}", "level": "level of {}", "seconds_to_full": "{} full in"}
        return words.get(figure, name).format(snapshot.labels[thing])
    return name


def usual_series(known: Sequence[str], snapshot: Snapshot) -> list[str]:
    """What is shown where nothing was chosen: what is used of each pool, by GPUs within it, what a GPU can still
    have, or else what is available, and the pressure."""
    within = [share.id for share in snapshot.shares if share.kind is not ShareKind.CGROUP]
    served = {place_of(f"device.{one.id}.headroom_bytes", snapshot) for one in snapshot.devices}
    wanted = [f"pool.{pool.id}.used_bytes" for pool in snapshot.pools]
    wanted += [f"pressure.{pool.id}.ratio" for pool in snapshot.pools]
    wanted += [f"share.{share}.used_bytes" for share in within]
    wanted += [f"device.{one.id}.headroom_bytes" for one in snapshot.devices]
    wanted += [f"pool.{pool.id}.available_bytes" for pool in snapshot.pools if pool.id not in served]
    return [name for name in wanted if name in known][:MOST_SERIES]
