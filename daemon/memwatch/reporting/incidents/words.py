"""Title, summary and facts of an incident, for the page, the API and the command line; its JSON. Pure functions.

They claim no more than the record: without a cause the title says so, and what it lacks is "not known".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.listing import some_of
from memwatch.core.owners import describe_home
from memwatch.core.snapshot import Level
from memwatch.core.units import duration, size
from memwatch.core.wire import Form, Json, Shape, Wire, parse_rfc3339, rfc3339
from memwatch.reporting.incidents.cause import NO_PROCESS, find_least
from memwatch.reporting.incidents.killer import WORDS
from memwatch.reporting.incidents.records import Entry, Incident, Killer, Sample, Suspect, Told, Victim

# A target with less than this part of it left counts as full. The kernel kills only then, at whatever is left.
FULL_RATIO = 0.05
OOM_KILLERS = ("kernel_oom", "cgroup_oom")
# Levels that warn of the end.
WARNINGS = (Level.HIGH.word, Level.CRITICAL.word)
LEVELS: Mapping[str, str] = {level.word: level.label for level in Level}
# More processes than these are a number.
MAX_NAMED = 2
# An alert within this time of a kill was in time for neither side.
AT_ONCE_SECONDS = 0.5
# A change of the level is at most this much older than the first sample that has it.
MAX_SAMPLE_SECONDS = 5.0
# Names of the begin of an incident without a kill, that a warning came before.
BEGINNINGS: Mapping[str, str] = {"gpu_lost": "the loss", "wedge": "the gap", "unclean_end": "the end"}
# What lasted from the beginning to the end of an incident, by kind. An unclean end has the time of its growth only.
STATES: Mapping[str, str] = {
    "critical": "critical for",
    "kill": "critical for",
    "gpu_lost": "lost for",
    "wedge": "no response for",
    "program": "short for",
}
NOT_KNOWN, NOT_RECORDED, NOT_NOTIFIED = "not known", "not recorded", "no receiver was notified"


class Fact(Struct, frozen=True):
    """A fact of an incident in a few words."""

    name: Annotated[str, Doc("Such as `cause`, `killed`.")]
    value: str
    note: Annotated[str, Doc("Empty without one.")] = ""
    unix: Annotated[float | None, Doc("Its time. Null without one.")] = None


class Cut(Struct, frozen=True):
    """The sample before the first kill, or the worst one without a kill. `kill`: time of that kill."""

    sample: Sample
    kill: float | None


def write_title(one: Incident) -> str:
    """Return what happened in a line: "train.py filled System RAM in 110 s; the kernel killed it"."""
    if one.kind == "gpu_lost":
        return one.sentence.partition(";")[0].rstrip(".")
    title = "; ".join(part for part in (_write_begin(one), *_write_end(one)) if part)
    title = title if one.cause is not None else capitalize(title)
    if one.times > 1 and one.first_began is not None:
        title += f", {one.times} times in {duration(max(0.05, one.began - one.first_began))}"
    return title


def _write_begin(one: Incident) -> str:
    cause, label = one.cause, one.label
    if cause is None:
        return _write_undecided(one)
    if is_of_cgroup(one):
        at_limit = one.killer is not None and one.killer.kind == "cgroup_oom"
        verb = f"reached the limit of {label}" if at_limit else f"took {size(cause.growth_bytes)} in {label}"
        return f"{cause.who} {verb}"
    lasts = one.kind == "critical" and one.lasts
    verb = f"filled {label}" if is_full(one) and not lasts else f"took {size(cause.growth_bytes)} of {label}"
    seconds = one.growth_seconds
    took = f" in {duration(seconds)}" if seconds is not None and seconds >= 0.05 else ""
    return f"{cause.who} {verb}{took}{' so far' if lasts else ''}"


def _write_undecided(one: Incident) -> str:
    """Return the state of the target, without a cause."""
    if is_of_cgroup(one):
        at_limit = one.killer is not None and one.killer.kind == "cgroup_oom"
        return f"{one.label} reached its limit" if at_limit else f"Processes of {one.label} ended"
    label = capitalize(one.label)
    if one.kind == "critical":
        if one.ended is None:
            return f"{label} {'is' if one.lasts else 'was'} critical"
        return f"{label} was critical for {duration(max(1.0, one.ended - one.began))}"
    # Of another pool that was short the record has no figures.
    return f"{label} was full" if is_full(one) else ""


def _write_end(one: Incident) -> Iterator[str]:
    killer, victim = one.killer, one.victim
    if killer is not None and killer.kind == "program" and victim is not None:
        is_same = one.cause is not None and victim.pid == one.cause.pid
        yield "its own allocation failed" if is_same else f"an allocation of {victim.who} failed"
    elif killer is not None and victim is not None:
        yield f"{WORDS[killer.kind]} killed {_name_victims(one, victim)}"
    if one.kind == "wedge":
        yield "the machine did not respond"
    elif one.kind == "unclean_end":
        yield _write_unclean(one)
    if one.cause is None and not is_of_cgroup(one):
        yield _write_growth(one)


def _name_victims(one: Incident, victim: Victim) -> str:
    """Return the victim, "it" if the title has begun with it, and the number of others."""
    is_same = one.cause is not None and victim.is_cause and (victim.pid == one.cause.pid or victim.pid is None)
    who = "it" if is_same else victim.who
    others = count_kills(one) - 1
    return f"{who} and {others} more" if others > 0 else who


def _write_unclean(one: Incident) -> str:
    """Return the last clause of the sentence, which says how the previous run ended."""
    return one.sentence.rpartition("; ")[2].rstrip(".").removeprefix("then ").partition(",")[0]


def _write_growth(one: Incident) -> str:
    """Return which growth is known, without a cause: of candidates, of no process, or none."""
    found = list_grown(one)
    if not found:
        return "no process grew" if one.kind == "critical" else "cause not known"
    if found[0].who == NO_PROCESS:
        return "memory of no process grew"
    if len(found) == 1:
        return f"{found[0].who} grew, too little to be the cause"
    named = " and ".join(each.who for each in found[:MAX_NAMED])
    return f"undecided between {named}" + (f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else "")


def list_grown(one: Incident) -> list[Suspect]:
    """Return the candidates whose growth is worth a word."""
    least = find_least(one.size_bytes or 0)
    return [each for each in one.candidates if each.growth_bytes >= least]


def is_of_cgroup(one: Incident) -> bool:
    """Return True for an incident about a cgroup. Its memory is not known, only that of its processes."""
    return one.size_bytes is None and one.kind in ("kill", "program")


def is_full(one: Incident) -> bool:
    """Return True if next to nothing of the target was left, by figures or by the kernel's verdict."""
    if one.killer is not None and one.killer.kind in OOM_KILLERS:
        return True
    left, whole = one.lowest_available_bytes, one.size_bytes
    if left is None or not whole:
        return False
    return left <= FULL_RATIO * whole


def count_kills(one: Incident) -> int:
    """Return the number of processes that were killed. Records of earlier versions have those in the list only."""
    listed = [victim for victim in one.victims if victim.killer != "program"]
    return max(one.kills, len(listed))


def describe_state(one: Incident) -> tuple[str, str] | None:
    """Return what lasted and how long: "critical for", "1 min 21 s". None while it lasts, and for a moment.

    It is another time than that of the growth in the title. A cgroup has no level.
    """
    if one.ended is None or one.ended <= one.began or one.kind not in STATES or is_of_cgroup(one):
        return None
    return STATES[one.kind], duration(one.ended - one.began)


def write_summary(one: Incident) -> str:
    """Return what the title leaves out: by how much, beside whom, what was left, and what came back."""
    if one.kind == "gpu_lost":
        return capitalize(one.sentence.partition("; ")[2])
    parts = [_write_growth_of_cause(one), *_write_others(one), _write_return(one)]
    return " ".join(f"{capitalize(part)}." for part in parts if part)


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _write_growth_of_cause(one: Incident) -> str:
    cause, left = one.cause, _write_left(one)
    if cause is None:
        grown = [f"{each.who} by {size(each.growth_bytes)}" for each in list_grown(one)]
        known = f"grown: {', '.join(grown)}" if grown else ""
        return "; ".join(part for part in (left, known) if part)
    grew = f"{'they' if cause.pid is None else 'it'} grew by {size(cause.growth_bytes)}"
    if one.rise_bytes and not is_of_cgroup(one):
        grew += f" ({share_of(cause.growth_bytes, one.rise_bytes)} the rise)"
    elif size(cause.growth_bytes) != size(cause.held_bytes):
        grew += f" to {size(cause.held_bytes)}"
    beside = find_largest_other(one)
    if beside is not None:
        grew += f" beside {beside[0]} with {size(beside[1])}"
    return f"{grew}, until {left}" if left else grew


def share_of(growth: int, rise: int) -> str:
    """Return which part of a rise a growth explains: "82% of". Other memory may have been freed meanwhile."""
    part = f"{growth / rise:.0%}"
    return f"{part} of" if growth < rise and part != "100%" else "all of" if part == "100%" else "more than"


def _write_left(one: Incident) -> str:
    left, whole = one.lowest_available_bytes, one.size_bytes
    if left is None:
        return ""
    of_whole = f" of {size(whole)}" if whole else ""
    return f"{size(left)}{of_whole} was left"


def find_largest_other(one: Incident) -> tuple[str, int] | None:
    """Return name and bytes of the largest holder beside the cause at the cut, None without samples."""
    cut = find_cut(one)
    if cut is None or one.cause is None or one.cause.pid is None:
        return None
    others = [(name, held) for name, held in cut.sample.holders.items() if not is_name_of(one.cause, name)]
    name, held = max(others, key=lambda each: each[1], default=("", 0))
    least = FULL_RATIO * (one.size_bytes or 0)
    return (name.rpartition(" (")[0], held) if name and held >= least else None


def is_name_of(who: Suspect | Victim, name: str) -> bool:
    """Return True if a holder of the samples, "name (PID)", is this process."""
    return who.pid is not None and name.endswith(f" ({who.pid})")


def _write_return(one: Incident) -> str:
    back = one.came_back_bytes
    if one.lasts:
        return "it is not over"
    if back is None or one.kind in ("unclean_end", "program"):
        return ""
    if not back:
        return "nothing came back" if one.ended is not None and (one.victims or is_full(one)) else ""
    held = one.victim.held_bytes if one.victim is not None and count_kills(one) == 1 else None
    # Available memory also moves by what others take meanwhile, and a process leaves pages that others share.
    is_part = held is not None and back < held and size(back) != size(held)
    return f"{size(back)} of the killed {size(held)} came back" if held and is_part else f"{size(back)} came back"


def _write_others(one: Incident) -> Iterator[str]:
    kills = count_kills(one)
    if kills == 1:
        yield "nothing else was killed" if one.cause is not None else ""
    elif kills > 1:
        listed = [each for each in one.victims if each != one.victim and each.killer != "program"]
        others = [
            f"{each.who}{'' if each.held_bytes is None else f' with {size(each.held_bytes)}'}" for each in listed
        ]
        named, more = others[: MAX_NAMED + 1], kills - 1 - len(others[: MAX_NAMED + 1])
        yield f"also killed: {', '.join(named)}{f' and {more} more' if more > 0 and named else ''}" if named else ""


def find_cut(one: Incident) -> Cut | None:
    """Return the last sample before the first kill, or the worst one. None without samples."""
    if not one.samples:
        return None
    kills = [victim.unix for victim in one.victims if victim.killer != "program"]
    if not kills:
        return Cut(min(one.samples, key=lambda each: each.available_bytes), None)
    before = [each for each in one.samples if each.unix < min(kills)]
    return Cut(before[-1] if before else one.samples[0], min(kills))


def list_facts(one: Incident) -> list[Fact]:
    """Return cause and killed, and with the timeline also the warnings before."""
    facts = [_state_cause(one), _state_kill(one)]
    if not (one.timeline or one.samples):
        return facts
    # No level of memory warns of a lost GPU.
    return [*facts, *([] if one.kind == "gpu_lost" else [_state_warning(one)]), _state_alert(one)]


def _state_cause(one: Incident) -> Fact:
    cause = one.cause
    if cause is not None:
        home = describe_home(cause.unit, cause.container) or ""
        return Fact("cause", describe_process(cause), "" if home in cause.who else home, cause.began)
    if one.kind == "gpu_lost":
        return Fact("cause", NOT_KNOWN, "see the driver's lines")
    grown = list_grown(one)
    if not grown:
        return Fact("cause", NOT_KNOWN, "no process grew by enough")
    return Fact("cause", "undecided", some_of([describe_process(each) for each in grown], MAX_NAMED))


def describe_process(one: Suspect | Victim) -> str:
    """Return name and PID: "train.py 51210"."""
    return one.who if one.pid is None else f"{one.who} {one.pid}"


def _state_kill(one: Incident) -> Fact:
    victim = one.victim
    if victim is None:
        return Fact("killed", "none reported")
    held = "" if victim.held_bytes is None else f", {size(victim.held_bytes)}"
    if victim.killer == "program":
        return Fact("failed allocation", f"{victim.who}{held}", "", victim.unix)
    others = count_kills(one) - 1
    note = f"by {WORDS[victim.killer]}" + (f", and {others} more" if others > 0 else "")
    return Fact("killed", f"{victim.who}{held}", note, victim.unix)


def find_end(one: Incident) -> tuple[float, str]:
    """Return the time that a warning had to come before, and its name."""
    kills = [victim.unix for victim in one.victims if victim.killer != "program"]
    if kills:
        return min(kills), "the kill"
    failed = [victim.unix for victim in one.victims]
    return (min(failed), "the failure") if failed else (one.began, BEGINNINGS.get(one.kind, "critical"))


def find_warning(samples: Sequence[Sample], end: float) -> tuple[float, str] | None:
    """Return time and level of the first of the warnings that lasted until `end`. None without one."""
    found = None
    for each in reversed([one for one in samples if one.unix < end]):
        if each.level not in WARNINGS:
            break
        found = each.unix, each.level
    return found


def _state_warning(one: Incident) -> Fact:
    end, of_what = find_end(one)
    name = f"warning before {of_what}"
    if not any(each.level for each in one.samples):
        return Fact(name, NOT_RECORDED)
    found = find_warning(one.samples, end)
    if found is None:
        return Fact(name, "none", f"no level above {Level.MEDIUM.label}")
    level = LEVELS[found[1]]
    began = _find_change(one, found[0], level)
    return Fact(name, duration(max(0.05, end - began)), level, began)


def _find_change(one: Incident, unix: float, level: str) -> float:
    """Return the time in the timeline of a level that a sample has first: samples are seconds apart."""
    changes = (
        entry.unix
        for entry in one.timeline
        if entry.kind == "level" and entry.text.startswith(one.label) and f"→ {level}" in entry.text
    )
    return max((at for at in changes if unix - MAX_SAMPLE_SECONDS <= at <= unix), default=unix)


def list_fired(one: Incident) -> list[Entry]:
    """Return the alerts about the target that fired. Those of a cgroup do not name it."""
    about = "" if is_of_cgroup(one) else one.label
    alerts = [entry for entry in one.timeline if entry.kind == "alert"]
    return [entry for entry in alerts if entry.text.startswith("alert firing") and about in entry.text]


def describe_told(one: Incident) -> str:
    """Return which receivers got an alert, and which did not: "delivered to ops; failed: mail (timeout)"."""
    if one.told is None:
        return "receivers not recorded"
    results: dict[str, dict[str, str]] = {}
    for told in one.told:
        results.setdefault(told.receiver, {})[told.result] = told.reason
    got = [name for name, found in results.items() if "delivered" in found]
    failed = [
        f"{name} ({found['failed']})" if found["failed"] else name
        for name, found in results.items()
        if "failed" in found and name not in got
    ]
    waiting = [name for name, found in results.items() if set(found) == {"waiting"}]
    parts = (("delivered to ", got), ("failed: ", failed), ("not delivered yet: ", waiting))
    found_words = "; ".join(f"{word}{some_of(names, MAX_NAMED)}" for word, names in parts if names)
    return found_words or NOT_NOTIFIED


def list_timeline(one: Incident) -> list[Entry]:
    """Return the timeline with the deliveries, in the order of time."""
    told = [Entry(each.unix, "notification", _write_told(each)) for each in one.told or () if each.unix is not None]
    return sorted([*one.timeline, *told], key=lambda entry: entry.unix)


def _write_told(told: Told) -> str:
    result = {"delivered": "delivered", "failed": "failed", "waiting": "not delivered yet"}[told.result]
    return f"{told.receiver}: {told.rule} {result}{f' ({told.reason})' if told.reason else ''}"


def _state_alert(one: Incident) -> Fact:
    """Return the first alert that fired, and the receivers that got it."""
    end, of_what = find_end(one)
    fired = list_fired(one)
    if not fired:  # the record of one that lasts is older than the alerts of now
        return Fact("alert", "not recorded yet" if one.ended is None else "none fired")
    before, note = end - fired[0].unix, describe_told(one)
    if abs(before) < AT_ONCE_SECONDS and note == NOT_NOTIFIED:
        return Fact("alert", note, "", fired[0].unix)  # "at once" would read as a notification
    if abs(before) < AT_ONCE_SECONDS:
        return Fact("alert", "at once", note, fired[0].unix)
    when = "before" if before > 0 else "after"
    return Fact(f"alert {when} {of_what}", duration(abs(before)), note, fired[0].unix)


def time(record: Victim | Entry, _: object) -> str:
    return rfc3339(record.unix)


def began_unix(record: Incident | Suspect, _: object) -> float:
    return record.began


def title(record: Incident, _: object) -> Annotated[str, Doc("What happened, in a line.")]:
    return write_title(record)


def summary(record: Incident, _: object) -> Annotated[str, Doc("By how much, beside whom, what came back.")]:
    return write_summary(record)


def facts(record: Incident, _: object) -> Annotated[tuple[Fact, ...], Doc("The list has the first two.")]:
    return tuple(list_facts(record))


def ended_unix(record: Incident, _: object) -> Annotated[float | None, Doc("Null while it lasts.")]:
    return record.ended


BEGAN = Form(str, rfc3339, parse_rfc3339)
ENDED = Form(
    str | None,
    lambda unix: None if unix is None else rfc3339(unix),
    lambda text: None if text is None else parse_rfc3339(text),
)
INCIDENTS = Wire(
    (
        Shape(
            Incident,
            further=(title, summary, facts, began_unix, ended_unix),
            order=(
                *("id", "kind", "target", "label", "began", "began_unix", "ended", "ended_unix"),
                *("title", "summary", "facts", ...),
            ),
            forms={"began": BEGAN, "ended": ENDED},
        ),
        Shape(Suspect, "IncidentSuspect", further=(began_unix,), forms={"began": BEGAN}),
        Shape(Killer, "IncidentKiller"),
        Shape(Victim, "IncidentVictim", further=(time,), order=("time", ...)),
        Shape(Entry, "IncidentEntry", further=(time,), order=("time", ...)),
        Shape(Sample, "IncidentSample"),
        Shape(Told, "IncidentDelivery"),
        Shape(Fact, "IncidentFact"),
    )
)


def incident_json(one: Incident) -> Json:
    """Return an incident, with its timeline and samples if it has them."""
    return INCIDENTS.encode(one)
