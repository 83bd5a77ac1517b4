"""Sentences of an incident, of its evidence, and of a control group that is about to be killed. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from memwatch.core import units
from memwatch.core.kernel_log import shorten_cgroup
from memwatch.core.linux.cgroup_kills import NOT_RAM
from memwatch.core.listing import some_of
from memwatch.core.model import RAM_LABEL, Absent, Process, name_accelerators
from memwatch.core.owners import describe_home
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.reporting.incidents.cause import Finding, Rise
from memwatch.reporting.incidents.killer import WORDS, Death, is_member
from memwatch.reporting.incidents.readings import Holding, word
from memwatch.reporting.incidents.records import IncidentKind, Suspect, Victim
from memwatch.reporting.incidents.words import share_of

# Changes of other memory that are worth a sentence.
MIN_PART_BYTES, MIN_PART_RATIO = 256 << 20, 0.02
PART_WORDS: Mapping[str, str] = {
    "page_cache": "page cache",
    "shared_memory": "shared memory",
    "huge_pages": "huge pages",
    "kernel": "memory of the kernel",
    "unattributed": "memory of no process",
    "swap": "swap in use",
    "mlocked": "locked memory",
}
MAX_NAMED = 3
# Pools of GPUs that are named one by one.
MAX_PLACES = 2
NO_LABELS: Mapping[str, str] = {}


def write_sentence(
    kind: IncidentKind,
    label: str,
    finding: Finding,
    death: Death | None,
    victims: Sequence[Victim],
    lowest: int | None,
    detail: str = "",
    mark: str = "",
    labels: Mapping[str, str] = NO_LABELS,
    others: int = 0,
) -> str:
    """Return the cause, what was left, and the end of the victim, as one sentence.

    `detail`: what happened instead of a kill: a lost GPU, a gap in the samples. `mark`: the last mark of a program
    before the memory went. `labels`: those of the pools, by id. `others`: further processes that were killed.
    """
    if kind == "gpu_lost":
        return f"{detail}."
    in_cgroup = death is not None and (bool(death.cgroup) or death.is_of_limit)
    # Without a cause it is not known what filled the cgroup, and nothing filled the target.
    of_cgroup = kind == "kill" and in_cgroup and finding.cause is None
    parts = [describe_limit(death)] if death is not None else []
    parts += [] if of_cgroup else [describe_cause(label, finding, mark)]
    if lowest is not None and not in_cgroup and (finding.rise is None or finding.rise.taken or finding.cause):
        parts.append(f"{size(lowest)} of {label} was left")
    if kind == "unclean_end" or detail:
        parts.append(detail)
    if death is not None:
        parts.append(describe_death(death, victims, finding.cause.pid if finding.cause else None, labels, others))
        parts.append(NOT_RAM if death.is_of_limit else "")
    return capitalized("; ".join(part for part in parts if part)) + "."


def describe_limit(death: Death) -> str:
    """Return the limit that the kernel enforced: "docker-1f6b2c3d4e5f.scope reached its limit of 32.0 MiB"."""
    if not death.is_of_limit or not death.cgroup:
        return ""
    limit = "" if death.limit_bytes is None else f" of {size(death.limit_bytes)}"
    return f"{shorten_cgroup(death.cgroup)} reached its limit{limit}"


def describe_cause(label: str, finding: Finding, mark: str = "") -> str:
    cause = finding.cause
    if cause is not None:
        seconds = max(0.0, finding.rise.end.unix - cause.began) if finding.rise else 0.0
        when = f" in {units.duration(seconds)}" if seconds >= 0.05 else ""
        when += " after it started" if cause.is_new else ""
        when += f" after “{mark}”" if mark else ""
        return f"{describe_owner(cause)} took {size(cause.growth_bytes)}{when}"
    rise = finding.rise
    if rise is not None and rise.taken >= MIN_PART_BYTES // 4:
        took = f"undecided who took {size(rise.taken)} of {label} in {units.duration(max(0.05, rise.seconds))}"
        return f"{took}{_name(finding, ': ')}"
    grown = _name(finding, "; grown: ") if finding.is_long else ""
    return f"undecided who filled {label}: no process grew by enough{grown}"


def describe_owner(one: Suspect | Victim) -> str:
    """Name a process with its PID, and its container or unit: "vllm (PID 3921, container 1f6b2c3d4e5f)"."""
    facts = [] if one.pid is None else [f"PID {one.pid}"]
    home = describe_home(one.unit, one.container)
    if home and home not in one.who:
        facts.append(f"container {home}" if home == one.container else home)
    return f"{one.who} ({', '.join(facts)})" if facts else one.who


def describe_device_memory(device_bytes: Mapping[str, int], labels: Mapping[str, str]) -> str:
    """Return the memory of GPUs and NPUs, in words: "30.9 GiB of VRAM"."""
    if len(device_bytes) > MAX_PLACES:
        return f"{size(sum(device_bytes.values()))} of {name_accelerators(device_bytes)} memory"
    return " and ".join(f"{size(held)} of {labels.get(pool, pool)}" for pool, held in device_bytes.items())


def describe_death(
    death: Death,
    victims: Sequence[Victim],
    finding_pid: int | None = None,
    labels: Mapping[str, str] = NO_LABELS,
    others: int = 0,
) -> str:
    """Return the end of the first victim: "the kernel killed gnome-shell (0.3 GiB), which was not the cause"."""
    victim = next((one for one in victims if one.unix == death.victim.unix and one.pid == death.victim.pid), None)
    victim = victim or death.victim
    held = "" if victim.held_bytes is None else f" with {size(victim.held_bytes)}"
    if held and victim.device_bytes:
        held += f" and {describe_device_memory(victim.device_bytes, labels)}"
    # Of unnamed processes in a cgroup at its limit, the sentence has named the cgroup.
    is_unnamed = death.is_of_limit and bool(death.cgroup) and victim.pid is None
    who = f"{victim.who if is_unnamed else describe_owner(victim)}{held}"
    if death.killer.kind == "program":
        text = f"{who} reported that an allocation failed"
    else:
        text = f"{WORDS[death.killer.kind]} killed {who}{_at_limit(death)}"
    text += f" and {others} more" if others > 0 and victim.is_cause is None else ""
    if victim.is_cause is False:
        caught = next((one for one in victims if one.is_cause), None)
        text += ", which was not the cause" if caught is None else ", which was not the cause, and later the cause"
    elif victim.is_cause:
        is_part = finding_pid is None and victim.pid is not None
        text += ", which was a part of the cause" if is_part else ", the cause itself"
    return text


def _at_limit(death: Death) -> str:
    if death.killer.kind != "cgroup_oom":
        return ""
    if death.is_of_limit and death.cgroup:
        return " in it"
    return f" at the limit of {shorten_cgroup(death.cgroup)}" if death.cgroup else " at the limit of its cgroup"


def _name(finding: Finding, before: str) -> str:
    named = [f"{describe_owner(one)} {size(one.growth_bytes)}" for one in finding.candidates]
    return before + some_of(named, MAX_NAMED, finding.left_out) if named else ""


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith(("undecided", "memory ", "the ", "this ")) else text


def list_evidence(label: str, finding: Finding, deaths: Sequence[Death]) -> Iterator[str]:
    """Yield what shows the cause: the movement of the target, of the suspects, and of other memory."""
    rise = finding.rise
    if rise is not None:
        yield _movement(label, rise)
    if finding.cause is not None:
        held = f"{describe_owner(finding.cause)} grew by {size(finding.cause.growth_bytes)}"
        yield f"{held} to {size(finding.cause.held_bytes)}" + (
            "" if rise is None or not rise.taken or finding.is_long else _share_of(finding.cause, rise)
        )
    for one in finding.candidates:
        yield f"candidate: {describe_owner(one)} grew by {size(one.growth_bytes)} to {size(one.held_bytes)}"
    if finding.left_out:
        yield f"{finding.left_out} more grew by less"
    if rise is not None:
        yield from _changed_parts(rise)
    seen: set[str] = set()
    for death in deaths:
        if death.killer.evidence not in seen:
            seen.add(death.killer.evidence)
            yield death.killer.evidence


def _movement(label: str, rise: Rise) -> str:
    start, end = size(rise.begin.available), size(rise.peak.available)
    if rise.taken < MIN_PART_BYTES // 4:
        return f"{label}: {end} available, and hardly more in the two minutes before"
    return f"{label}: {start} available, {end} after {units.duration(max(0.05, rise.seconds))}"


def _share_of(cause: Suspect, rise: Rise) -> str:
    return f", {share_of(cause.growth_bytes, rise.taken)} the {size(rise.taken)} by which use rose"


def _changed_parts(rise: Rise) -> Iterator[str]:
    least = max(MIN_PART_BYTES, int(MIN_PART_RATIO * (rise.peak.used + rise.peak.available)))
    before, after = rise.begin.parts, rise.peak.parts
    for name, words in PART_WORDS.items():
        if name in before and name in after and abs(after[name] - before[name]) >= least:
            yield f"{words}: {size(before[name])} → {size(after[name])}"


MAX_HELD = 5


def describe_holders(
    place: str,
    snapshot: Snapshot | None,
    members: Collection[int],
    charged_bytes: int | None,
    is_whole: bool = True,
) -> str:
    """Return a sentence: what is killed, and which of its processes hold memory of which pool.

    `members`: PIDs of the group; if empty, processes are found by their unit or container. `is_whole`: these are
    all.
    """
    charged = "" if charged_bytes is None else f" ({size(charged_bytes)} charged to it)"
    named = [] if snapshot is None else list(_describe_held(snapshot, find_members(place, snapshot, members)))
    held = "; ".join(named[:MAX_HELD]) or "no listed process is in it"
    rest = f"; and {len(named) - MAX_HELD} more" if len(named) > MAX_HELD else ""
    unread = "" if is_whole else "; it has more processes than were read"
    return f"about to kill {place}{charged}: {held}{rest}{unread}"


def find_members(place: str, snapshot: Snapshot, members: Collection[int]) -> list[Process]:
    """Return the listed processes of a group, those that hold most first."""
    found = [one for one in snapshot.processes if one.pid in members or (not members and _is_in(one, place))]
    return sorted(found, key=lambda one: sum(held for _, held in _sizes(one)), reverse=True)


def _is_in(process: Process, place: str) -> bool:
    unit, container = word(process.unit), word(process.container)
    return is_member(
        Holding(process.title, unit, container, 0, None, word(process.pod), job=word(process.job)), place
    )


def _describe_held(snapshot: Snapshot, processes: list[Process]) -> Iterator[str]:
    for one in processes:
        sizes = [f"{size(held)} of {snapshot.labels.get(name, name)}" for name, held in _sizes(one)]
        yield f"{one.title} (PID {one.pid}) holds {' and '.join(sizes) or 'an unknown amount'}"


def _sizes(process: Process) -> Iterator[tuple[str, int]]:
    """Yield the memory of a process by pool or share: resident in System RAM, and of devices."""
    if not isinstance(process.rss_bytes, Absent):
        yield RAM_LABEL, process.rss_bytes
    for name, held in process.device_bytes.items():
        if not isinstance(held, Absent) and held:
            yield name, held
