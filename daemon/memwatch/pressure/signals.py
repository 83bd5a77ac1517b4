"""Signals other than usage: each raises a target to a level and gives a reason. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from memwatch import units
from memwatch.kernel_log import describe_kind
from memwatch.model import Absent
from memwatch.pressure.inputs import DriverErrors, PressureInputs, Target
from memwatch.snapshot import CgroupPressure, Level

MIB = 1 << 20
# An event holds its level for this time; other signals hold theirs for `clear_after_seconds`.
EVENT_HOLD_SECONDS = 60.0
PSI_WINDOW_SECONDS = 10.0
# Least available memory, in bytes and as a fraction of the size; the smaller of the two applies.
FLOORS = ((Level.CRITICAL, 256 * MIB, 0.10), (Level.HIGH, 512 * MIB, 0.20))
# PSI thresholds: fractions of the window in which some, or all, tasks stalled; least usage for `psi_full`.
SOME_MEDIUM, SOME_HIGH = 0.05, 0.20
FULL_HIGH, FULL_CRITICAL, FULL_USED = 0.05, 0.20, 0.60
TTF_MEDIUM_SECONDS, TTF_HIGH_SECONDS = 1800.0, 300.0
SWAP_LEFT, SWAP_USED = 0.10, 0.90


class Signal(Struct, frozen=True):
    """An observation that raises the level until `hold_seconds` after it was last true.

    `hold_seconds` None: `clear_after_seconds`, as for levels from usage.
    """

    name: str
    level: Level
    text: str
    hold_seconds: float | None = None


class StallRatios(Struct, frozen=True):
    """Fractions of the last `PSI_WINDOW_SECONDS` (0 to 1) in which some task, or every task, stalled on memory."""

    some: float
    full: float


class TickChanges(Struct, frozen=True):
    """Changes since the previous tick, as counts. `stalled`: None without PSI."""

    stalled: StallRatios | None = None
    compact_fails: int = 0
    cgroup_oom_kills: int = 0
    driver_errors: tuple[DriverErrors, ...] = ()


def find_signals(
    target: Target, seconds_to_full: float | None, inputs: PressureInputs, changes: TickChanges
) -> Iterator[Signal]:
    """Yield this target's signals now, except a critical time to full, which needs two ticks (see judge)."""
    yield from _trend(seconds_to_full)
    if target.is_host:
        yield from _floor(target)
        yield from _swap(target, inputs)
    if target.is_ram:
        yield from _psi_signals(target, changes.stalled, inputs.cgroup_pressure)
        yield from _kills(inputs)
        yield from _fragmentation(inputs, changes)
    if target.kind == "cgroup" and changes.cgroup_oom_kills > 0:
        text = "OOM killer: killed a process at this limit"
        yield Signal("oom_kill", Level.CRITICAL, text, EVENT_HOLD_SECONDS)
    yield from _driver(target, changes)


def _floor(target: Target) -> Iterator[Signal]:
    # Small machines run out of memory before their usage reaches the percentage thresholds.
    for level, least, part in FLOORS:
        if target.available_bytes < min(least, part * target.size_bytes):
            yield Signal("floor", level, f"only {units.size(max(0, target.available_bytes))} available")
            return


def _psi_signals(target: Target, stalled: StallRatios | None, throttled: CgroupPressure | None) -> Iterator[Signal]:
    if stalled is None:
        return
    some, full = stalled.some, stalled.full
    stall = f"some tasks stalled on memory for {some * 100:.0f}% of the last {PSI_WINDOW_SECONDS:.0f} s"
    if full >= FULL_CRITICAL and target.used_ratio >= FULL_USED:
        text = f"all tasks stalled on memory for {full * 100:.0f}% of the last {PSI_WINDOW_SECONDS:.0f} s"
        yield Signal("psi_full", Level.CRITICAL, text)
    if some >= SOME_HIGH or full >= FULL_HIGH:
        slowed = f"cgroup {throttled.cgroup}" if throttled else "a cgroup"
        text = f", although memory is available: {slowed} is slowed by its memory limit"
        localised = text if target.used_ratio < FULL_USED else ""
        yield Signal("psi", Level.HIGH, stall + localised)
    elif some >= SOME_MEDIUM:
        yield Signal("psi", Level.MEDIUM, stall)


def _trend(seconds: float | None) -> Iterator[Signal]:
    # The critical level needs two consecutive ticks, so `judge` adds it.
    if seconds is None or seconds >= TTF_MEDIUM_SECONDS:
        return
    level = Level.HIGH if seconds < TTF_HIGH_SECONDS else Level.MEDIUM
    yield Signal("ttf", level, full_in(seconds))


def full_in(seconds: float) -> str:
    # Rounded to the accuracy of the forecast.
    step = 1 if seconds < 20 else 5 if seconds < 120 else 30 if seconds < 600 else 60
    about = max(1, round(seconds / step) * step)
    return f"full in about {units.duration(about) if about > 9 else f'{about} s'} at the current rate"


def _swap(target: Target, inputs: PressureInputs) -> Iterator[Signal]:
    swap = inputs.swap
    if isinstance(swap, Absent) or not swap.size_bytes or not target.is_ram:
        return
    if swap.size_bytes - swap.used_bytes < SWAP_LEFT * swap.size_bytes and target.used_ratio > SWAP_USED:
        yield Signal("swap", Level.CRITICAL, "less than 10% of swap and of memory is left")


def _kills(inputs: PressureInputs) -> Iterator[Signal]:
    kills = inputs.kills
    if kills.unnamed > 0:
        text = "OOM killer: killed a process"
        yield Signal("oom_kill", Level.CRITICAL, text, EVENT_HOLD_SECONDS)
    # A kill at a cgroup's limit concerns that cgroup, not the machine: high, like stalls at a cgroup's limit.
    for kill in kills.named:
        level = Level.HIGH if kill.scope == "cgroup" else Level.CRITICAL
        yield Signal("oom_kill", level, kill.text, EVENT_HOLD_SECONDS)


def _fragmentation(inputs: PressureInputs, changes: TickChanges) -> Iterator[Signal]:
    if inputs.fragmented_nodes and changes.compact_fails > 0:
        where = ", ".join(map(str, inputs.fragmented_nodes))
        text = f"no free 4 MiB block on NUMA node {where}, and compaction fails; GPU drivers need such blocks"
        yield Signal("fragmentation", Level.HIGH, text)


def _driver(target: Target, changes: TickChanges) -> Iterator[Signal]:
    # Errors of an unknown device count for System RAM.
    mine = [one for one in changes.driver_errors if target.id in one.places or (target.is_ram and not one.places)]
    if mine:
        text = "; ".join(f"the driver of {one.device} reported {describe_kind(one.kind)}" for one in mine)
        yield Signal("driver", Level.HIGH, text, EVENT_HOLD_SECONDS)
