"""Memory of model servers: their parts lie within the memory of their processes. Pure functions.

weights, draft model, KV cache ⊂ processes of the engine ⊂ CUDA Pool ⊂ System RAM. The rest of the processes is the
remainder: graphs, workspace, fragmentation, and the program itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from memwatch.core.accounting import memoize
from memwatch.core.engines.records import SIZE_TOLERANCE, Engine
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Bytes, Process, ShareKind, sum_figures

INCONSISTENT = Absent.INCONSISTENT
# Engines that map their weights from the file: pages that are not in memory are no contradiction.
MAPPING = frozenset({"llama.cpp", "lm-studio", "ollama"})
MAPPED_PARTS = frozenset({"weights_bytes", "draft_weights_bytes"})
MAPPED = "Its weights are mapped from the file, and not all of them are in memory."
CONTRADICTION = "Its weights and KV cache would be larger than the memory of its processes."


def with_engine_memory(found: Findings) -> Findings:
    """Add to each engine what its processes hold, and what of that its parts do not explain."""
    limits = frozenset(share.id for share in found.shares if share.kind is ShareKind.GPU_LIMIT)
    engines = relate_engines(found.engines, found.processes, limits)
    return found if engines is found.engines else replace(found, engines=engines)


@memoize
def relate_engines(
    engines: tuple[Engine, ...], processes: tuple[Process, ...], limits: frozenset[str]
) -> tuple[Engine, ...]:
    by_pid = {process.pid: process for process in processes}
    return tuple(relate_engine(one, [by_pid[pid] for pid in one.pids if pid in by_pid], limits) for one in engines)


def relate_engine(engine: Engine, members: Sequence[Process], limits: frozenset[str] = frozenset()) -> Engine:
    """Return an engine with the memory of its listed processes."""
    if not members or engine.weights_bytes is Absent.STALE:
        return engine
    held = sum_by_place(members, limits)
    footprint = sum_figures(member.footprint_low_bytes for member in members)
    most = sum_figures(member.footprint_high_bytes for member in members)
    whole = replace(engine, held_bytes=held, footprint_bytes=footprint)
    parts = known_parts(engine)
    if isinstance(most, int) and parts > most and not held and engine.kind in MAPPING:
        return replace(
            whole,
            **dict.fromkeys(engine.parts.keys() & MAPPED_PARTS, Absent.NOT_AVAILABLE),
            remainder_bytes=Absent.NOT_AVAILABLE,
            notes=(*engine.notes, MAPPED),
        )
    if isinstance(most, int) and parts > most * (1 + SIZE_TOLERANCE):
        return replace(
            whole,
            **dict.fromkeys(engine.parts, INCONSISTENT),
            kv_cache_used_bytes=INCONSISTENT,
            remainder_bytes=INCONSISTENT,
            notes=(*engine.notes, CONTRADICTION),
        )
    return replace(whole, remainder_bytes=find_remainder(engine, held, footprint))


def sum_by_place(members: Iterable[Process], limits: frozenset[str]) -> dict[str, Bytes]:
    """Return the device memory of processes by pool or share, without limits, which would count it twice."""
    held: dict[str, list[Bytes]] = {}
    for member in members:
        for place, figure in member.device_bytes.items():
            if place not in limits:
                held.setdefault(place, []).append(figure)
    return {place: sum_figures(figures) for place, figures in held.items()}


def known_parts(engine: Engine) -> int:
    return sum(part for part in engine.parts.values() if isinstance(part, int))


def find_remainder(engine: Engine, held: Mapping[str, Bytes], footprint: Bytes) -> Bytes:
    """Return device memory without the parts; that of System RAM as well if weights lie there too."""
    for part in engine.parts.values():
        if isinstance(part, Absent):
            return part
    parts, device = known_parts(engine), sum_figures(held.values())
    if isinstance(device, Absent):
        return device
    if device and parts <= device * (1 + SIZE_TOLERANCE):
        return max(0, device - parts)
    return footprint if isinstance(footprint, Absent) else max(0, footprint - parts)
