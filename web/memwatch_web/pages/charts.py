"""Group history series into charts and label them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from memwatch.core.model import ShareKind
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.history.holders import HOLDER_KINDS, parse_name
from memwatch.monitor.history.series import unit_of

# Limit of one history request.
MAX_SERIES = 20
COLOURS = 6
# Lengths of strokes and gaps, for the script and the pictures of the server. No two curves of a chart look alike.
DASHES = ((), (7, 4), (2, 3), (11, 3, 2, 3), (5, 2, 1, 2, 1, 2))
POOL_WORDS = {
    "used_bytes": "used",
    "available_bytes": "available",
    "free_bytes": "free",
    "unattributed_bytes": "unattributed",
}
LEFT = (".available_bytes", ".free_bytes", ".headroom_bytes", ".headroom_certain_bytes")
FIXED_LABELS = {
    "kernel.oom_kills_total": "OOM kills",
    "kernel.oom_kills_machine_total": "OOM kills for lack of System RAM",
    "kernel.oom_kills_cgroup_total": "OOM kills at limits of cgroups",
    "swap.used_bytes": "used",
    "psi.some.ratio_10s": "some",
    "psi.full.ratio_10s": "full",
    "self.rss_bytes": "memwatchd RSS",
    "self.cpu_seconds": "memwatchd CPU time",
    "self.tick_lag_seconds": "memwatchd scheduling delay",
}
TITLES = {
    "pressure": "Pressure",
    "psi": "Memory pressure (PSI)",
    "swap": "Swap",
    "process": "Processes",
    "unit": "Units",
    "container": "Containers",
    "bytes": "Other sizes",
    "ratio": "Other ratios",
    "level": "Levels",
    "seconds": "Times",
    "count": "Counts",
}


class Curve(Struct, frozen=True):
    """One series in a chart. `colour` counts from 1.

    `dash` is a pattern: 0 is solid, 1 is available rather than used memory, others tell curves of one colour apart.
    """

    name: str
    label: str
    colour: int
    dash: int


class Chart(Struct, frozen=True):
    """Related series of one unit.

    `top`: end of the scale if known, which is the pool size or 1. `targets`: targets whose levels are shaded.
    """

    id: str
    label: str
    unit: str
    top: float | None
    targets: tuple[str, ...]
    curves: tuple[Curve, ...]


# Words behind the title of a process, unit or container.
HOLDER_WORDS = {
    "footprint_bytes": "",
    "footprint_low_bytes": "at least",
    "footprint_high_bytes": "at most",
    "device_bytes": "GPU memory",
}
SUBJECTS = ("swap", "psi", *HOLDER_KINDS)


def build_charts(
    names: Iterable[str], snapshot: Snapshot, titles: Mapping[str, str] = MappingProxyType({})
) -> tuple[Chart, ...]:
    """Return the charts of these series, pools first. `titles`: those of holders, by kind and id."""
    places: dict[str, list[str]] = {place: [] for place in (*(pool.id for pool in snapshot.pools), *TITLES)}
    for name in dict.fromkeys(names):
        places.setdefault(choose_chart(name, snapshot), []).append(name)
    return tuple(_chart(place, found, snapshot, titles) for place, found in places.items() if found)


def _chart(place: str, names: Sequence[str], snapshot: Snapshot, titles: Mapping[str, str]) -> Chart:
    pool = next((one for one in snapshot.pools if one.id == place), None)
    unit = unit_of(names[0])
    label = pool.label if pool else TITLES.get(place, place)
    judged = [one.target for one in snapshot.pressure if pool and one.target == pool.id]
    top = pool.size_bytes if pool else 1.0 if unit == "ratio" else None
    curves = [
        Curve(name, build_label(name, snapshot, titles), number % COLOURS + 1, choose_dash(number, name))
        for number, name in enumerate(names)
    ]
    return Chart(place, label, unit, top, tuple(judged), tuple(curves))


def choose_dash(number: int, name: str) -> int:
    """Return the dash pattern of a curve: a new one each time that the colours repeat."""
    if name.endswith(LEFT) and number < COLOURS:
        return 1
    turn = number // COLOURS
    return turn + 1 if turn else 0


def choose_chart(name: str, snapshot: Snapshot) -> str:
    """Return the chart id of a series: its pool, or its subject."""
    kind, _, rest = name.partition(".")
    thing = rest.rpartition(".")[0]
    if kind == "pool":
        return thing
    if kind == "share":
        return find_pool(thing, snapshot) or "bytes"
    if kind == "device":
        return _find_largest_pool(thing, snapshot) or "bytes"
    if kind == "pressure" and name.endswith(".ratio"):
        return "pressure"
    return kind if kind in SUBJECTS else unit_of(name)


def _find_largest_pool(device: str, snapshot: Snapshot) -> str | None:
    """Return the largest pool of a device: the headroom of an APU exceeds its carve-out of 512 MiB."""
    places = [place for one in snapshot.devices if one.id == device for place in one.allocates_from]
    pools = {find_pool(place, snapshot) for place in places}
    sizes = {pool.id: pool.size_bytes for pool in snapshot.pools if pool.id in pools}
    return max(sizes, key=lambda pool: sizes[pool], default=None)


def find_pool(place: str, snapshot: Snapshot) -> str | None:
    """Return the pool that contains a share, or the pool itself."""
    parents = {share.id: share.within for share in snapshot.shares}
    while place in parents:
        place = parents[place]
    return place if place in snapshot.labels else None


def build_holder_label(kind: str, holder: str, figure: str, titles: Mapping[str, str]) -> str:
    """Return the label of a process, unit or container: "train.py (PID 41) GPU memory"."""
    title = titles.get(f"{kind}.{holder}", "")
    if kind == "process":
        pid = f"PID {holder.partition('-')[0]}"
        title = f"{title} ({pid})" if title else pid
    return f"{title or holder} {HOLDER_WORDS[figure]}".rstrip()


def build_label(name: str, snapshot: Snapshot, titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the label of a series. For removed hardware it is the name of the series."""
    if parsed := parse_name(name):
        return build_holder_label(*parsed, titles)
    kind, _, rest = name.partition(".")
    thing, _, figure = rest.rpartition(".")
    if name in FIXED_LABELS:
        return FIXED_LABELS[name]
    if kind == "pool" and figure in POOL_WORDS:
        return POOL_WORDS[figure]
    if kind == "share":
        return next((snapshot.relation(one) for one in snapshot.shares if one.id == thing), name)
    if kind == "node":
        return f"largest free block, node {thing}"
    if kind == "device":
        how = ", without reclaim" if figure == "headroom_certain_bytes" else ""
        return next((f"available to {one.id}{how}" for one in snapshot.devices if one.id == thing), name)
    if kind == "pressure" and thing in snapshot.labels:
        words = {"ratio": "{}", "level": "level, {}", "seconds_to_full": "time to full, {}"}
        return words.get(figure, name).format(snapshot.labels[thing])
    return name


def usual_series(known: Sequence[str], snapshot: Snapshot) -> list[str]:
    """Return the default series, of which a page draws MAX_SERIES.

    These are use of pools and device shares, headroom of devices (or available), and pressure.
    """
    within = [share.id for share in snapshot.shares if share.kind not in (ShareKind.CGROUP, ShareKind.GPU_LIMIT)]
    served = {choose_chart(f"device.{one.id}.headroom_bytes", snapshot) for one in snapshot.devices}
    wanted = [f"pool.{pool.id}.used_bytes" for pool in snapshot.pools]
    wanted += [f"pressure.{pool.id}.ratio" for pool in snapshot.pools]
    wanted += [f"share.{share}.used_bytes" for share in within]
    wanted += [f"device.{one.id}.headroom_bytes" for one in snapshot.devices]
    wanted += [f"pool.{pool.id}.available_bytes" for pool in snapshot.pools if pool.id not in served]
    return [name for name in wanted if name in known]
