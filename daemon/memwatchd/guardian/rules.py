"""Rules of the guardian: from the state of the machine to a decision. Pure functions.

1. Only System RAM counts, only at the level critical, and only while its own figures show it: less is available
   than the critical threshold leaves, and it fills up within 10 s, is at its floor, or its tasks stall. A kill, an
   error of a driver, full swap or a forecast alone is no reason.
2. Two readings must agree, at most 3 s apart. A reading older than 1 s is no evidence.
3. The cause is the process that grew most since System RAM began to fall, net of what it allocates and frees.
   Memory of devices counts. What grew must explain at least half of the fall, and no other process may have grown
   as much. All that grew may be at most one and a half times the fall, with what the kernel gave below its
   watermarks. Otherwise the cause is not known, and nothing ends: size alone is no evidence, also on a full machine
   that stalls.
4. The victim is the cause, or before it one of `prefer` in its slice. Another process ends in its place only where
   `others` allows it: then `prefer` first, `avoid` last, then by growth and size. A victim must free enough to
   leave the level. Device bytes older than 5 s are no evidence: then there is no victim.
5. Never: pid 1, kernel threads, the guardian, the daemon, logins and session managers, container runtimes, and
   what the operator lists in `never`, also where it is not known whether a process is in that list.
6. Each step takes at most a quarter of the time to full. Below 2 s only SIGKILL is left. The kernel reclaims only
   where enough of the victim can move to swap to leave the level: file cache counts as available already.
7. After an action the evidence must be seen twice again before there is another victim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from math import inf

from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import Absent, PoolKind
from memwatch.core.processes.protected import INIT, is_own_name, is_own_unit, is_protected_name, is_protected_unit
from memwatch.core.snapshot import Level
from memwatchd.guardian.records import (
    Candidate,
    Decision,
    GroupMemory,
    Limits,
    Match,
    Past,
    PoolState,
    Refusal,
    State,
    Step,
    StepName,
)

# Signals of the pool itself that show a measured shortage, and those that show that it gets worse or hurts already.
SHORT = frozenset({"util", "floor"})
URGENT = frozenset({"floor", "psi_full", "livelock"})
URGENT_SECONDS = 10.0
# Two readings that confirm each other are at least and at most this far apart. The first time is a tenth of the
# forecast, within these limits.
MIN_CONFIRM_SECONDS, MAX_CONFIRM_SECONDS, MAX_GAP_SECONDS = 0.05, 0.5, 3.0
MAX_READING_SECONDS = 1.0
# Two scans of the daemon: the next one may show the cause.
SCANS_SECONDS = 2.0
MAX_DEVICE_SECONDS = 5.0
# Slower growth decides nothing.
MIN_GROWTH = 1 << 20
# Fraction of the fall that the growth of its causes explains, at least and at most. A cause of several processes
# has grown by this fraction of the largest growth in each.
MIN_EXPLAINED_RATIO, MAX_EXPLAINED_RATIO, MIN_SHARE = 0.5, 1.5, 0.5
FORECAST_SHARE, SIGKILL_ONLY_SECONDS = 4.0, 2.0
# More than what is missing is reclaimed: the cause goes on.
RECLAIM_SHARE = 2

PROTECTED_SLICES = ("memwatchd.slice", "memwatchd.slice/*")


def decide(state: State, limits: Limits, past: Past) -> tuple[Decision, Past]:
    """Return the decision, and what to hand over at the next call.

    The caller takes the steps of a decision to act, and then calls `Past.after_action`.
    """
    age = state.now - state.read_at
    if not 0 <= age <= MAX_READING_SECONDS:
        return Decision("wait", f"the last reading is {units.duration(abs(age))} old"), forget(past)
    pool, why_not = find_short_pool(state.pools)
    if pool is None:
        return Decision("nothing", why_not), Past()
    if past.acted_at is not None and state.read_at <= past.acted_at:
        return Decision("wait", "the memory was not read since the last action"), past
    since, last = past.first_seen, past.last_seen
    if since is None or last is None or not 0 <= state.read_at - last <= MAX_GAP_SECONDS:
        since = state.read_at
    seen = Past(since, state.read_at, past.acted_at, past.tried)
    needed = confirm_seconds(pool.seconds_to_full)
    if state.read_at - since < needed:
        return Decision("wait", f"{describe_pool(pool)}; a second reading must confirm it"), seen
    causes, unknown = find_causes(state)
    if not causes:
        is_over = state.read_at - since >= SCANS_SECONDS
        return Decision("nothing" if is_over else "wait", f"{describe_pool(pool)}; {unknown}"), seen
    return choose(state, pool, limits, causes, past), seen


def forget(past: Past) -> Past:
    """Return the past without evidence: it must be seen again."""
    return Past(acted_at=past.acted_at, tried=past.tried)


def find_short_pool(pools: Iterable[PoolState]) -> tuple[PoolState | None, str]:
    """Return System RAM if it is critical by its own figures, or None and why it is not."""
    pool = next((one for one in pools if one.kind is PoolKind.SYSTEM_RAM), None)
    if pool is None:
        return None, "the memory of this machine was not read"
    if pool.level < Level.CRITICAL:
        return None, f"{pool.id} is {pool.level.label}: {units.size(max(0, pool.available_bytes))} are available"
    if pool.available_bytes > pool.critical_bytes or not SHORT.intersection(pool.evidence):
        return None, (
            f"{pool.id} is critical, but not by its own use: {units.size(pool.available_bytes)} are available, and "
            f"{units.size(pool.critical_bytes)} are critical"
        )
    soon = pool.seconds_to_full is not None and pool.seconds_to_full <= URGENT_SECONDS
    if not soon and not URGENT.intersection(pool.evidence):
        return (
            None,
            f"{describe_pool(pool)}, but it neither fills up within {URGENT_SECONDS:.0f} s nor stalls tasks",
        )
    return pool, ""


def describe_pool(pool: PoolState) -> str:
    """Return a clause: "ram is critical: 1.2 GiB of 119.7 GiB are available, full in about 4 s"."""
    sizes = f"{units.size(max(0, pool.available_bytes))} of {units.size(pool.size_bytes)}"
    soon = "" if pool.seconds_to_full is None else f", full in about {units.forecast(pool.seconds_to_full)}"
    return f"{pool.id} is critical: {sizes} are available{soon}"


def confirm_seconds(forecast: float | None) -> float:
    """Return the time between the two readings that confirm each other."""
    return min(MAX_CONFIRM_SECONDS, max(MIN_CONFIRM_SECONDS, (inf if forecast is None else forecast) / 10))


def find_causes(state: State) -> tuple[tuple[Candidate, ...], str]:
    """Return the processes whose growth explains the fall of System RAM, the largest first: one, or workers alike.

    Without them, return why the cause is not known.
    """
    known = [one for one in state.candidates if not one.kernel_thread]
    if not known:
        return (), "no process is known that could end"
    cause, fall = min(known, key=order), state.fall_bytes_per_second
    if cause.device_age_seconds > MAX_DEVICE_SECONDS:
        return (), f"the cause is not known: {describe_age(cause)}"
    if fall is None:
        return (), "the cause is not known: no growth was measured since it began to fall"
    least = cause.growth_bytes_per_second or 0.0
    if least < MIN_GROWTH:
        return (), "the cause is not known: no process has grown more than it allocates and frees"
    able = [one for one in known if one is cause or one.max_growth_bytes_per_second >= least]
    unclear = [one for one in able if (one.growth_bytes_per_second or 0.0) < least * MIN_SHARE]
    if unclear:
        return (
            (),
            f"the cause is not known: {cause.title} has grown, but {unclear[0].title} may have grown as much",
        )
    # Where others grew as well, processes give back and take what the fall does not show.
    explained = sum(one.growth_bytes_per_second or 0.0 for one in able)
    grown = sum(max(0.0, one.growth_bytes_per_second or 0.0) for one in known)
    most = max(fall, state.max_fall_bytes_per_second)
    if explained < fall * MIN_EXPLAINED_RATIO or grown > most * MAX_EXPLAINED_RATIO:
        alike = "" if len(able) == 1 else f" with {len(able) - 1} alike"
        return (), (
            f"the cause is not known: {units.size(round(fall))} a second were lost; {cause.title} grew most{alike}"
            f", by {units.size(round(explained))} a second, and all processes by {units.size(round(grown))}"
        )
    return tuple(sorted(able, key=order)), ""


def choose(
    state: State,
    pool: PoolState,
    limits: Limits,
    causes: Sequence[Candidate],
    past: Past = Past(),  # noqa: B008  frozen
) -> Decision:
    """Return the decision for a pool whose shortage is confirmed, and whose causes are known, the largest first."""
    ranked = [one for one in state.candidates if not one.kernel_thread]
    refused = []
    for one in sorted(ranked, key=lambda one: (preference(one, limits), *order(one))):
        why = why_refused(one, causes, state, pool, limits, past)
        if why:
            refused.append(Refusal(one, why))
            continue
        if one.device_age_seconds > MAX_DEVICE_SECONDS:
            return Decision("nothing", f"{describe_pool(pool)}; {describe_age(one)}", refused=tuple(refused))
        reason = f"{describe_pool(pool)}; {one.title} {describe_share(one)}"
        return Decision("act", reason, one, plan_steps(pool.seconds_to_full, one, limits), tuple(refused))
    stays = next(one.why for one in refused if one.candidate is causes[0])
    why = f"no process may end that would free enough; the cause is probably {causes[0].title}: {stays}"
    return Decision("nothing", f"{describe_pool(pool)}; {why}", refused=tuple(refused))


def order(one: Candidate) -> tuple[float, int, int]:
    """Sort by growth, then by footprint, the largest first."""
    growth = one.growth_bytes_per_second or 0.0
    return -growth if growth >= MIN_GROWTH else 0.0, -one.footprint_bytes, one.pid


def preference(one: Candidate, limits: Limits) -> int:
    """Return 0 for what is preferred, 2 for what is avoided, 1 for others. A process in both lists is avoided."""
    if any(matches(one, match) for match in limits.avoid):
        return 2
    return 0 if any(matches(one, match) for match in limits.prefer) else 1


def why_refused(
    one: Candidate, causes: Sequence[Candidate], state: State, pool: PoolState, limits: Limits, past: Past
) -> str:
    """Return why a process may not or need not end, as a clause; empty if it may."""
    why = why_protected(one, state) or why_never(one, limits)
    if why:
        return why
    if one.key in past.tried:
        return "it did not end on SIGKILL"
    if one not in causes and (why := why_not_instead(one, causes[0], limits)):
        return why
    if pool.available_bytes + one.footprint_bytes <= pool.critical_bytes:
        return f"its {units.size(one.footprint_bytes)} are not enough to leave the level critical"
    return ""


def why_not_instead(one: Candidate, cause: Candidate, limits: Limits) -> str:
    """Return why a process does not end in place of the cause, which goes on; empty if the operator allows it."""
    if limits.others == "any":
        return ""
    if limits.others == "none" and preference(one, limits) != 0:
        return f"it is not the cause, {cause.title}, and neither prefer nor others allows that it ends in its place"
    if isinstance(cause.slice, Absent) or isinstance(one.slice, Absent):
        return "it is not known whether it is in the slice of the cause"
    if one.slice != cause.slice:
        return f"it is in {one.slice}, and the cause, {cause.title}, is in {cause.slice}"
    return ""


def why_protected(one: Candidate, state: State) -> str:
    """Return why a process never ends, whatever the settings say; empty if it may."""
    if one.pid <= INIT:
        return "it is the first process"
    if one.kernel_thread:
        return "it is a thread of the kernel"
    if one.pid in state.own_pids:
        return "it is the guardian or the daemon"
    if not one.visible:
        return "it is not visible from here"
    if any(map(is_own_name, (one.name, *one.commands))):
        return "it belongs to memwatchd"
    if any(map(is_protected_name, (one.name, *one.commands))):
        return "it is needed to log in, for a session, or to run containers"
    # Where the unit is not known, the cgroup may still be; where neither is, neither is what depends on it.
    if isinstance(one.unit, Absent):
        return "its unit is not known"
    for unit in filter(None, (one.unit, one.kernel_unit)):
        # Over TCP, the number of the daemon's process is not known.
        if is_own_unit(unit):
            return "it belongs to memwatchd"
        if is_protected_unit(unit):
            return f"{unit} is needed to log in, for a session, or to run containers"
    if not isinstance(one.slice, Absent) and any(fnmatchcase(one.slice, pattern) for pattern in PROTECTED_SLICES):
        return "it belongs to memwatchd"
    return ""


def why_never(one: Candidate, limits: Limits) -> str:
    """Return why the operator's list `never` applies; empty if it does not."""
    for match in limits.never:
        if matches(one, match):
            return f"never has {match}"
        if any(isinstance(value, Absent) for value in values(one, match)):
            return f"never has {match}, and its {match.kind} is not known"
    return ""


def matches(one: Candidate, match: Match) -> bool:
    return any(isinstance(value, str) and fnmatchcase(value, match.pattern) for value in values(one, match))


def values(one: Candidate, match: Match) -> tuple[str | Absent | None, ...]:
    """Return the values of the property that a pattern is for."""
    if match.kind == "command":
        return (one.name, *one.commands)
    if match.kind == "container":
        return one.container, one.container_name
    return (one.unit, one.kernel_unit) if match.kind == "unit" else (one.user,)


def plan_steps(forecast: float | None, victim: Candidate, limits: Limits) -> tuple[Step, ...]:
    """Return the steps, the mildest first, each with the smaller of its time and a quarter of the forecast."""
    share = inf if forecast is None else forecast / FORECAST_SHARE
    times: dict[StepName, float] = {
        "hook": limits.hook_seconds if limits.has_hook else 0.0,
        "engine": limits.engine_seconds if victim.engine else 0.0,
        "reclaim": limits.reclaim_seconds if isinstance(victim.cgroup, str) else 0.0,
        "sigterm": limits.sigterm_seconds,
        "sigkill": limits.sigkill_seconds,
    }
    only_kill = forecast is not None and forecast < SIGKILL_ONLY_SECONDS
    return tuple(
        Step(name, min(seconds, share))
        for name, seconds in times.items()
        if name == "sigkill" or (seconds > 0 and not only_kill)
    )


def weigh_reclaim(
    decision: Decision, pool: PoolState, read_group: Callable[[Candidate], GroupMemory | str]
) -> Decision:
    """Return the decision with the bytes that its step to reclaim asks for, or with the reason why it is not taken.

    `read_group` returns the memory of the victim's control group, or why it is not known. File cache brings
    nothing: MemAvailable has it already, also while it is not free.
    """
    victim = decision.victim
    if victim is None or all(step.name != "reclaim" for step in decision.steps):
        return decision
    size, why = 0, "no swap is free, and file cache counts as available already"
    if pool.swap_free_bytes > 0:
        group = read_group(victim)
        size, why = (0, group) if isinstance(group, str) else size_reclaim(group, pool)

    def weigh(step: Step) -> Step:
        return step if step.name != "reclaim" else Step("reclaim", 0.0 if why else step.seconds, size, why)

    return replace(decision, steps=tuple(map(weigh, decision.steps)))


def size_reclaim(group: GroupMemory, pool: PoolState) -> tuple[int, str]:
    """Return the bytes to reclaim in a control group, or 0 and why that does not help."""
    missing = pool.critical_bytes - pool.available_bytes
    swappable = min(group.swappable_bytes, pool.swap_free_bytes)
    if swappable <= missing:
        return 0, (
            f"at most {units.size(swappable)} of its control group can move to swap, {units.size(missing)} are "
            "missing, and file cache counts as available already"
        )
    # The kernel takes file cache first.
    return group.file_bytes + min(swappable, RECLAIM_SHARE * missing), ""


def describe_age(one: Candidate) -> str:
    if one.device_age_seconds == inf:
        return f"the device memory of {one.title} is not known, because the daemon did not report it"
    return (
        f"the device memory of {one.title} was read {units.duration(one.device_age_seconds)} ago, and "
        f"more than {MAX_DEVICE_SECONDS:.0f} s are too old to decide on"
    )


def describe_share(one: Candidate) -> str:
    """Return what a victim holds, as a clause."""
    growth = one.growth_bytes_per_second or 0.0
    device = f", {units.size(one.device_bytes)} of devices among them" if one.device_bytes else ""
    grows = f" and grows by {units.size(round(growth))} a second" if growth >= MIN_GROWTH else ""
    return f"holds {units.size(one.footprint_bytes)}{device}{grows}"
