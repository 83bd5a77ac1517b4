"""The state of a machine in one line: level, time left, use, headroom, and the fastest growing process.

Data for any display. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from memwatch.core.events import Event
from memwatch.core.model import Absent, Bytes, Device, PoolKind, Process, ShareKind
from memwatch.core.pressure.forecast import STATED_FROM
from memwatch.core.pressure.signals import PAST
from memwatch.core.processes.growth import ProcessGrowth, key_of
from memwatch.core.snapshot import Level, Pressure, Reason, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.actions import Action, list_actions
from memwatch.reporting.render.summary import (
    MANY_GPUS,
    Allocatable,
    SilenceNotice,
    compute_headroom,
    find_cuda_free,
    find_notice,
    find_worst,
    name_unknown,
)

# Growth is measured over this time; the tracker has a reading every ten seconds.
GROWTH_SECONDS, MIN_GROWTH_SECONDS = 30.0, 5.0
MIN_BYTES_PER_SECOND = 1 << 20
# From this number on processes of a job are named together, if each grows at this part of the fastest one's rate.
MIN_ALIKE, ALIKE_RATE_RATIO = 3, 0.5
# From this use on even the shortest forecast is stated.
SURELY_STATED_FROM = STATED_FROM[0][1]
# Words of a headline for a level that follows from a signal, not from use.
SIGNAL_WORDS: Mapping[str, str] = {
    "psi": "Stalls",
    "psi_full": "Stalls",
    "livelock": "Futile reclaim",
    "evicted": "Evicted GPU queues",
    "swap": "Full swap",
    "fragmentation": "Fragmentation",
    "driver": "Driver errors",
    "oom_kill": "OOM kill",
}
STATED_SECONDS = re.compile(r"full in about (\d+) s ")
KILLED = re.compile(r"OOM killer: killed (?:(?P<name>.+) \(\d+\)|a process|\d+ process(?:es)?)")


class Grower(Struct, frozen=True):
    """The fastest growing process.

    `alike`: all processes of its job that grow about as fast, itself first, if there are MIN_ALIKE of them.
    `all_bytes_per_second` is the sum of their rates.
    """

    process: Process
    bytes_per_second: float
    alike: tuple[Process, ...] = ()
    all_bytes_per_second: float = 0.0


class Use(Struct, frozen=True):
    """Used memory of a pool or limit, or of several GPUs together."""

    label: str
    used_bytes: Bytes
    size_bytes: Bytes

    @property
    def ratio(self) -> float | Absent:
        if isinstance(self.used_bytes, Absent):
            return self.used_bytes
        if isinstance(self.size_bytes, Absent) or not self.size_bytes:
            return Absent.NOT_AVAILABLE
        return self.used_bytes / self.size_bytes


class StatusLine(Struct, frozen=True):
    """`level` is the word of the API, or "unknown". `since_unix`: begin of the level, or of its recovery, if known.

    `headline` is the most urgent figure: time left, use, or "Recovering". `details`: the other reasons.
    `notice`: the silence that mutes alerts about the level. `actions`: what frees memory where it is short.
    `others`: how many of many targets are above OK as well: "6 more high". Empty otherwise.
    `clears`: what follows if everything stays as it is, and when: "medium in 59 s". Empty if that is not known.
    `beside`: why the headline is the use of a level above OK, not the time left; of many GPUs, the time left of the
    worst; of a recovery, what ends the level that follows: "OK after 30 s below 57%". Empty for other headlines.
    """

    level: str
    target: str | None
    label: str
    headline: str
    details: tuple[str, ...]
    recovering: bool
    since_unix: float | None
    uses: tuple[Use, ...]
    room: Allocatable | None
    cuda_free: int | None
    grower: Grower | None
    notice: SilenceNotice | None = None
    actions: tuple[Action, ...] = ()
    others: str = ""
    clears: str = ""
    beside: str = ""


def build_status_line(
    snapshot: Snapshot, events: Iterable[Event] = (), grown: Iterable[ProcessGrowth] = ()
) -> StatusLine:
    """Return the status line. `events`: newest first; `grown`: growth over the last GROWTH_SECONDS."""
    worst, growers = find_worst(snapshot), rank_growers(grown, snapshot)
    held = hold_deadline(worst) if worst and growers else None
    recovering = worst is not None and words.is_recovering(worst)
    return StatusLine(
        level=worst.level.word if worst else "unknown",
        target=worst.target if worst else None,
        label=snapshot.labels.get(worst.target, worst.target) if worst else "",
        headline=held[0] if held else build_headline(snapshot, worst),
        details=(*(build_details(snapshot, worst) if worst else ()), *filter(None, [name_unknown(snapshot)])),
        recovering=recovering,
        since_unix=_find_begin(snapshot, worst, events) if worst else None,
        uses=tuple(build_uses(snapshot, worst)),
        room=find_room(snapshot),
        cuda_free=find_cuda_free(snapshot),
        grower=_join_alike(growers) if growers else None,
        notice=find_notice(snapshot, worst),
        others=count_others(snapshot, worst) if worst else "",
        clears="" if worst is None else "".join(words.countdown(worst)),
        actions=list_actions(snapshot, worst, [one.process for one in growers]),
        beside=held[1] if held else _say_beside(snapshot, worst, bool(growers)) if worst else "",
    )


def _say_beside(snapshot: Snapshot, worst: Pressure, grows: bool) -> str:
    if words.is_recovering(worst):
        return next(filter(None, [words.way_out(one.text) for one in worst.reasons]), "")
    if build_headline(snapshot, worst) == describe_alike(snapshot, worst):
        return words.full(worst) or (_find_stated(worst) if grows else "")
    return explain_no_forecast(snapshot, worst, grows)


def hold_deadline(worst: Pressure) -> tuple[str, str] | None:
    """Return the headline and its source where the forecast has paused at the critical level while a process grows.

    In the last seconds the kernel reclaims what it can, and available memory stands still. None without a deadline,
    or if the last one has passed for a while.
    """
    if worst.level is not Level.CRITICAL or words.is_recovering(worst) or words.full(worst):
        return None
    past = next(filter(None, [PAST.fullmatch(one.text) for one in worst.reasons if one.signal == "ttf"]), None)
    stated = STATED_SECONDS.match(past["text"]) if past else None
    left = int(stated[1]) - int(past["age"]) if past and stated else -words.IN_SECONDS
    if past is None or left <= -words.IN_SECONDS:
        return None
    return words.full_after(left).capitalize(), f"forecast {past['age']} s ago"


def explain_no_forecast(snapshot: Snapshot, worst: Pressure, grows: bool) -> str:
    """Return why memory that is short has no time left: "no forecast: no process grows". Empty for other headlines.

    `grows`: True if a process grows. While one does, a forecast that was stated a moment ago is not withdrawn.
    """
    if build_headline(snapshot, worst) != f"{words.ratio(worst.ratio)} used":
        return ""
    if not grows:
        return "no forecast: no process grows"
    stated = _find_stated(worst)
    if stated:
        return stated
    if worst.ratio < SURELY_STATED_FROM:
        return f"no forecast yet: most growth stops before {SURELY_STATED_FROM:.0%}"
    said, swap = "no forecast: no steady fall of available memory", snapshot.swap
    if worst.kind != PoolKind.SYSTEM_RAM.value or isinstance(swap, Absent) or not swap.used_bytes:
        return said
    return f"{said}; swap {words.ratio(swap.used_bytes / swap.size_bytes)} used"


def _find_stated(worst: Pressure) -> str:
    """Return the forecast that was stated a moment ago, with its age. Empty without one."""
    pasts = (PAST.fullmatch(one.text) for one in worst.reasons if one.signal == "ttf")
    past = next(filter(None, pasts), None)
    return _in_the_past("ttf", past).removesuffix(" at the current rate") if past else ""


def build_headline(snapshot: Snapshot, worst: Pressure | None) -> str:
    """Return the most urgent figure: "Full in ~17 s", "94.6% used", "3 of 8 GPUs critical", "Recovering".

    At the critical level that is the time left, if there is one. Where use does not explain the level, the headline
    names the signal: "Stalls at 11.2% used".
    """
    if worst is None:
        return "No memory data"
    if words.is_recovering(worst):
        return "Recovering"
    if worst.level is Level.LOW:
        return "OK"
    many = describe_alike(snapshot, worst)
    if many and not (worst.level is Level.CRITICAL and words.full(worst)):
        return many
    used = f"{words.ratio(worst.ratio)} used"
    return words.full(worst).capitalize() or " at ".join(filter(None, [_name_signal(worst), used]))


def _name_signal(worst: Pressure) -> str:
    """Return the words of the signal that a level follows from, those of now first. Empty if it is use."""
    is_held_by_use = any(one.signal == "util" and words.HELD.search(one.text) for one in worst.reasons)
    if worst.base_level >= worst.level or is_held_by_use:
        return ""
    known = [one for one in words.stated(worst) if one.signal in SIGNAL_WORDS]
    known.sort(key=lambda one: (PAST.fullmatch(one.text) is not None, -(one.level or worst.level)))
    return SIGNAL_WORDS[known[0].signal] if known else ""


def describe_alike(snapshot: Snapshot, worst: Pressure) -> str:
    """Count the targets at the worst level, if there are many: "3 of 8 GPUs critical". Else empty."""
    alike = [one for one in snapshot.pressure if one.level is worst.level]
    if len(alike) < 2 or len(snapshot.pressure) <= MANY_GPUS:
        return ""
    return f"{len(alike)} of {count_targets(snapshot, alike)} {worst.level.label}"


def count_targets(snapshot: Snapshot, alike: Sequence[Pressure]) -> str:
    """Count the targets of the kind that these are of: "56 MIG instances", "8 GPUs", "11 targets"."""
    kinds = {one.kind for one in alike}
    for noun, wanted in (("MIG instances", {"mig_instance"}), ("GPUs", {"vram", "hbm"})):
        if kinds <= wanted:
            return f"{sum(one.kind in wanted for one in snapshot.pressure)} {noun}"
    return f"{len(snapshot.pressure)} pools and limits"


def count_others(snapshot: Snapshot, worst: Pressure) -> str:
    """Count the other targets at the highest level among them, if it is above OK: "6 more high"."""
    others = [one.level for one in snapshot.pressure if one.target != worst.target and one.level > Level.LOW]
    return f"{others.count(max(others))} more {max(others).label}" if others else ""


def build_details(snapshot: Snapshot, worst: Pressure) -> tuple[str, ...]:
    """Return what the headline does not say: when the level clears, kills, other reasons."""
    ordered = sorted(words.stated(worst), key=lambda one: (one.signal != "oom_kill", one.signal == "util"))
    is_filling = bool(words.full(worst)) or worst.level is Level.LOW
    found = [text for one in ordered if not (is_filling and one.signal == "ttf") for text in _list_details(one)]
    many = describe_alike(snapshot, worst) if worst.level is Level.CRITICAL and words.full(worst) else ""
    return tuple(filter(None, [many, *words.countdown(worst), *found]))


def _list_details(reason: Reason) -> Sequence[str]:
    past, held = PAST.fullmatch(reason.text), words.HELD.search(reason.text)
    if past:
        return (_in_the_past(reason.signal, past),)
    if reason.signal == "util":
        return (reason.text[: held.start()], words.way_out(reason.text)) if held else ()
    return (reason.text,)


def _in_the_past(signal: str, past: re.Match[str]) -> str:
    killed = KILLED.match(past["text"])
    if killed:
        return f"OOM kill {past['age']} s ago" + (f": {killed['name']}" if killed["name"] else "")
    if signal == "ttf":
        return f"forecast {past['age']} s ago: {past['text']}"
    return f"{past['text']} ({past['age']} s ago)"


def _find_begin(snapshot: Snapshot, worst: Pressure, events: Iterable[Event]) -> float | None:
    """Return when the level began, or its recovery: when its last cause ended, None while use is not calm."""
    if not words.is_recovering(worst):
        return find_since(worst, events)
    found = [words.over_for(one.text) for one in worst.reasons if one.level in (None, worst.level)]
    ages = [age for age in found if age is not None]
    return snapshot.unix - min(ages) if ages and len(ages) == len(found) else None


def find_since(worst: Pressure, events: Iterable[Event]) -> float | None:
    """Return when the target reached its level, None if that event is no longer kept. `events`: newest first."""
    return next((one.unix for one in events if one.kind == "level" and one.target == worst.target), None)


def build_uses(snapshot: Snapshot, worst: Pressure | None) -> Iterable[Use]:
    """Yield the use of the worst target; with many GPUs that of all GPUs together, and of System RAM."""
    gpus = [pool for pool in snapshot.pools if pool.kind in (PoolKind.VRAM, PoolKind.HBM)]
    if len(gpus) >= MANY_GPUS:
        known = [(pool.used_bytes, pool.size_bytes) for pool in gpus if isinstance(pool.used_bytes, int)]
        beside = "" if len(known) == len(gpus) else f" of {len(gpus)}"
        used: Bytes = sum(one for one, _ in known) if known else gpus[0].used_bytes
        sizes = [size for _, size in known] or [pool.size_bytes for pool in gpus]
        yield Use(f"used on {len(sizes)}{beside if known else ''} GPUs", used, sum(sizes))
        for pool in snapshot.pools:
            if pool.kind is PoolKind.SYSTEM_RAM:
                yield Use(f"used of {pool.label}", pool.used_bytes, pool.size_bytes)
        return
    target = worst.target if worst else snapshot.pools[0].id if snapshot.pools else None
    for pool in snapshot.pools:
        if pool.id == target:
            yield Use(f"used of {pool.label}", pool.used_bytes, pool.size_bytes)
    for share in snapshot.shares:
        if share.id == target:
            yield Use(f"used of {share.label}", share.used_bytes, share.limit_bytes)


def find_room(snapshot: Snapshot) -> Allocatable | None:
    """Return the largest allocation that fits: on a device, or in System RAM without one."""
    rooms = [room for device in snapshot.devices for room in _rooms_of(device, snapshot)]
    if not rooms:
        return compute_headroom(snapshot)
    return max(rooms, key=_most_of)


def explain_room(room: Allocatable, snapshot: Snapshot) -> str:
    """Return the limit that leaves less room than a pool has: "Metal working set is limited to 27.0 GiB".

    Empty without one.
    """
    most = room.headroom_after_reclaim_bytes
    available = {pool.id: pool.available_bytes for pool in snapshot.pools}
    for share in snapshot.shares:
        left, limit = available.get(share.within), share.limit_bytes
        if isinstance(left, Absent) or left is None or isinstance(most, Absent) or left <= most:
            continue
        if share.left_bytes == most and isinstance(limit, int) and share.kind is not ShareKind.MIG_INSTANCE:
            return f"{share.label} is limited to {words.size(limit)}"
    return ""


def _most_of(room: Allocatable) -> int:
    most = room.headroom_after_reclaim_bytes
    return most if isinstance(most, int) else -1


def _rooms_of(device: Device, snapshot: Snapshot) -> Iterable[Allocatable]:
    """Yield the room of each MIG instance of a device, else that of the device."""
    slices = [
        share
        for share in snapshot.shares
        if share.id in device.allocates_from and share.kind is ShareKind.MIG_INSTANCE
    ]
    for share in slices:
        left = share.left_bytes
        yield Allocatable(share.label, left, left)
    if not slices:
        places = [snapshot.labels[place] for place in device.allocates_from] if len(snapshot.devices) > 1 else []
        yield Allocatable(
            ", ".join(places) or device.name, device.headroom_bytes, device.headroom_after_reclaim_bytes
        )


def rank_growers(grown: Iterable[ProcessGrowth], snapshot: Snapshot) -> list[Grower]:
    """Return the processes that grow by 1 MiB per second or more, the fastest first.

    A process that returns memory does not grow, even if it still holds more than at the begin of the window. Nor
    does one that the snapshot does not list: it has ended.
    """
    listed = {key_of(one) for one in snapshot.processes}
    rates = [
        Grower(one.process, one.grown_bytes / seconds)
        for one in grown
        if not one.falling
        and key_of(one.process) in listed
        and (seconds := one.to_boottime - one.from_boottime) >= MIN_GROWTH_SECONDS
    ]
    fast = [one for one in rates if one.bytes_per_second >= MIN_BYTES_PER_SECOND]
    return sorted(fast, key=lambda one: -one.bytes_per_second)


def _join_alike(growers: Sequence[Grower]) -> Grower:
    """Return the fastest with those of its job that grow about as fast."""
    first = growers[0]
    alike = [
        one
        for one in growers
        if is_of_job(one.process, first.process)
        and one.bytes_per_second >= ALIKE_RATE_RATIO * first.bytes_per_second
    ]
    if len(alike) < MIN_ALIKE:
        return first
    total = sum(one.bytes_per_second for one in alike)
    return Grower(first.process, first.bytes_per_second, tuple(one.process for one in alike), total)


def is_of_job(one: Process, other: Process) -> bool:
    """Return True for processes of one job. Names alone are none: two users may train with train.py."""
    mine, its = ((each.title, each.user, each.unit, each.container, each.job) for each in (one, other))
    return mine == its


def count_members(members: Sequence[Process]) -> str:
    """Count the processes of a job: "7 ranks", "7 processes"."""
    noun = "ranks" if all(one.rank is not None for one in members) else "processes"
    return f"{len(members)} {noun}"
