"""Charts of history series: which series share one, labels, colours, annotations, and the composition of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from msgspec import Struct

from memwatch.core.events import Event
from memwatch.core.model import Device, ShareKind, find_root
from memwatch.core.printable import shorten_ids
from memwatch.core.snapshot import Level, Snapshot
from memwatch.reporting.render.words import count, duration
from memwatch_monitor.history.holders import HOLDER_KINDS, parse_name
from memwatch_monitor.history.series import headroom_ends, unit_of
from memwatch_monitor.history.tiers import Bucket

COLOURS = 6
# Lengths of strokes and gaps, for the script and the pictures of the server. No two curves of a chart look alike.
DASHES = ((), (7, 4), (2, 3), (11, 3, 2, 3), (5, 2, 1, 2, 1, 2))
POOL_WORDS = {
    "used_bytes": "used",
    "available_bytes": "available",
    "free_bytes": "free",
    "unattributed_bytes": "unattributed",
}
# Series of available memory. Their colours, by number in a chart, begin with that of text: green is GPU memory.
LEFT_COLOURS = (0, 3, 4, 5, 6, 1)
LEFT = (".available_bytes", ".free_bytes", ".headroom_after_reclaim_bytes", ".headroom_bytes")
FIXED_LABELS = {
    "kernel.oom_kills_total": "OOM kills",
    "kernel.oom_kills_machine_total": "OOM kills for lack of System RAM",
    "kernel.oom_kills_cgroup_total": "OOM kills at limits of cgroups",
    "swap.used_bytes": "used",
    "psi.some.ratio_10s": "some tasks stalled",
    "psi.full.ratio_10s": "all tasks stalled",
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
    "level": "Pressure level",
    "seconds": "Times",
    "count": "Counts",
}


class Curve(Struct, frozen=True):
    """One series in a chart. `colour` counts from 1; 0 is that of text.

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
    "device_bytes": "{} memory",
}
ENGINE_WORDS = {"kv_cache_used_bytes": "KV cache used by {}", "kv_cache_ratio": "KV cache of {}, fraction used"}
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
    left = [name for name in names[:COLOURS] if name.endswith(LEFT)]
    curves = [
        Curve(
            name,
            build_label(name, snapshot, titles),
            LEFT_COLOURS[left.index(name)] if name in left else number % COLOURS + 1,
            choose_dash(number, name),
        )
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
    root = find_root(place, {share.id: share.within for share in snapshot.shares})
    return root if root in snapshot.labels else None


def build_holder_label(kind: str, holder: str, figure: str, titles: Mapping[str, str], devices: str) -> str:
    """Return the label of a process, unit or container: "train.py (PID 41) GPU memory"."""
    title = shorten_ids(titles.get(f"{kind}.{holder}", "") or ("" if kind == "process" else holder))
    if kind == "process":
        pid = f"PID {holder.partition('-')[0]}"
        title = f"{title} ({pid})" if title else pid
    return f"{title} {HOLDER_WORDS[figure].format(devices)}".rstrip()


def build_label(name: str, snapshot: Snapshot, titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the label of a series. For removed hardware it is the name of the series."""
    if parsed := parse_name(name):
        return build_holder_label(*parsed, titles, snapshot.accelerators)
    kind, _, rest = name.partition(".")
    thing, _, figure = rest.rpartition(".")
    if name in FIXED_LABELS:
        return FIXED_LABELS[name]
    if kind == "pool" and figure in POOL_WORDS:
        return POOL_WORDS[figure]
    if kind == "share":
        return next((snapshot.relation(one) for one in snapshot.shares if one.id == thing), name)
    if kind == "engine" and figure in ENGINE_WORDS:
        return ENGINE_WORDS[figure].format(thing)
    if kind == "node":
        return f"largest free block, node {thing}"
    if kind == "device":
        return next((_device_label(one, figure, snapshot) for one in snapshot.devices if one.id == thing), name)
    if kind == "pressure" and thing in snapshot.labels:
        words = {"ratio": "{}", "level": "level, {}", "seconds_to_full": "time to full, {}"}
        return words.get(figure, name).format(snapshot.labels[thing])
    return name


def _device_label(device: Device, figure: str, snapshot: Snapshot) -> str:
    """Return the label of a headroom. That of a card's own memory is one figure, without page cache."""
    is_alone = sum(one.name == device.name for one in snapshot.devices) == 1
    end = "" if figure == headroom_ends(device)[-1] else ", without reclaim"
    return f"can be allocated on {device.name if is_alone else f'{device.name} ({device.id})'}{end}"


def _headroom_of(device: Device) -> str:
    """Return the series of what a device can allocate, after reclaim of page cache where there is some."""
    return f"device.{device.id}.{headroom_ends(device)[-1]}"


def usual_series(known: Sequence[str], snapshot: Snapshot) -> list[str]:
    """Return the default series, of which a page draws MAX_SERIES.

    These are use of pools and device shares, headroom of devices (or available), and pressure.
    """
    within = [share.id for share in snapshot.shares if share.kind not in (ShareKind.CGROUP, ShareKind.GPU_LIMIT)]
    served = {choose_chart(_headroom_of(one), snapshot) for one in snapshot.devices}
    wanted = [f"pool.{pool.id}.used_bytes" for pool in snapshot.pools]
    wanted += [f"pressure.{pool.id}.ratio" for pool in snapshot.pools]
    wanted += [f"share.{share}.used_bytes" for share in within]
    wanted += map(_headroom_of, snapshot.devices)
    wanted += [f"pool.{pool.id}.available_bytes" for pool in snapshot.pools if pool.id not in served]
    return [name for name in wanted if name in known]


MAX_ANNOTATIONS = 100
# Shown elsewhere, or too frequent for a chart.
HIDDEN_KINDS = frozenset({"alert", "late", "reloaded", "silence", "test"})
WORDS = {
    "started": "start",
    "level": "level",
    "oom_kill": "OOM kill",
    "driver": "driver",
    "suspend": "suspended",
    "clock": "clock set",
    "collector": "collector",
    "release": "released",
    "unclean": "unclean shutdown",
    "replay": "restart",
    "leak": "leak?",
    "mark": "mark",
}


class Gap(Struct, frozen=True):
    """A time range without data; `words` give the reason if known."""

    start: float
    end: float
    words: str


class LevelSpan(Struct, frozen=True):
    """A time range at one level."""

    start: float
    end: float
    level: Level


class Annotation(Struct, frozen=True):
    """An event in a chart. `word` is the label above the plot; `target` is set for events of one target."""

    unix: float
    kind: str
    word: str
    text: str
    target: str | None = None


def find_gaps(
    buckets: Sequence[Bucket], start: float, end: float, step: float, events: Iterable[Event]
) -> list[Gap]:
    """Return the gaps of a series that exists whenever memwatchd runs, including those before and after its data.

    All times are Unix seconds, also in the buckets. `step` is the time that one point covers.
    """
    known = [bucket.boottime for bucket in buckets if bucket.average is not None]
    if not known:
        return [Gap(start, end, "no history in this range")]
    events = list(events)
    slept, started = ([event.unix for event in events if event.kind == kind] for kind in ("suspend", "started"))
    gaps = [Gap(start, known[0], "no older history")] if known[0] - start > 2 * step else []
    restarts = find_restarts(buckets) + started
    for bucket, after in pairwise(buckets):
        if bucket.average is None:
            began, ended = bucket.boottime, after.boottime
            is_in = [any(began <= unix <= ended + 2 * step for unix in times) for times in (slept, restarts)]
            gaps.append(Gap(began, ended, f"no data for {duration(ended - began)}: {explain_gap(*is_in)}"))
    if end - known[-1] > 4 * step:
        gaps.append(Gap(known[-1] + step, end, "no data since"))
    return gaps


def explain_gap(is_suspended: bool, is_restarted: bool) -> str:
    if is_suspended:
        return "machine suspended"
    return "memwatchd was not running" if is_restarted else "the machine was too busy"


def find_restarts(buckets: Iterable[Bucket]) -> list[float]:
    """Return the times of restarts of memwatchd. Its CPU time never decreases during a run."""
    known = [bucket for bucket in buckets if bucket.minimum is not None]
    return [
        after.boottime
        for before, after in pairwise(known)
        if after.minimum is not None and before.minimum is not None and after.minimum < before.minimum
    ]


def find_level_spans(buckets: Sequence[Bucket], step: float) -> list[LevelSpan]:
    """Return the runs of each level above OK. A bucket has the highest level within it."""
    runs: list[LevelSpan] = []
    for number, bucket in enumerate(buckets):
        if not bucket.maximum:
            continue
        end = buckets[number + 1].boottime if number + 1 < len(buckets) else bucket.boottime + step
        level = Level(int(bucket.maximum))
        if runs and runs[-1].level is level and bucket.boottime - runs[-1].end < step / 2:
            runs[-1] = LevelSpan(runs[-1].start, end, level)
        else:
            runs.append(LevelSpan(bucket.boottime, end, level))
    return runs


def build_annotations(events: Iterable[Event], start: float, end: float) -> list[Annotation]:
    """Return the events of a time range, oldest first."""
    return [
        Annotation(event.unix, event.kind, choose_word(event), event.text, event.target)
        for event in events
        if start <= event.unix <= end and event.kind not in HIDDEN_KINDS
    ]


def most_telling(flags: Sequence[Annotation]) -> list[Annotation]:
    """Return at most MAX_ANNOTATIONS, oldest first. Level changes are dropped first: they are also shown as
    shading."""
    if len(flags) <= MAX_ANNOTATIONS:
        return list(flags)
    others = [flag for flag in flags if flag.kind != "level"][-MAX_ANNOTATIONS:]
    levels = [flag for flag in flags if flag.kind == "level"]
    newest = levels[max(0, len(levels) + len(others) - MAX_ANNOTATIONS) :]
    return sorted([*others, *newest], key=lambda flag: flag.unix)


def describe_dropped(flags: Sequence[Annotation], kept: Sequence[Annotation]) -> str:
    """Return the events that are left out, in words: "74 older level changes are not shown". Empty without any."""
    levels, all_levels = (sum(flag.kind == "level" for flag in some) for some in (kept, flags))
    dropped = {
        f"{'older ' if levels else ''}level change": all_levels - levels,
        "older event": len(flags) - all_levels - (len(kept) - levels),
    }
    parts = [count(number, noun) for noun, number in dropped.items() if number]
    return f"{' and '.join(parts)} {'is' if sum(dropped.values()) == 1 else 'are'} not shown" if parts else ""


def choose_word(event: Event) -> str:
    """Return the label of an event: the text of a mark, the new level, or the kind of event."""
    if event.kind == "mark":
        return event.text
    if event.kind == "level":
        level = event.text.partition("→ ")[2].partition(" ")[0]
        return level or WORDS["level"]
    return "XID" if "XID" in event.text else WORDS.get(event.kind, event.kind.replace("_", " "))


def build_older_annotations(
    runs: Mapping[str, Sequence[LevelSpan]], labels: Mapping[str, str], restarts: Iterable[float], known_from: float
) -> list[Annotation]:
    """Return high levels and restarts from the time before the event list begins. `runs` are by target."""
    found = [
        Annotation(run.start, "level", run.level.word, _level_text(labels.get(target, target), run), target)
        for target, its_runs in runs.items()
        for run in its_runs
        if run.end < known_from and run.level >= Level.HIGH
    ]
    found += [
        Annotation(unix, "started", WORDS["started"], "memwatchd restarted")
        for unix in restarts
        if unix < known_from - 1
    ]
    return sorted(found, key=lambda flag: flag.unix)


def _level_text(label: str, run: LevelSpan) -> str:
    return f"{label} was {run.level.word} for up to {duration(run.end - run.start)}"
