"""Render a snapshot as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.model import Absent, Pool, Process
from memwatch.render import words as wording
from memwatch.render.summary import by_footprint, has_figures
from memwatch.snapshot import Snapshot

TOP = 5


def render_text(snapshot: Snapshot) -> str:
    """Return about twenty lines. Programs use the JSON instead."""
    return "\n".join(render_lines(snapshot)) + "\n"


def render_lines(snapshot: Snapshot) -> Iterator[str]:
    machine = snapshot.machine
    name = snapshot.host if isinstance(machine.name, Absent) else f"{snapshot.host}, {machine.name}"
    yield name
    if machine.explanation:
        yield machine.explanation
    if snapshot.simulated:
        yield wording.SIMULATED
    yield ""
    yield from _places(snapshot)
    yield from _devices(snapshot)
    yield from _host(snapshot)
    if snapshot.processes:
        yield ""
        yield from _processes(snapshot)
    yield from _missing(snapshot)


def _places(snapshot: Snapshot) -> Iterator[str]:
    levels = {pressure.target: pressure for pressure in snapshot.pressure}
    for pool in snapshot.pools:
        pressure = levels.get(pool.id)
        if pressure:
            state = wording.verdict(pool.label, pressure)
        elif has_figures(pool):
            state = f"{pool.label}: {wording.NOT_JUDGED}"
        else:
            state = f"no data for {pool.label}"
        yield f"{pool.label}: {wording.size(pool.size_bytes)}"
        yield f"  used {wording.size(pool.used_bytes)}, available {wording.size(pool.available_bytes)}. {state}."
        yield from _contents(pool)
    for share in snapshot.shares:
        limit = "" if isinstance(share.limit_bytes, Absent) else f", limit {wording.size(share.limit_bytes)}"
        yield f"{snapshot.relation(share)}: {wording.size(share.used_bytes)}{limit}"


def _devices(snapshot: Snapshot) -> Iterator[str]:
    for device in snapshot.devices:
        can = wording.can_allocate(device.headroom_certain_bytes, device.headroom_bytes)
        state = "" if device.state == "ok" else f", {device.state}"
        yield f"{device.name} ({wording.architecture(device.architecture.value)}{state}): {can}"
        if known := wording.vitals(device.vitals):
            yield f"  {known}"


def _contents(pool: Pool) -> Iterator[str]:
    parts = [f"{wording.content(part.kind)} {wording.size(part.size_bytes)}" for part in pool.contents]
    if parts:
        yield f"  contents: {', '.join(parts)}"


def _host(snapshot: Snapshot) -> Iterator[str]:
    swap = snapshot.swap
    if not isinstance(swap, Absent) and swap.size_bytes:
        used, size = wording.size(swap.used_bytes), wording.size(swap.size_bytes)
        yield f"Swap: {used} of {size} used (not counted as memory)"
    if not isinstance(snapshot.psi, Absent):
        yield f"Memory pressure (PSI): {wording.waited(snapshot.psi.some.ratio_10s, '10 s')}"
    for node in snapshot.nodes:
        if not isinstance(node.largest_free_block_bytes, Absent):
            yield f"Largest free block on node {node.id}: {wording.size(node.largest_free_block_bytes)}"


def _processes(snapshot: Snapshot) -> Iterator[str]:
    listed = by_footprint(snapshot.processes)[:TOP]
    footprints = [wording.footprint(process) for process in listed]
    width = max([11, *map(len, footprints)])
    yield f"{'largest processes':<22} {'pid':>8} {'footprint':>{width}} {'rss':>11}  owner"
    for process, footprint in zip(listed, footprints, strict=True):
        sizes = f"{footprint:>{width}} {wording.size(process.rss_bytes):>11}"
        yield f"{process.title[:22]:<22} {process.pid:>8} {sizes}  {_owner(process)}"
    for process in snapshot.processes:
        if process.note:
            yield f"PID {process.pid}: {process.note}"
    if not isinstance(snapshot.process_scan, Absent) and snapshot.process_scan.note:
        yield snapshot.process_scan.note


def _owner(process: Process) -> str:
    words = [process.user, process.container or process.unit]
    return ", ".join(str(word) for word in words if word and not isinstance(word, Absent)) or wording.DASH


def _missing(snapshot: Snapshot) -> Iterator[str]:
    failing = [status for status in snapshot.collectors if status.state in ("failing", "stalled")]
    if failing:
        yield ""
    for status in failing:
        yield f"collector {status.name} is {status.state}: {status.error}"
