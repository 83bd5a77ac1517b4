"""Format devices, events, backends, checks and releases as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memwatch.cli.figures import Json, size
from memwatch.cli.times import clock, stamp
from memwatch.core.model import Device
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render import words as wording

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
    if any(wording.needs_reclaim(device.headroom_certain_bytes, device.headroom_bytes) for device in devices):
        yield RANGE


def _device_row(device: Device) -> tuple[str, ...]:
    architecture = wording.architecture(device.architecture.value)
    headroom = wording.headroom(device.headroom_certain_bytes, device.headroom_bytes)
    return device.id, device.name, architecture, headroom, device.state.replace("_", " ")


def event_lines(events: Sequence[Json]) -> Iterator[str]:
    """Yield events oldest first, so that the newest is next to the prompt. `events` is newest first."""
    if not events:
        yield "No events yet."
        return
    rows = [(stamp(event["unix"]), event["kind"], event["text"]) for event in reversed(events)]
    yield from columns(rows)


def backend_lines(found: Json) -> Iterator[str]:
    for backend in found["backends"]:
        yield f"{MARKS[backend['available']]} {backend['label']} — {backend['reason']}"
        yield from (f"    {_backend_device(device, backend['label'])}" for device in backend["devices"])
    yield ""
    label = {one["name"]: one["label"] for one in found["backends"]}[found["recommended"]]
    yield f"Recommended: {label} — {found['recommended_reason']}"
    if found["age_seconds"] >= 1:
        yield f"Last checked {wording.age(found['age_seconds'])}."


def _backend_device(device: Json, backend: str) -> str:
    """Format a device. A CPU device of OpenCL has no sizes: they would repeat System RAM."""
    name = f"{device['id']}: {device['name']}" if device["id"] else device["name"]
    words = [device["note"]] if device["note"] else []
    if device["kind"] != "cpu" or device["size_bytes"] is not None:
        words = [_capacity(device, backend), *words]
    return f"{name}: {'; '.join(words)}" if words else name


def _capacity(device: Json, backend: str) -> str:
    can = size(device, "headroom_bytes")
    known = device["headroom_bytes"] is not None
    now = f"can allocate {can} now" if known else f"headroom {can}"
    memory = "System RAM" if device["kind"] == "cpu" else UNIFIED[device["unified"]]
    return f"{size(device, 'size_bytes')} of {memory}, {now}{_own_rule(device, backend)}"


def _own_rule(device: Json, backend: str) -> str:
    """Format the headroom of this backend if it differs from the device's. Older daemons do not send it."""
    has_one = device.get("own_headroom_bytes") is not None or "own_headroom_bytes" in device.get("absent", {})
    if not has_one or device["own_headroom_bytes"] == device["headroom_bytes"]:
        return ""
    return f", with {backend}: {size(device, 'own_headroom_bytes')}"


VERDICTS = {"ok": "✓", "hint": "!", "problem": "✗"}


def check_lines(found: Json) -> Iterator[str]:
    """Yield a line per check with its remedy below it, then a summary line."""
    checks = found["checks"]
    for check in checks:
        yield f"{VERDICTS[check['verdict']]} {check['text']}"
        if check["remedy"]:
            yield f"    → {check['remedy']}"
    yield ""
    if "version" in found:  # not in the answer of an older daemon
        yield f"memwatchd {found['version']}, revision {found['revision']}"
    problems, hints = (sum(check["verdict"] == one for check in checks) for one in ("problem", "hint"))
    if problems:
        yield f"{_count(problems, 'problem')} and {_count(hints, 'hint')}: see the lines marked ✗ and !."
    elif hints:
        yield f"No problems, {_count(hints, 'hint')}: see the lines marked !."
    else:
        yield "No problems found."


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def release_lines(answer: Json, now_unix: float) -> Iterator[str]:
    names: list[Any] = answer["released"]
    if not names:
        yield "memwatchd has no device open: nothing to release."
        return
    seconds = float(answer["seconds"])
    until = clock(now_unix + seconds)
    yield (
        f"{', '.join(map(str, names))}: devices close within 1 s and reopen after {wording.duration(seconds)}, "
        f"at {until}."
    )
