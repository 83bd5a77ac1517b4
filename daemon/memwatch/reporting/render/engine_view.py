"""Model servers for display: one line, the parts of their memory, and these parts inside a memory map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from memwatch.core.engines.records import SIZE_TOLERANCE, Engine
from memwatch.core.model import Absent
from memwatch.reporting.render import words

WEIGHTS, DRAFT, CACHE_USED, CACHE_FREE = "weights", "draft", "kv_used", "kv_reserved"
CACHE, REST = "kv_cache", "remainder"
LABELS = {
    WEIGHTS: "weights",
    DRAFT: "draft model",
    CACHE_USED: "KV cache used",
    CACHE_FREE: "KV cache reserved",
    CACHE: "KV cache",
    REST: "rest of the engine",
}


class EnginePart(Struct, frozen=True):
    """A part of an engine's memory."""

    kind: str
    size_bytes: int

    @property
    def label(self) -> str:
        return LABELS[self.kind]


class DrawnPart(Struct, frozen=True):
    """A part inside the segment of its process. `start` and `width` are fractions of the map."""

    part: EnginePart
    engine: Engine
    start: float
    width: float


class Drawn(Struct, frozen=True):
    """The segment of a process in a map: its process, size and place."""

    pid: int
    size_bytes: int
    start: float
    width: float


def describe_engine(engine: Engine) -> str:
    """Return one line: "vLLM Qwen3-32B · 41 tokens/s · KV 12%"."""
    return " · ".join(_words(engine))


def _words(engine: Engine) -> Iterator[str]:
    model = "" if isinstance(engine.model, Absent) else engine.model.rpartition("/")[2]
    yield f"{engine.title} {model}".strip()
    if engine.sleeping is True:
        yield "asleep"
        return
    if not isinstance(engine.tokens_per_second, Absent):
        yield f"{engine.tokens_per_second:.0f} tokens/s"
    if not isinstance(engine.kv_cache_ratio, Absent):
        yield f"KV {describe_use(engine.kv_cache_ratio, engine.kv_cache_mean_ratio)}"
    if not isinstance(engine.requests_waiting, Absent) and engine.requests_waiting:
        yield f"{engine.requests_waiting} waiting"


def describe_load(engine: Engine) -> list[str]:
    """Return name and version, then requests, tokens and KV cache, a line each, as far as they are known."""
    version = "" if isinstance(engine.version, Absent) else f" {engine.version}"
    lines = [f"{engine.title}{version}"]
    requests = (engine.requests_running, engine.requests_waiting)
    if not any(isinstance(one, Absent) for one in requests):
        lines.append(f"{requests[0]} running, {requests[1]} waiting")
    if engine.sleeping is True:
        lines.append("asleep")
    if not isinstance(engine.tokens_per_second, Absent):
        lines.append(f"{engine.tokens_per_second:.0f} tokens/s")
    if not isinstance(engine.kv_cache_ratio, Absent):
        cache = engine.kv_cache_bytes
        of = "" if isinstance(cache, Absent) else f" of {words.size(cache)}"
        lines.append(f"KV: {describe_use(engine.kv_cache_ratio, engine.kv_cache_mean_ratio)}{of}")
    return lines


def describe_use(worst: float, mean: float | Absent | None, form: Callable[[float], str] = "{:.0%}".format) -> str:
    """Return the used fraction of the fullest cache, and the mean of all where that is another figure."""
    shown = form(worst)
    if mean is None or isinstance(mean, Absent) or form(mean) == shown:
        return shown
    return f"{shown}, mean {form(mean)}"


def list_parts(engine: Engine) -> tuple[EnginePart, ...]:
    """Return the known parts of an engine's memory, without empty ones."""
    return tuple(part for part in _parts(engine) if part.size_bytes)


def _parts(engine: Engine) -> Iterator[EnginePart]:
    cache, used = engine.kv_cache_bytes, engine.kv_cache_used_bytes
    if isinstance(engine.weights_bytes, int):
        yield EnginePart(WEIGHTS, engine.weights_bytes)
    if isinstance(engine.draft_weights_bytes, int):
        yield EnginePart(DRAFT, engine.draft_weights_bytes)
    if isinstance(cache, int) and isinstance(used, int):
        yield EnginePart(CACHE_USED, used)
        yield EnginePart(CACHE_FREE, max(0, cache - used))
    elif isinstance(cache, int):
        yield EnginePart(CACHE, cache)
    if isinstance(engine.remainder_bytes, int):
        yield EnginePart(REST, engine.remainder_bytes)


def draw_parts(segments: Iterable[Drawn], engines: Sequence[Engine]) -> tuple[DrawnPart, ...]:
    """Place the parts of engines inside the segments of their processes.

    Only where one process holds all of an engine's device memory: of several GPUs the parts are known as sums.
    """
    by_pid = {pid: engine for engine in engines for pid in engine.pids}
    return tuple(
        drawn
        for segment in segments
        if (engine := by_pid.get(segment.pid)) is not None and _holds_all(segment, engine)
        for drawn in _place(segment, engine)
    )


def _holds_all(segment: Drawn, engine: Engine) -> bool:
    figures = engine.held_bytes.values()
    held = sum(figure for figure in figures if isinstance(figure, int))
    return abs(held - segment.size_bytes) <= SIZE_TOLERANCE * held and not any(
        isinstance(one, Absent) for one in figures
    )


def _place(segment: Drawn, engine: Engine) -> Iterator[DrawnPart]:
    """Yield the parts from the left. Device memory beyond them stays the process's."""
    parts = [part for part in list_parts(engine) if part.kind != REST]
    if not parts or sum(part.size_bytes for part in parts) > segment.size_bytes * (1 + SIZE_TOLERANCE):
        return
    start, end = segment.start, segment.start + segment.width
    for part in parts:
        width = min(segment.width * part.size_bytes / segment.size_bytes, end - start)
        yield DrawnPart(part, engine, start, width)
        start += width


def engines_in(engines: Iterable[Engine], places: Collection[str]) -> tuple[Engine, ...]:
    """Return the engines that hold device memory in one of these pools or shares."""
    return tuple(engine for engine in engines if not engine.held_bytes.keys().isdisjoint(places))


def engine_of(engines: Iterable[Engine], pid: int) -> Engine | None:
    """Return the engine that a process belongs to."""
    return next((engine for engine in engines if pid in engine.pids), None)
