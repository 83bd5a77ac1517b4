"""Tables, times and figures of the commands as text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from memwatch.core.model import RAM_LABEL, Absent, Device, known_or
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.answers import Examination, Release, Verdict
from memwatch.reporting.render import words as wording

if TYPE_CHECKING:
    from memwatch.core.backends.model import BackendDevice, Backends


def clock(unix: float) -> str:
    """Format the time of day: "11:22:33 CET"."""
    return time.strftime("%H:%M:%S %Z", time.localtime(unix))


def stamp(unix: float) -> str:
    """Format an instant: "2026-11-21 11:22:33 CET"."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(unix))


def when(unix: float, now: float) -> str:
    """Format an instant as the time of day, with the date unless it is that of `now`."""
    same_day = time.localtime(unix)[:3] == time.localtime(now)[:3]
    return clock(unix) if same_day else stamp(unix)


def known_size(count: int | None) -> str:
    return wording.DASH if count is None else wording.size(count)


BLOCKS = "▁▂▃▄▅▆▇█"
MARKS: dict[bool | None, str] = {True: "✓", False: "✗", None: "?"}
# Not "System RAM": firmware may reserve a part of it (carve-out), which MemTotal does not contain.
UNIFIED: dict[bool | None, str] = {
    True: "unified memory",
    False: "dedicated memory",
    None: "memory of unknown type",
}
RANGE = "Of a range, the lower end is free now; the upper end needs reclaim of page cache."


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Align rows in columns. `right`: indexes of the right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            aggregate.rjust(width) if at in right else aggregate.ljust(width)
            for at, (aggregate, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], none: str, right: frozenset[int] = frozenset()
) -> list[str]:
    """Align rows below their head. `none`: the sentence in place of a table without rows."""
    found = [head, *rows]
    return columns(found, right) if len(found) > 1 else [none]


def device_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield a table of devices with their known sensors and notes, or the reason why there are none."""
    devices = snapshot.devices
    if not devices:
        yield snapshot.machine.explanation or "No devices found."
        return
    rows = [("id", "name", "architecture", "can allocate", "state"), *map(_device_row, devices)]
    head, *lines = columns(rows, right=frozenset({3}))
    yield head
    for device, line in zip(devices, lines, strict=True):
        yield line
        if known := wording.vitals(device.vitals):
            yield f"      {known}"
        yield from (f"      {note}" for note in device.notes)
    if any(wording.needs_reclaim(device.headroom_bytes, device.headroom_after_reclaim_bytes) for device in devices):
        yield RANGE


def _device_row(device: Device) -> tuple[str, ...]:
    architecture = wording.architecture(device.architecture.value)
    headroom = wording.headroom(device.headroom_bytes, device.headroom_after_reclaim_bytes)
    return device.id, device.name, architecture, headroom, device.state.replace("_", " ")


def backend_lines(found: Backends) -> Iterator[str]:
    for backend in found.backends:
        yield f"{MARKS[known_or(backend.available, None)]} {backend.label} — {backend.reason}"
        yield from (f"    {_backend_device(device, backend.label)}" for device in backend.devices)
    yield ""
    label = {one.name: one.label for one in found.backends}[found.recommended]
    yield f"Recommended: {label} — {found.recommended_reason}"
    if found.age_seconds >= 1:
        yield f"Last checked {wording.age(found.age_seconds)}."


def _backend_device(device: BackendDevice, backend: str) -> str:
    """Format a device. A CPU device of OpenCL has no sizes: they would repeat System RAM."""
    name = f"{device.id}: {device.name}" if device.id else device.name
    words = [device.note] if device.note else []
    if device.kind != "cpu" or not isinstance(device.size_bytes, Absent):
        words = [_capacity(device, backend), *words]
    return f"{name}: {'; '.join(words)}" if words else name


def _capacity(device: BackendDevice, backend: str) -> str:
    most, own = device.headroom_after_reclaim_bytes, device.own_headroom_bytes
    can = wording.can_allocate(device.headroom_bytes, most)
    memory = RAM_LABEL if device.kind == "cpu" else UNIFIED[known_or(device.unified, None)]
    rule = "" if own is Absent.NOT_SUPPORTED or own == most else f", with {backend}: {wording.size(own)}"
    return f"{wording.size(device.size_bytes)} of {memory}, {can}{rule}"


VERDICTS = {Verdict.OK: "✓", Verdict.HINT: "!", Verdict.PROBLEM: "✗"}


def check_lines(found: Examination) -> Iterator[str]:
    """Yield a line per check with its remedy below it, then a summary line."""
    for check in found.checks:
        yield f"{VERDICTS[check.verdict]} {check.text}"
        if check.remedy:
            yield f"    → {check.remedy}"
    yield ""
    if found.version:  # not in the answer of an older daemon
        yield f"memwatchd {found.version}, revision {found.revision}"
    counted = Counter(check.verdict for check in found.checks)
    problems, hints = counted[Verdict.PROBLEM], counted[Verdict.HINT]
    if problems:
        counts = f"{wording.count(problems, 'problem')} and {wording.count(hints, 'hint')}"
        yield f"{counts}: see the lines marked ✗ and !."
    elif hints:
        yield f"No problems, {wording.count(hints, 'hint')}: see the lines marked !."
    else:
        yield "No problems found."


def release_lines(found: Release, now_unix: float) -> Iterator[str]:
    if not found.released:
        yield "memwatchd has no device open: nothing to release."
        return
    after, until = wording.duration(found.seconds), clock(now_unix + found.seconds)
    yield f"{', '.join(found.released)}: devices close within 1 s and reopen after {after}, at {until}."
