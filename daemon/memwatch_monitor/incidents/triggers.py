"""Beginnings of incidents: facts of a tick that start or prolong one, and kills that are none. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from memwatch.core.events import MARK, OF_PROGRAMS, Event
from memwatch.core.kernel_log import ProcessEnd, ServiceKill
from memwatch.core.listing import some_of
from memwatch.core.model import RAM, Absent, Device, PoolKind, find_root, known_or
from memwatch.core.pressure.oom_kills import NO_KILLS, NewKills
from memwatch.core.pressure.rules import FILLED_ON_PURPOSE
from memwatch.core.snapshot import CgroupPressure, Level, Pressure, Snapshot
from memwatch.core.units import size
from memwatch.reporting.incidents.killer import WORDS, Death
from memwatch.reporting.incidents.readings import Frame
from memwatch.reporting.incidents.records import IncidentKind
from memwatch_monitor.incidents.sentence import describe_device_memory, describe_owner

# States of a device that the driver or the bus has lost.
LOST = frozenset({"lost", "needs_reset", "missing"})
# No sample for this long, and for this many intervals, while memory is short.
GAP_SECONDS, GAP_INTERVALS = 5.0, 5
# Signals that follow from use alone.
OF_USE = frozenset({"util", "ttf"})
# A mark that `memwatch.autopsy` sends.
_PROGRAM = re.compile(r"^(out of memory.{0,300}?)(?: \(process (\d{1,10})\))?$")


class Observation(Struct, frozen=True):
    """All that is new at one tick. `group_kills`: OOM kills in the own cgroup since the last tick."""

    boottime: float
    snapshot: Snapshot
    kills: NewKills = NO_KILLS
    group_kills: int = 0
    service_kills: tuple[ServiceKill, ...] = ()
    ends: tuple[ProcessEnd, ...] = ()
    events: tuple[Event, ...] = ()


class Trigger(Struct, frozen=True):
    """A reason for an incident about `target`, or about a cgroup at its limit.

    `gap_seconds`: time without a sample.
    """

    kind: IncidentKind
    target: str
    death: Death | None = None
    detail: str = ""
    cgroup: str = ""
    gap_seconds: float = 0.0


def is_short(one: Pressure, least: Level = Level.CRITICAL) -> bool:
    """Return True for a level from `least` on. GPU memory is filled on purpose: its use alone does not count."""
    if one.level < least:
        return False
    return one.kind not in FILLED_ON_PURPOSE or any(reason.signal not in OF_USE for reason in one.reasons)


def find_ram(snapshot: Snapshot) -> str:
    return next((pool.id for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM), RAM)


def find_gap(before: Frame | None, monotonic: float, now: Observation) -> float:
    """Return the time without a sample while memory was short, 0 if there was none."""
    if before is None:
        return 0.0
    snapshot = now.snapshot
    gap = snapshot.monotonic - monotonic
    if gap < max(GAP_SECONDS, GAP_INTERVALS * snapshot.interval_seconds):
        return 0.0
    short = any(one.level >= Level.HIGH for one in (*before.pressure, *snapshot.pressure))
    return gap if short else 0.0


def find_lost_devices(before: tuple[Device, ...], now: Snapshot) -> Iterator[Trigger]:
    states = {device.id: device.state for device in before}
    for device in now.devices:
        if device.state in LOST and states.get(device.id, device.state) not in LOST:
            yield Trigger("gpu_lost", _memory_of(device, now), detail=describe_lost(device, now))


def _memory_of(device: Device, now: Snapshot) -> str:
    pools = {pool.id for pool in now.pools}
    return next((place for place in device.allocates_from if place in pools), find_ram(now))


def describe_lost(device: Device, now: Snapshot) -> str:
    """Return a sentence: the GPU, its driver errors, and the processes that held its memory."""
    errors = ", ".join(kind.replace("xid_", "XID ") for kind, count in device.errors.items() if count)
    why = f" ({errors})" if errors else ""
    places = {place for place in device.allocates_from if place in now.labels}
    places |= {share.id for share in now.shares if share.device == device.id}
    pools = {pool.id for pool in now.pools if pool.kind is PoolKind.SYSTEM_RAM}
    held = [one for one in now.processes if (places - pools) & one.device_bytes.keys()]
    users = f"; it was in use by {some_of([f'{one.title} (PID {one.pid})' for one in held], 3)}" if held else ""
    return f"{device.name} ({device.id}) is {device.state.replace('_', ' ')}{why}{users}"


def find_program_errors(events: tuple[Event, ...]) -> Iterator[tuple[Event, str, int | None]]:
    """Yield the marks of programs whose allocation failed, with the text and the PID."""
    for event in events:
        found = _PROGRAM.match(event.text) if event.kind == MARK else None
        if found:
            yield event, found[1], int(found[2]) if found[2] else None


def is_routine(event: Event) -> bool:
    """Return True for events that programs set by the hundred. A failed allocation is not one of them."""
    return event.kind in OF_PROGRAMS and not _PROGRAM.match(event.text)


def find_place(pid: int | None, frame: Frame) -> str | None:
    """Return the pool in which a process holds most memory of a device, None if it holds none."""
    within = {share.id: share.within for share in frame.shares}
    held: dict[str, int] = {}
    for process in frame.processes:
        for name, figure in process.device_bytes.items() if process.pid == pid else ():
            place = find_root(name, within)
            held[place] = held.get(place, 0) + known_or(figure, 0)
    return max(held, key=lambda place: held[place], default=None)


def was_memory_short(frames: Iterable[Frame], since: float) -> bool:
    """Return True if a target was under high pressure, or a cgroup stalled on memory, from boot time `since` on."""
    return any(
        isinstance(frame.cgroup_pressure, CgroupPressure)
        or any(is_short(one, Level.HIGH) for one in frame.pressure)
        for frame in frames
        if frame.boottime >= since
    )


def describe_quiet_kill(death: Death, was_short: bool, now: Snapshot) -> str:
    """Return a sentence: the victim, its memory, and how much is available now."""
    victim = death.victim
    when = "" if was_short else " while memory was not short"
    held = [describe_device_memory(victim.device_bytes, now.labels)] if victim.device_bytes else []
    held += [f"{size(victim.held_bytes)} of System RAM"] if victim.held_bytes else []
    had = f"it had {' and '.join(held)}" if held else "its memory is not known"
    text = f"{WORDS[death.killer.kind]} killed {describe_owner(victim)}{when}; {had}"
    return f"{text}{_describe_available(victim.device_bytes, now)}"


def _describe_available(held: Mapping[str, int], now: Snapshot) -> str:
    pools = [pool for pool in now.pools if pool.id in held or pool.kind is PoolKind.SYSTEM_RAM]
    left = [(pool.label, pool.available_bytes) for pool in reversed(pools)]
    known = [f"{size(count)} of {label}" for label, count in left if not isinstance(count, Absent)]
    return f"; {' and '.join(known)} are available now" if known and len(known) <= 2 else ""
