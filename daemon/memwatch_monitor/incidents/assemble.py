"""Build the record of an incident from what was gathered. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.events import MARK
from memwatch.core.guardian_report import GUARDIAN_EVENTS
from memwatch.core.listing import first_of, some_of
from memwatch.core.model import RAM, RAM_LABEL, Absent, PoolKind
from memwatch.core.snapshot import Level
from memwatch.core.units import duration, size
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.incidents.cause import Finding, Members, Observed, find_cause, find_least
from memwatch.reporting.incidents.killer import Death, choose_killer, is_member, mark_victims
from memwatch.reporting.incidents.readings import FrameReader, Holding, Reading, read_ticks
from memwatch.reporting.incidents.records import Entry, Incident, Killer, Sample, Suspect, Victim
from memwatch_monitor.incidents.open_incident import MAX_DEATHS, MAX_ENDS, OpenIncident
from memwatch_monitor.incidents.sentence import describe_cause, list_evidence, write_sentence

MAX_ENTRIES, MAX_SAMPLES, MAX_HOLDERS, MAX_EVIDENCE, MAX_NAMED = 200, 120, 6, 30, 3
# Ends and starts of smaller processes are not worth an entry.
MIN_PROCESS_BYTES = 64 << 20
BEFORE_SECONDS = 60.0
# The uses of System RAM that the picture of an incident shows.
SAMPLE_PARTS = ("huge_pages", "shared_memory", "kernel", "unattributed", "page_cache", "swap")
MARK_SECONDS, MAX_MARK = 10.0, 60
# Fractions of time that tasks stall, from which on a stall is an entry.
STALLS = (0.1, 0.4)
NO_EVENTS: frozenset[str] = frozenset({"started", "test", "reloaded"})


def build_incident(
    one: OpenIncident, now: float | None = None, notes: Sequence[str] = (), quiet_until: float | None = None
) -> Incident:
    """Return the incident as it is known now. `now`: boot time at which its record is closed, None before.

    `quiet_until`: Unix time at which that will be, None while it lasts.
    """
    readings = FrameReader(one.place or one.target).read_all(one.frames)
    deaths = [death for _, death in one.deaths]
    death = choose_killer(deaths)
    finding = _find(one, readings)
    victims = mark_victims(deaths, finding.cause)
    lowest = min((r for r in readings if r.boottime >= one.boottime - BEFORE_SECONDS), key=_available, default=None)
    is_lasting = now is None and quiet_until is None
    came_back = None if is_lasting or lowest is None else _sum_returned(one, readings[-1], lowest, victims)
    if one.is_of_cgroup:  # what other processes leave is no matter of the cgroup
        lowest = None
    first = None if death is None else next(v for v in victims if v.unix == death.victim.unix)
    left = None if lowest is None else lowest.available
    mark = find_mark(one, finding)
    detail = one.describe()
    others = 0 if death is None else sum(each.count for each in deaths) + one.more_deaths - death.count
    sentence = write_sentence(one.kind, one.label, finding, death, victims, left, detail, mark, one.labels, others)
    if one.times > 1:
        sentence = (
            f"{sentence[:-1]}; it happened {one.times} times in {units.duration(one.began - one.first_began)}."
        )
    shown = replace(finding, rise=None) if one.is_of_cgroup else finding
    evidence = [*list_evidence(one.label, shown, deaths), *one.notes, *notes]
    evidence += list_reports(one)
    if one.more_deaths:
        evidence.append(
            f"{one.more_deaths} more processes were killed after {MAX_DEATHS} reports of kills; none is listed."
        )
    if one.more_ends:
        evidence.append(f"{one.more_ends} more processes ended; the timeline has the first {MAX_ENDS}.")
    if one.kind == "gpu_lost":
        evidence += _list_driver_lines(one)
    elif came_back is not None:
        evidence.append(_describe_return(one, readings, victims, came_back))
    return Incident(
        id=one.id,
        kind=one.kind,
        target=one.target,
        label=one.label,
        began=one.began,
        ended=None if now is None else one.bad_unix,
        sentence=sentence,
        cause=finding.cause,
        candidates=finding.candidates,
        killer=None if death is None else death.killer,
        victim=first,
        victims=victims,
        size_bytes=one.size_bytes or (None if one.is_of_cgroup else 0),
        lowest_available_bytes=left,
        came_back_bytes=came_back,
        evidence=first_of(evidence, MAX_EVIDENCE, "observations"),
        timeline=tuple(list_entries(one, readings, deaths)),
        samples=() if one.is_of_cgroup else sample(readings, finding, has_parts=_is_system_ram(one)),
        gpu_holders=() if one.is_of_cgroup else list_gpu_holders(readings),
        boot_id=one.boot_id,
        times=one.times,
        first_began=one.first_began if one.times > 1 else None,
        growth_seconds=measure_growth(finding),
        rise_bytes=None if finding.rise is None or finding.is_long or one.is_of_cgroup else finding.rise.taken,
        kills=sum(each.count for each in deaths if each.killer.kind != "program") + one.more_deaths,
        told=(),
        quiet_until=None if now is not None else quiet_until,
    )


def list_reports(one: OpenIncident) -> list[str]:
    """Return what memwatch-guardian did, or would have done, in the shortage of this incident."""
    since = one.began - BEFORE_SECONDS
    of_target = [event for event in one.events if event.target == one.target and event.unix >= since]
    return [event.text for event in of_target if event.kind in GUARDIAN_EVENTS]


def measure_growth(finding: Finding) -> float | None:
    """Return the seconds in which the cause grew, None without a cause or a rise."""
    cause, rise = finding.cause, finding.rise
    return None if cause is None or rise is None else max(0.0, rise.end.unix - cause.began)


def _is_system_ram(one: OpenIncident) -> bool:
    pools = one.frames[-1].pools if one.frames else ()
    return any(pool.id == one.target and pool.kind is PoolKind.SYSTEM_RAM for pool in pools)


def _available(reading: Reading) -> int:
    return reading.available


def _find(one: OpenIncident, readings: Sequence[Reading]) -> Finding:
    if not readings or one.kind == "gpu_lost" or (one.is_of_cgroup and not one.cgroup):
        return Finding()
    observed = {task.pid: Observed(task.name, task.rss_bytes) for _, death in one.deaths for task in death.tasks}
    observed |= {
        death.victim.pid: Observed(
            death.victim.who, death.victim.held_bytes, death.victim.unit, death.victim.container
        )
        for _, death in one.deaths
        if death.victim.pid is not None and death.victim.held_bytes is not None and death.source == "kernel"
    }
    if one.deaths:
        until = one.deaths[0][0]
    else:
        recent = [reading for reading in readings if reading.boottime >= one.boottime - BEFORE_SECONDS]
        until = min(recent or readings, key=_available).boottime
    if not one.cgroup:
        long, least = list(one.long.values()), find_least(one.size_bytes)
        found = find_cause(readings, until, one.size_bytes, observed, long=long)
        if found.cause is not None or one.deaths or (found.rise is not None and found.rise.taken >= least):
            return found
        # Use may creep for minutes after its rise: the worst moment is the last one, which no longer sees the rise.
        near = min(map(_available, readings)) + least
        first = next(reading.boottime for reading in readings if _available(reading) <= near)
        earlier = find_cause(readings, first, one.size_bytes, observed, long=long)
        return earlier if earlier.rise is not None and earlier.rise.taken >= least else found

    def belongs(holding: Holding) -> bool:
        return is_member(holding, one.cgroup)

    inside = [_of_group(reading, belongs) for reading in readings]
    finding = find_cause(inside, until, 0, observed, members=belongs)
    return finding if finding.cause is not None else _find_largest(inside, observed, until, finding)


def _of_group(reading: Reading, belongs: Members) -> Reading:
    holders = {key: holding for key, holding in reading.holders.items() if belongs(holding)}
    used = sum(holding.size for holding in holders.values())
    return replace(reading, used=used, holders=holders, parts={})


def _find_largest(
    inside: Sequence[Reading], observed: Mapping[int, Observed], until: float, finding: Finding
) -> Finding:
    """Return the process that fills a cgroup at its limit: most of its memory, all of it taken since its start."""
    last = [one for one in inside if one.boottime <= until + 0.05][-1:]
    sizes = {key: (holding, holding.size) for one in last for key, holding in one.holders.items()}
    for key, (holding, held) in sizes.items():
        seen = observed.get(key.pid)
        sizes[key] = holding, max(held, seen.size if seen else 0)
    ordered = sorted(sizes.items(), key=lambda item: -item[1][1])
    if not ordered:
        return finding
    key, (holding, held) = ordered[0]
    second = ordered[1][1][1] if len(ordered) > 1 else 0
    if holding.started is None or held < MIN_PROCESS_BYTES or held < 2 * second:
        return finding
    cause = Suspect(holding.name, key.pid, holding.unit, holding.container, held, holding.started, held, True)
    return replace(finding, cause=cause, candidates=())


def find_mark(one: OpenIncident, finding: Finding) -> str:
    """Return the last mark of the cause before it took the memory, or while it did."""
    cause, rise = finding.cause, finding.rise
    if cause is None or rise is None or cause.pid is None:
        return ""
    suffix = f" (process {cause.pid})"
    for event in reversed(one.events):
        near = cause.began - MARK_SECONDS <= event.unix <= rise.peak.unix
        if event.kind == MARK and near and event.text.endswith(suffix) and "out of memory" not in event.text:
            return event.text.removesuffix(suffix)[:MAX_MARK]
    return ""


def _sum_returned(one: OpenIncident, last: Reading, lowest: Reading, victims: Sequence[Victim]) -> int | None:
    """Return the memory that came back. After a kill in a cgroup that is what its victims held, None if not known:

    available memory of the machine moves by that of all other processes as well.
    """
    if not (one.cgroup or one.is_of_cgroup):
        return max(0, last.available - lowest.available)
    held = [victim.held_bytes for victim in victims if victim.held_bytes is not None]
    return sum(held) if held and len(held) == len(victims) else None


def _describe_return(
    one: OpenIncident, readings: Sequence[Reading], victims: Sequence[Victim], came_back: int
) -> str:
    if one.cgroup:
        names = some_of([victim.who for victim in victims], MAX_NAMED)
        return f"{units.size(came_back)} of {names} came back"
    after = units.duration(max(0.05, readings[-1].unix - one.bad_unix))
    left = units.size(readings[-1].available)
    back = f"{units.size(came_back)} of {one.label}" if came_back else f"nothing of {one.label}"
    return f"{back} came back; {left} were available {after} after the end"


def _list_driver_lines(one: OpenIncident) -> list[str]:
    """Return what drivers reported shortly before a GPU was lost, and at least its state."""
    since = one.began - BEFORE_SECONDS
    return [event.text for event in one.events if event.kind == "driver" and event.unix >= since] or [one.detail]


def list_entries(one: OpenIncident, readings: Sequence[Reading], deaths: Sequence[Death]) -> list[Entry]:
    since = one.began - BEFORE_SECONDS
    entries = [Entry(event.unix, event.kind, event.text) for event in one.events if event.kind not in NO_EVENTS]
    # The event log has the kernel's kills and the marks of programs already.
    told = [death for death in deaths if death.source not in ("kernel", "count", "program")]
    entries += [Entry(death.victim.unix, "kill", death.killer.evidence) for death in told]
    gone = {end.pid for end, _ in one.ends}
    for end, holding in one.ends:
        how = "" if end.status is None else f" by {end.signal_name}" if end.signal_name else " by itself"
        entries.append(Entry(end.unix, "end", f"{holding.name} (PID {end.pid}) ended{how}"))
    entries += _stalls(one)
    kept = sorted((entry for entry in entries if entry.unix >= since), key=_time)[-MAX_ENTRIES:]
    # A build starts and ends hundreds of processes: these entries take the places that are left.
    others = sorted((entry for entry in _starts_and_ends(readings, gone) if entry.unix >= since), key=_time)
    return sorted([*kept, *others[max(0, len(others) + len(kept) - MAX_ENTRIES) :]], key=_time)


def _time(entry: Entry) -> float:
    return entry.unix


def _starts_and_ends(readings: Sequence[Reading], gone: set[int]) -> Iterator[Entry]:
    largest: dict[int, int] = {}
    for reading in readings:
        for key, holding in reading.holders.items():
            largest[key.pid] = max(holding.size, largest.get(key.pid, 0))
    before: Reading | None = None
    for reading in readings:
        if before is not None and reading.holders is not before.holders:
            for key, holding in reading.holders.items():
                started = holding.started
                is_new = started is not None and started >= readings[0].unix and key not in before.holders
                if is_new and started is not None and largest[key.pid] >= MIN_PROCESS_BYTES:
                    yield Entry(started, "start", f"{holding.name} (PID {key.pid}) started")
            for key, holding in before.holders.items():
                if key not in reading.holders and holding.size >= MIN_PROCESS_BYTES and key.pid not in gone:
                    text = (
                        f"{holding.name} (PID {key.pid}), {units.size(holding.size)} before, is not listed any more"
                    )
                    yield Entry(reading.unix, "end", text)
        before = reading


def _stalls(one: OpenIncident) -> Iterator[Entry]:
    """Yield the first time that tasks stalled for each of `STALLS`, and the first cgroup that stalled."""
    left, squeezed = list(STALLS), False
    for frame in one.frames:
        if not isinstance(frame.psi, Absent):
            ratio, told = frame.psi.some.ratio_10s, False
            while left and ratio >= left[0]:
                left.pop(0)
                told = True
            if told:
                yield Entry(frame.unix, "stall", f"tasks stalled on memory for {ratio:.0%} of the last 10 s")
        if not squeezed and not isinstance(frame.cgroup_pressure, Absent):
            squeezed, group = True, frame.cgroup_pressure
            yield Entry(frame.unix, "cgroup", f"{group.cgroup} stalled for {group.some_ratio:.0%} of the time")


def sample(readings: Sequence[Reading], finding: Finding, has_parts: bool = False) -> tuple[Sample, ...]:
    """Return readings for a picture, evenly spaced, with the worst one, and the largest holders in each.

    `has_parts`: the parts of the readings are those of the target.
    """
    if not readings:
        return ()
    step = max(1, -(-len(readings) // (MAX_SAMPLES - 2)))
    chosen = {*range(0, len(readings), step), len(readings) - 1}
    chosen.add(min(range(len(readings)), key=lambda index: readings[index].available))
    largest: dict[tuple[int, str], int] = {}
    for index in sorted(chosen):
        for key, holding in readings[index].holders.items():
            who = key.pid, holding.name
            largest[who] = max(holding.size, largest.get(who, 0))
    named = sorted(largest, key=lambda who: -largest[who])[:MAX_HOLDERS]
    cause = finding.cause
    if cause is not None and cause.pid is not None and (cause.pid, cause.who) in largest:
        named = (
            [*named[: MAX_HOLDERS - 1], (cause.pid, cause.who)] if (cause.pid, cause.who) not in named else named
        )
    return tuple(_sample(readings[index], frozenset(named), has_parts) for index in sorted(chosen))


def list_gpu_holders(readings: Sequence[Reading]) -> tuple[str, ...]:
    """Return the names of the processes that held most of their memory on a GPU when they were largest."""
    largest: dict[str, Holding] = {}
    for reading in readings:
        for key, holding in reading.holders.items():
            name = name_in_samples(holding.name, key.pid)
            if name not in largest or holding.size > largest[name].size:
                largest[name] = holding
    found = [name for name, holding in largest.items() if holding.on_gpu]
    return tuple(sorted(found, key=lambda name: -largest[name].size)[:MAX_HOLDERS])


def name_in_samples(name: str, pid: int) -> str:
    return f"{name} ({pid})"


def _sample(reading: Reading, named: frozenset[tuple[int, str]], has_parts: bool) -> Sample:
    holders = {
        name_in_samples(holding.name, key.pid): holding.size
        for key, holding in reading.holders.items()
        if (key.pid, holding.name) in named
    }
    parts = {name: reading.parts[name] for name in SAMPLE_PARTS if name in reading.parts} if has_parts else {}
    return Sample(
        reading.unix,
        reading.used,
        reading.available,
        holders,
        reading.level,
        parts,
        reading.stall_ratio,
        reading.shares,
    )


# Incidents that an unclean end cut off, and that are found at the next start.

CUT_OFF = "the record ends here: memwatchd did not end cleanly"
FREEZE = "a freeze and a loss of power look the same from here"


def close_cut_off(incident: Incident, words: UncleanShutdown | None, crash: Sequence[str]) -> Incident:
    """Close an incident that was open when the previous run ended."""
    last = max([incident.began, *(one.unix for one in incident.samples), *(one.unix for one in incident.timeline)])
    end = last if words is None else max(last, words.unix)
    if words is None:
        return replace(incident, ended=end, evidence=(*incident.evidence, CUT_OFF))
    killer, text = explain_end(words, crash)
    timeline = (*incident.timeline, Entry(end, "unclean", text))
    return replace(
        incident,
        kind="unclean_end",
        ended=end,
        sentence=f"{incident.sentence.rstrip('.')}; {text}.",
        killer=incident.killer or killer,
        evidence=(*incident.evidence, killer.evidence),
        timeline=timeline,
    )


def explain_end(words: UncleanShutdown, crash: Sequence[str]) -> tuple[Killer, str]:
    """Return the killer of the previous run, and a clause.

    Another boot without a recorded stop is a crash, a reset or a loss of power. A crash record of the kernel tells
    the first; low use at the last sample speaks for the last.
    """
    if not words.machine_restarted:
        return (
            Killer("unknown", "same boot, and no clean stop was recorded: memwatchd crashed or was killed"),
            "then memwatchd itself was killed or crashed",
        )
    if crash:
        return Killer("unknown", f"crash record of the kernel: {'; '.join(crash)}"), "then the kernel crashed"
    worst = words.last.worst if words.last is not None else None
    if worst is not None and worst.level < Level.HIGH:
        level = Level(worst.level).label
        evidence = f"a new boot without a shutdown, no crash record, and {worst.label} was {level}"
        return Killer("power", evidence), "then the machine lost power or was reset, with memory left"
    evidence = f"a new boot without a shutdown and no crash record: {FREEZE}"
    return Killer("unknown", evidence), "then the machine stopped, by a freeze or a reset"


def build_unclean(words: UncleanShutdown, crash: Sequence[str], boot_id: str = "") -> Incident | None:
    """Build the incident of an unclean end from its last words. None if only memwatchd ended, with memory left."""
    worst = words.last.worst if words.last is not None else None
    if not words.machine_restarted and (worst is None or worst.level < Level.HIGH):
        return None
    target = worst.target if worst is not None else RAM
    readings = read_ticks(words.ticks, target)
    pool = next((one for one in words.last.pools if one.id == target), None) if words.last is not None else None
    size_bytes = None if pool is None else pool.size_bytes
    finding = Finding()
    # Without the size, nothing says how much growth is evidence.
    if readings and size_bytes is not None and worst is not None and worst.level >= Level.HIGH:
        finding = find_cause(readings, readings[-1].boottime, size_bytes)
    killer, text = explain_end(words, crash)
    label = worst.label if worst is not None else RAM_LABEL
    began = finding.rise.begin.unix if finding.rise is not None and finding.rise.taken else words.unix
    lowest = min((one.available for one in readings), default=None)
    parts = [describe_cause(label, finding)] if finding.rise is not None else []
    parts += [f"{size(lowest)} of {label} was left at the last sample"] if lowest is not None else []
    sentence = "; ".join([*parts, text])
    return Incident(
        id=datetime.fromtimestamp(words.unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ"),
        kind="unclean_end",
        target=target,
        label=label,
        began=began,
        ended=words.unix,
        sentence=f"{sentence[0].upper()}{sentence[1:]}." if not finding.cause else f"{sentence}.",
        cause=finding.cause,
        candidates=finding.candidates,
        killer=killer,
        size_bytes=size_bytes,
        lowest_available_bytes=lowest,
        evidence=(*list_evidence(label, finding, ()), killer.evidence, _describe_words(words)),
        timeline=(Entry(words.unix, "unclean", words.sentence),),
        samples=sample(readings, finding),
        gpu_holders=list_gpu_holders(readings),
        boot_id=boot_id,
        growth_seconds=measure_growth(finding),
        rise_bytes=None if finding.rise is None or finding.is_long else finding.rise.taken,
    )


def _describe_words(words: UncleanShutdown) -> str:
    if not words.samples:
        return "the previous run wrote no sample"
    length = words.samples[-1].unix - words.samples[0].unix
    return f"last words: {len(words.samples)} samples of the last {duration(max(0.05, length))}"
