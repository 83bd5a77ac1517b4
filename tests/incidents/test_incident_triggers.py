"""Test the facts that begin an incident: a gap while memory is short, and a device that is lost."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from memwatch.core.events import MARK, Event
from memwatch.core.model import Absent, Bytes, Process
from memwatch.core.snapshot import Level, Pressure, Reason, Snapshot
from memwatch.reporting.incidents.readings import build_frame
from memwatch_monitor.incidents.triggers import (
    Observation,
    find_gap,
    find_lost_devices,
    find_place,
    find_program_errors,
    is_routine,
    is_short,
)
from support.fakes import GIB
from support.gpu_cards import cards
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu

LOST = ("lost", "missing", "needs_reset")


def machine(level: Level, monotonic: float = 100.0, interval: float = 1.0) -> Snapshot:
    one = Pressure("ram", level, level, 0.5, kind="system_ram")
    return replace(calm_workstation(), monotonic=monotonic, interval_seconds=interval, pressure=(one,))


def gap(before: Level, after: Level, seconds: float = 8.0, interval: float = 1.0) -> float:
    """Return the gap between two samples at these levels."""
    frame = build_frame(100.0, machine(before, interval=interval))
    return find_gap(frame, 100.0, Observation(100.0 + seconds, machine(after, 100.0 + seconds, interval)))


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Level, Level)))
def test_gap_counts_if_memory_was_short_before_or_after(before: Level, after: Level) -> None:
    """A machine that froze under pressure may have recovered when it is read again, and one that was calm not."""
    is_short = max(before, after) >= Level.HIGH

    assert gap(before, after) == (8.0 if is_short else 0.0)


@pytest.mark.parametrize(
    ("interval", "seconds", "counts"),
    [
        (0.1, 4.75, False),
        (0.1, 5.0, True),
        (1.0, 5.0, True),
        (2.0, 9.75, False),
        (2.0, 10.0, True),
    ],
)
def test_gap_is_five_seconds_and_five_intervals(interval: float, seconds: float, counts: bool) -> None:
    """Both: of a machine that is read every two seconds, six seconds say nothing."""
    assert (gap(Level.HIGH, Level.HIGH, seconds, interval) > 0) is counts


def test_first_sample_has_no_gap_before_it() -> None:
    assert find_gap(None, 0.0, Observation(1e6, machine(Level.CRITICAL, 1e6))) == 0.0


def with_state(state: str) -> Snapshot:
    base = discrete_gpu()
    return replace(base, devices=(replace(base.devices[0], state=state),))


@pytest.mark.parametrize("after", LOST)
@pytest.mark.parametrize("before", ["ok", "stale", *LOST])
def test_device_is_lost_once(before: str, after: str) -> None:
    """From one of these states to another it is the same loss."""
    found = list(find_lost_devices(with_state(before).devices, with_state(after)))

    assert [one.kind for one in found] == ["gpu_lost"] * (before not in LOST)


@pytest.mark.parametrize("after", ["ok", "stale"])
def test_device_that_comes_back_is_no_loss(after: str) -> None:
    assert list(find_lost_devices(with_state("lost").devices, with_state(after))) == []


@pytest.mark.parametrize("state", LOST)
def test_device_that_was_lost_at_the_first_sight_of_it_is_no_incident(state: str) -> None:
    """The daemon started with a dead GPU: it was not lost now. Another GPU was seen before."""
    other = replace(with_state("ok").devices[0], id="gpu7")

    assert list(find_lost_devices((other,), with_state(state))) == []


@pytest.mark.parametrize(
    ("kind", "level", "signals", "counts"),
    [
        ("system_ram", Level.CRITICAL, ("util",), True),
        ("system_ram", Level.HIGH, ("util", "psi"), False),
        ("vram", Level.CRITICAL, ("util", "ttf"), False),
        ("vram", Level.CRITICAL, ("util", "xid"), True),
        ("vram", Level.HIGH, ("xid",), False),
    ],
)
def test_gpu_that_is_only_full_is_no_incident(
    kind: str, level: Level, signals: tuple[str, ...], counts: bool
) -> None:
    """Its own memory is filled on purpose: it takes the critical level and a sign of trouble, both."""
    reasons = tuple(Reason(signal, "text") for signal in signals)

    assert is_short(Pressure("x", level, level, 0.99, reasons, kind=kind)) is counts


@pytest.mark.parametrize(
    ("text", "kind", "found"),
    [
        ("out of memory: CUDA (process 71)", MARK, [("out of memory: CUDA", 71)]),
        ("out of memory: CUDA", MARK, [("out of memory: CUDA", None)]),
        ("out of memory: CUDA (process 71)", "level", []),
        ("ran out of memory: CUDA", MARK, []),
        ("epoch 5", MARK, []),
    ],
)
def test_mark_of_a_failed_allocation_is_found(text: str, kind: str, found: list[tuple[str, int | None]]) -> None:
    event = Event(1, 1.0, kind, text)

    assert [(words, pid) for _, words, pid in find_program_errors((event,))] == found
    assert is_routine(event) is (kind == MARK and not found)


def test_place_of_a_failed_allocation_is_the_pool_with_most_of_the_process() -> None:
    """Shares count in their pool, of all GPUs, and unknown figures as nothing."""
    held: dict[str, Bytes] = {"gpu0.vram": 3 * GIB, "gpu1.vram": 5 * GIB, "gpu2.vram": Absent.NOT_PERMITTED}
    process = Process(7, 1.0, "train", GIB, GIB, "rss", device_bytes=held)
    other = replace(process, pid=8, device_bytes={"gpu0.vram": 70 * GIB})
    frame = build_frame(1.0, replace(cards(3), processes=(other, process)))
    spark = critical_gb10()
    unified = build_frame(1.0, replace(spark, processes=(replace(process, device_bytes={"cuda0": GIB}),)))

    assert (find_place(7, frame), find_place(8, frame)) == ("gpu1.vram", "gpu0.vram")
    assert find_place(7, unified) == "ram"
    assert (find_place(9, frame), find_place(None, frame)) == (None, None)
