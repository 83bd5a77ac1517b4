"""One snapshot as text for a terminal: what is where, how full, and what cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.model import Absent, Pool, Process
from memwatch.snapshot import Snapshot
from memwatch_web import wording

TOP = 5


def text_of(snapshot: Snapshot) -> str:
    """Some twenty lines, widest column first, for people; machines take JSON."""
    return "\n".join(lines_of(snapshot)) + "\n"


def lines_of(snapshot: Snapshot) -> Iterator[str]:
    machine = snapshot.machine
    name = snapshot.host if isinstance(machine.name, Absent) else f"{snapshot.host}, {machine.name}"
    yield name
    if machine.explanation:
        yield machine.explanation
    yield ""
    yield from _places(snapshot)
    yield from _host(snapshot)
    if snapshot.processes:
        yield ""
        yield from _processes(snapshot)
    yield from _missing(snapshot)


def _places(snapshot: Snapshot) -> Iterator[str]:
    levels = {pressure.target: pressure for pressure in snapshot.pressure}
    for pool in snapshot.pools:
        pressure = levels.get(pool.id)
        state = wording.verdict(pool.label, pressure) if pressure else f"{pool.label} has no figure to judge"
        yield f"{pool.label}: {wording.size(pool.size_bytes)}"
        yield f"  used {wording.size(pool.used_bytes)}, available {wording.size(pool.available_bytes)}. {state}."
        yield from _contents(pool)
    for share in snapshot.shares:
        limit = "" if isinstance(share.limit_bytes, Absent) else f" of at most {wording.size(share.limit_bytes)}"
        yield f"{snapshot.relation(share)}: {wording.size(share.used_bytes)}{limit}"


def _contents(pool: Pool) -> Iterator[str]:
    parts = [f"{wording.content(part.kind)} {wording.size(part.size_bytes)}" for part in pool.contents]
    if parts:
        yield f"  in it: {', '.join(parts)}"


def _host(snapshot: Snapshot) -> Iterator[str]:
    swap = snapshot.swap
    if not isinstance(swap, Absent) and swap.size_bytes:
        yield f"Swap: {wording.size(swap.used_bytes)} of {wording.size(swap.size_bytes)} used (never capacity)"
    if not isinstance(snapshot.stalls, Absent):
        waited = wording.waited(snapshot.stalls.some.ratio_10s, "10 s")
        yield f"Waiting: {waited}"
    for node in snapshot.nodes:
        if not isinstance(node.largest_free_block_bytes, Absent):
            yield f"Largest free block on node {node.id}: {wording.size(node.largest_free_block_bytes)}"


def _processes(snapshot: Snapshot) -> Iterator[str]:
    yield f"{'largest processes':<24} {'pid':>8}  {'resident':>12}  of"
    for process in snapshot.processes[:TOP]:
        yield f"{process.name[:24]:<24} {process.pid:>8}  {wording.size(process.rss_bytes):>12}  {_owner(process)}"


def _owner(process: Process) -> str:
    words = [process.user, process.container or process.unit]
    return ", ".join(str(word) for word in words if word and not isinstance(word, Absent)) or wording.DASH


def _missing(snapshot: Snapshot) -> Iterator[str]:
    failing = [status for status in snapshot.collectors if status.state in ("failing", "stalled")]
    if failing:
        yield ""
    for status in failing:
        yield f"collector {status.name} is {status.state}: {status.error}"
