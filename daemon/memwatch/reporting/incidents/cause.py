"""Cause of an incident: the process, unit or container that took the memory. Pure functions.

A name needs evidence: half of what the target lost, and twice as much as any other. Without it the cause is
undecided, and the candidates are listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.owners import is_qualified
from memwatch.reporting.incidents.readings import HolderKey, Holding, Reading
from memwatch.reporting.incidents.records import Suspect

# The rise is looked for in this time. Longer ones are in the sizes of the last hour.
WINDOW_SECONDS = 130.0
# Sizes this long before the worst moment count as those at it: processes are read once a second near exhaustion.
SIZE_SECONDS = 2.5
# The peak is looked for this long before the first kill, which may have freed memory before it was noticed.
PEAK_SECONDS = 15.0
MIN_GROWTH_BYTES, MIN_GROWTH_RATIO = 64 << 20, 0.005
# Part of the rise that a suspect has to explain, and its lead over the next one.
EXPLAINS, LEADS = 0.5, 2.0
# Growth over an hour has other causes more often: it has to be larger, and to lead by more.
LONG_RATIO, LONG_LEADS = 0.05, 3.0
# A rise and the growth of a process are found without this part at each end. They reach from there as far as they
# are steep, with this part of their rate, over pauses of this time.
EDGE_RATIO, STEEP_RATIO, PAUSE_SECONDS = 0.05, 0.2, 5.0
MAX_CANDIDATES = 4
# Units with the processes of a whole session: not one program.
BROAD_UNITS = ("user@", "session-", "user-", "init.scope")
NO_PROCESS = "memory of no process (kernel and drivers)"
# Parts of System RAM that no process is listed with.
UNHELD = ("unattributed", "kernel", "shared_memory", "huge_pages")


class Observed(Struct, frozen=True):
    """Size of a process in the line about its end."""

    name: str
    size: int
    unit: str | None = None
    container: str | None = None


class Rise(Struct, frozen=True):
    """The rise of a target's use until its worst moment. At `end` it had happened."""

    begin: Reading
    peak: Reading
    end: Reading

    @property
    def taken(self) -> int:
        return max(0, self.peak.used - self.begin.used)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end.boottime - self.begin.boottime)


class Growth(Struct, frozen=True):
    """Growth of one process during the rise."""

    key: HolderKey
    holding: Holding
    grown: int
    began: float
    is_new: bool


class Finding(Struct, frozen=True):
    """`cause` is None while undecided. `accounted`: bytes of the rise that the processes' growth explains.

    `left_out`: number of candidates that grew less than those in the list.
    """

    cause: Suspect | None = None
    candidates: tuple[Suspect, ...] = ()
    rise: Rise | None = None
    accounted: int = 0
    is_long: bool = False
    left_out: int = 0


Members = Callable[[Holding], bool]


def find_cause(
    readings: Sequence[Reading],
    until: float,
    size_bytes: int,
    observed: Mapping[int, Observed] | None = None,
    members: Members | None = None,
    long: Sequence[Suspect] = (),
) -> Finding:
    """Return the cause of what happened at boot time `until`.

    `observed`: sizes by PID from the kernel log. `members` restricts the suspects to those of a cgroup. `long`:
    growth of processes over the last hour, for a rise that is too slow to see.
    """
    rise = find_rise(readings, until)
    if rise is None:
        return Finding()
    least = find_least(size_bytes)
    growths = [one for one in list_growths(readings, rise, until, observed or {}) if one.grown >= least // 4]
    if members is not None:
        growths = [one for one in growths if members(one.holding)]
        return _conclude(growths, least, rise, needs=least)
    if rise.taken < least and not any(one.grown >= least for one in growths):
        return _conclude_long(long, size_bytes, rise)
    found = _conclude(growths, least, rise, needs=max(least, int(rise.taken * EXPLAINS)))
    is_slow = rise.taken < LONG_RATIO * size_bytes
    return _extend(found, long) if is_slow else found


def find_least(size_bytes: int) -> int:
    """Return the bytes from which a growth counts, in a target of this size."""
    return max(MIN_GROWTH_BYTES, int(size_bytes * MIN_GROWTH_RATIO))


def _extend(found: Finding, long: Sequence[Suspect]) -> Finding:
    """Replace the last part of a slow growth by all of the last hour, of the same process."""
    cause = found.cause
    for one in long if cause is not None else ():
        if cause is not None and one.pid == cause.pid and one.growth_bytes >= LEADS * cause.growth_bytes:
            return replace(found, cause=one, is_long=True)
    return found


def find_rise(readings: Sequence[Reading], until: float) -> Rise | None:
    past = [one for one in readings if one.boottime <= until + 0.05][-2000:]
    if not past:
        return None
    near = [one for one in past if one.boottime >= until - PEAK_SECONDS] or past[-1:]
    peak = max(near, key=lambda one: (one.used, one.boottime))
    before = [one for one in past if peak.boottime - WINDOW_SECONDS <= one.boottime <= peak.boottime]
    base = min(before, key=lambda one: one.used)
    most = base.used + EDGE_RATIO * (peak.used - base.used)
    first = max(place for place, one in enumerate(before) if one.used <= most)
    nearly = peak.used - EDGE_RATIO * (peak.used - before[first].used)
    last = next(place for place, one in enumerate(before) if place >= first and one.used >= nearly)
    points = [(one.boottime, one.used) for one in before]
    steep = STEEP_RATIO * _measure_rate(points[first], points[last])
    return Rise(before[follow(points, first, -1, steep)], peak, before[follow(points, last, 1, steep)])


def follow(points: Sequence[tuple[float, int]], place: int, step: Literal[-1, 1], rate: float) -> int:
    """Return how far times and bytes rise by more than this rate, from a point on backward or forward.

    A machine that is short of memory reads late: figures of before are no pause, for PAUSE_SECONDS at most.
    """
    other = place + step
    while 0 <= other < len(points):
        is_near = abs(points[other][0] - points[place][0]) <= PAUSE_SECONDS
        if other != place + step and not is_near:
            break
        if _measure_rate(points[place], points[other]) > max(0.0, rate):
            place = other
        other += step
    return place


def _measure_rate(one: tuple[float, int], other: tuple[float, int]) -> float:
    """Return the bytes per second between two points, 0 without time between them."""
    seconds = other[0] - one[0]
    return (other[1] - one[1]) / seconds if seconds else 0.0


def list_growths(
    readings: Sequence[Reading], rise: Rise, until: float, observed: Mapping[int, Observed]
) -> list[Growth]:
    """Return the growth of each process from the begin of the rise to the worst moment, the largest first."""
    final = _sizes_at_peak(readings, rise, until)
    for pid, seen in observed.items():
        key = next((one for one in final if one.pid == pid), None) or _find_key(readings, pid)
        known = final.get(key) or Holding(seen.name, seen.unit, seen.container, 0, None)
        if seen.size > known.size:
            final[key] = known._replace(size=seen.size)
    found = [_measure(readings, rise, key, holding) for key, holding in final.items()]
    return sorted(found, key=lambda one: (-one.grown, one.key.pid))


def _sizes_at_peak(readings: Sequence[Reading], rise: Rise, until: float) -> dict[HolderKey, Holding]:
    """Return the largest size of each process shortly before the peak and up to `until`."""
    final: dict[HolderKey, Holding] = {}
    seen: set[int] = set()
    for reading in readings:
        inside = rise.peak.boottime - SIZE_SECONDS <= reading.boottime <= until + 0.05
        if not inside or id(reading.holders) in seen:
            continue
        seen.add(id(reading.holders))
        for key, holding in reading.holders.items():
            if key not in final or holding.size > final[key].size:
                final[key] = holding
    return final


def _find_key(readings: Sequence[Reading], pid: int) -> HolderKey:
    """Return the identity of a process that was listed earlier, else one without a start time."""
    for reading in reversed(readings):
        for key in reading.holders:
            if key.pid == pid:
                return key
    return HolderKey(pid, 0.0)


def _measure(readings: Sequence[Reading], rise: Rise, key: HolderKey, holding: Holding) -> Growth:
    before, begin = rise.begin.holders.get(key), rise.begin
    if before is not None:
        grown = holding.size - before.size
        return Growth(key, holding, grown, _find_begin(readings, rise, key, before.size, grown), False)
    started = holding.started
    if started is not None and started >= begin.unix - SIZE_SECONDS:
        return Growth(key, holding, holding.size, started, True)
    # Only the largest processes are listed: one that was not was smaller than the smallest.
    least = min((one.size for one in begin.holders.values()), default=0)
    first = next((one for one in readings if key in one.holders and one.boottime >= begin.boottime), rise.peak)
    return Growth(key, holding, holding.size - least, min(first.unix, rise.peak.unix), False)


def _find_begin(readings: Sequence[Reading], rise: Rise, key: HolderKey, size: int, grown: int) -> float:
    """Return the time of the scan from which on the process grew without a pause, not before the rise began.

    A scan is in several readings: the process may have grown since the first of them.
    """
    scan, points = rise.begin.holders, [(rise.begin.unix, size)]
    for reading in readings:
        holding = reading.holders.get(key)
        if reading.boottime < rise.begin.boottime or holding is None or reading.holders == scan:
            continue
        scan = reading.holders
        points.append((reading.unix, holding.size))
        if holding.size > size + EDGE_RATIO * grown or reading.boottime > rise.peak.boottime:
            steep = STEEP_RATIO * _measure_rate(points[-2], points[-1])
            return points[follow(points, len(points) - 2, -1, steep)][0]
    return points[-1][0]


def _conclude(growths: Sequence[Growth], least: int, rise: Rise, needs: int) -> Finding:
    suspects = [to_suspect(one) for one in growths]
    accounted = sum(one.grown for one in growths)
    cause = _pick(suspects, needs, LEADS) or _pick(_group(suspects), needs, LEADS)
    if cause is not None:
        return Finding(cause, (), rise, accounted)
    unheld = _unheld(rise, least)
    candidates = sorted([*suspects, *unheld], key=lambda one: -one.growth_bytes)
    left_out = len(candidates[MAX_CANDIDATES:])
    return Finding(None, tuple(candidates[:MAX_CANDIDATES]), rise, accounted, left_out=left_out)


def _conclude_long(long: Sequence[Suspect], size_bytes: int, rise: Rise) -> Finding:
    ordered = sorted(long, key=lambda one: -one.growth_bytes)
    cause = _pick(ordered, max(MIN_GROWTH_BYTES, int(size_bytes * LONG_RATIO)), LONG_LEADS)
    grown = tuple(one for one in ordered if one.growth_bytes >= MIN_GROWTH_BYTES)
    candidates = () if cause is not None else grown[:MAX_CANDIDATES]
    left_out = len(grown) - len(candidates) if candidates else 0
    return Finding(cause, candidates, rise, is_long=bool(cause or candidates), left_out=left_out)


def _pick(suspects: Sequence[Suspect], needs: int, leads: float) -> Suspect | None:
    """Return the first suspect if it explains enough and leads the second."""
    if not suspects or suspects[0].growth_bytes < needs:
        return None
    second = suspects[1].growth_bytes if len(suspects) > 1 else 0
    return suspects[0] if suspects[0].growth_bytes >= leads * second else None


def owner_key(unit: str | None, container: str | None) -> str | None:
    """Return the owner that tells programs apart: the unit inside a container, the container, or the unit.

    None for a unit that runs many programs, such as a login session.
    """
    is_broad = unit is None or unit.startswith(BROAD_UNITS)
    if is_qualified(unit) and not is_broad:
        return unit
    return container or (None if is_broad else unit)


def _group(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Sum up the processes of each container, or of each unit that is one program."""
    groups: defaultdict[object, list[Suspect]] = defaultdict(list)
    for one in suspects:
        groups[owner_key(one.unit, one.container) or one.pid].append(one)
    return sorted((_sum(group) for group in groups.values()), key=lambda one: -one.growth_bytes)


def _sum(group: Sequence[Suspect]) -> Suspect:
    first = group[0]
    if len(group) == 1:
        return first
    return Suspect(
        f"{len(group)} processes of {owner_key(first.unit, first.container)}",
        None,
        first.unit,
        first.container,
        sum(one.growth_bytes for one in group),
        min(one.began for one in group),
        sum(one.held_bytes for one in group),
        all(one.is_new for one in group),
    )


def to_suspect(growth: Growth) -> Suspect:
    one = growth.holding
    return Suspect(
        one.name, growth.key.pid, one.unit, one.container, growth.grown, growth.began, one.size, growth.is_new
    )


def grown_part(rise: Rise) -> int:
    """Return the growth of memory that no process is listed with."""
    before, after = rise.begin.parts, rise.peak.parts
    return sum(max(0, after[name] - before[name]) for name in UNHELD if name in before and name in after)


def _unheld(rise: Rise, least: int) -> list[Suspect]:
    grown = grown_part(rise)
    if grown < least:
        return []
    held = sum(rise.peak.parts.get(name, 0) for name in UNHELD)
    return [Suspect(NO_PROCESS, None, None, None, grown, rise.begin.unix, held)]
