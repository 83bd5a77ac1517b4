"""Kills while memory was not short: an event, and no incident. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memwatch.core.model import Absent, PoolKind
from memwatch.core.pressure.rules import FILLED_ON_PURPOSE
from memwatch.core.snapshot import CgroupPressure, Level, Pressure, Snapshot
from memwatch.core.units import size
from memwatch.monitor.incidents.killer import WORDS, Death
from memwatch.monitor.incidents.readings import Frame
from memwatch.monitor.incidents.sentence import describe_device_memory, describe_owner
from memwatch.monitor.incidents.triggers import OF_USE


def was_memory_short(frames: Iterable[Frame], since: float) -> bool:
    """Return True if a target was under high pressure, or a cgroup stalled on memory, from boot time `since` on."""
    return any(
        isinstance(frame.cgroup_pressure, CgroupPressure) or any(map(_is_short, frame.pressure))
        for frame in frames
        if frame.boottime >= since
    )


def _is_short(one: Pressure) -> bool:
    """GPU memory that is merely full is not short: servers fill it on purpose."""
    if one.level < Level.HIGH:
        return False
    return one.kind not in FILLED_ON_PURPOSE or any(reason.signal not in OF_USE for reason in one.reasons)


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
