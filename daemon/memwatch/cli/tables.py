"""Tables, times and figures of the commands as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from memwatch.core.model import Absent, Bytes, Device
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.render import words as wording


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


Json = dict[str, Any]


def figure(record: Json, name: str) -> Bytes:
    """Return a size in bytes, or the reason of its absence."""
    value = record[name]
    return Absent(record["absent"][name]) if value is None else int(value)


def certain_headroom(device: Json) -> Bytes:
    """Return the headroom that needs no reclaim. Daemons before this version do not report it."""
    name = "headroom_certain_bytes"
    return figure(device, name) if name in device else Absent.NOT_AVAILABLE


def known_size(count: int | None) -> str:
    return wording.DASH if count is None else wording.size(count)


def size(record: Json, name: str) -> str:
    """Format the size: "44.3 GiB", "— not supported"."""
    return wording.size(figure(record, name))


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
        counts = f"{wording.count(problems, 'problem')} and {wording.count(hints, 'hint')}"
        yield f"{counts}: see the lines marked ✗ and !."
    elif hints:
        yield f"No problems, {wording.count(hints, 'hint')}: see the lines marked !."
    else:
        yield "No problems found."


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
