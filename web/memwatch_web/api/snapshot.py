"""REST endpoints of the latest snapshot: its parts, backends and diagnosis, a fit, the steps
that make room, events and the stream."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.snapshot import LevelWord, Snapshot
from memwatch.core.wire import to_bytes
from memwatch.planning.answer import answer_request
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.need import parse_need
from memwatch.planning.request import parse_request
from memwatch.reporting.answers import Release
from memwatch.reporting.render import json as as_json
from memwatch.reporting.render.fit_json import fit_json
from memwatch.reporting.render.json import JSON_TYPE, answer_bytes
from memwatch.reporting.render.room import default_targets, find_room_for, find_spot, room_json
from memwatch.reporting.render.room_candidates import NO_ASKER, Asker
from memwatch_monitor.loop import Monitor
from memwatch_monitor.neighbours.tick import encode_tick
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.fit_query import FitQuery
from memwatch_web.asgi.caller import PEER, caller_of
from memwatch_web.asgi.latest_snapshot import RenderCache
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.asgi.routes import Handler
from memwatch_web.asgi.sse import Identity, sse
from memwatch_web.asgi.threads import A, NotCompletedError, SingleFlight, T

STREAM_EVENTS = ("snapshot", "pressure", "event")
COMPACT = (
    "`compact` sends a `tick` of at most 3 KiB instead, with which other machines follow this one: pools, levels "
    "with reasons, headroom, the largest processes, the last events."
)


def part(render: Callable[[Snapshot], Any]) -> Handler:
    """Build the handler that returns a part of the latest snapshot."""

    async def show(services: ApiServices) -> Response:
        return services.respond_with(render)

    show.__name__, show.__doc__ = render.__name__.removesuffix("_json"), render.__doc__
    return show


async def backends(services: ApiServices) -> Response:
    """Return the available compute backends (CPU, CUDA, ROCm, Metal, OpenCL, Vulkan), and why others are not
    available. Probed at most once a minute."""
    refuse_simulated(services.monitor)
    return services.json(await _await_answer(services.inquiries().backends, services.current()))


async def doctor(services: ApiServices) -> Response:
    """Diagnose missing data: what is not visible, why, and how to change that."""
    refuse_simulated(services.monitor)
    return services.json(await _await_answer(services.inquiries().doctor, services.current()))


def refuse_simulated(monitor: Monitor) -> None:
    if monitor.simulated:
        raise ProblemError(
            404, "not available for demo data: a simulated machine has no libraries and device files."
        )


async def _await_answer(inquiry: SingleFlight[A, T], about: A) -> T:
    try:
        return await inquiry.ask(about)
    except NotCompletedError as error:
        raise ProblemError(503, f"{error}.", headers={"Retry-After": "60"}) from None


async def fit(services: ApiServices, request: Request, question: Annotated[FitQuery, Query()]) -> Response:
    """Check if a size or a model fits now: on which device, with how many bytes to spare, and why."""
    # FastAPI 0.133 also sets parameters that have a default.
    sent = question.model_dump(include=question.model_fields_set.intersection(request.query_params))
    try:
        found = answer_request(parse_request(sent), services.current())
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    return services.json(fit_json(found))


async def release(
    services: ApiServices,
    request: Request,
    seconds: Annotated[float, Query(ge=1, le=3600, allow_inf_nan=False)] = 60.0,
) -> Response:
    """Release all GPU drivers for `seconds`, so that a GPU can be reset or partitioned into MIG instances."""
    released = services.monitor.release(seconds, caller_of(request.scope).words)
    return services.json(Release(tuple(released), seconds))


async def events(services: ApiServices, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    """Return events, newest first."""
    return services.json(services.monitor.events.latest(limit))


class JsonStream:
    """Stream of one client of /api/v1/stream: on each tick the shared snapshot, and the events not sent yet."""

    # Without a disk, event numbers restart with memwatchd: a Last-Event-ID of another run does not resume.
    run = secrets.token_hex(4)

    def __init__(self, monitor: Monitor, cache: RenderCache, wanted: frozenset[str], last_id: str | None) -> None:
        self._monitor = monitor
        self._cache = cache
        self._wanted = wanted
        self._seen = self._resumed_from(last_id)
        self._levels: dict[str, LevelWord] = {}

    def chunk(self, snapshot: Snapshot) -> bytes:
        parts = [sse("event", answer_bytes(event, self._monitor.simulated)) for event in self._events()]
        parts.append(self._pressure(snapshot))
        head = f"id: {self.run}-{self._seen}\n".encode()
        return b"".join(parts) + head + self._cache.plain(snapshot)

    def _events(self) -> list[Any]:
        events = self._monitor.events.since(self._seen)
        self._seen = events[-1].seq if events else self._seen
        return events if "event" in self._wanted else []

    def _pressure(self, snapshot: Snapshot) -> bytes:
        levels = {pressure.target: pressure.level.word for pressure in snapshot.pressure}
        if levels == self._levels or "pressure" not in self._wanted:
            return b""
        self._levels = levels
        return sse("pressure", answer_bytes(snapshot.pressure, snapshot.simulated))

    def _resumed_from(self, last_id: str | None) -> int:
        run, _, seq = (last_id or "").partition("-")
        return int(seq) if run == self.run and seq.isdecimal() and len(seq) < 16 else self._monitor.events.last_seq


async def stream(
    services: ApiServices,
    events: Annotated[str, Query(description="Event types: snapshot, pressure, event.")] = ",".join(STREAM_EVENTS),
    form: Annotated[Literal["full", "compact"], Query(description=COMPACT)] = "full",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream server-sent events: `snapshot` on each tick, `pressure` on a change of level, `event` for each new
    event. With Last-Event-ID, missed events are sent again."""
    if form == "compact":
        return await compact_stream(services)
    wanted = frozenset(events.split(","))
    for event in wanted - set(STREAM_EVENTS):
        raise ProblemError(422, f"events is {event[:80]!r}: use some of {', '.join(STREAM_EVENTS)}.")
    cache = services.caches.get("snapshot" if "snapshot" in wanted else "tick", stream_event)
    return services.stream(Identity(JsonStream(services.monitor, cache, wanted, last_event_id).chunk))


def stream_event(name: str, snapshot: Snapshot) -> bytes:
    """Render the event of a tick, shared by all clients: the snapshot, or only its number and time."""
    if name == "snapshot":
        return sse(name, to_bytes(as_json.snapshot_json(snapshot)))
    return sse(name, answer_bytes({"seq": snapshot.seq, "unix": snapshot.unix}, snapshot.simulated))


async def compact_stream(services: ApiServices) -> Response:
    """Stream compact ticks, with which other machines follow this one."""
    ticks = services.caches.get("compact", lambda _, now: sse("tick", encode_tick(services.own_tick(now))))
    return services.stream(Identity(ticks.plain))


# Of one target, by listed process, on one core of 2026: 0.3 to 0.8 ms.
SECONDS_PER_PROCESS = 0.0005


async def room(
    services: ApiServices,
    request: Request,
    size: Annotated[
        str, Query(alias="bytes", max_length=80, description="Size, such as 40GiB.", examples=["40GiB"])
    ],
    target: Annotated[
        str,
        Query(max_length=80, description="Device, MIG instance, pool or `cpu`; by default every device."),
    ] = "",
    lease: Annotated[str, Query(max_length=80, description="Lease of the caller, which does not count.")] = "",
) -> Response:
    """Return what would have to go so that a size fits: models, servers and programs in order, each with what it
    frees, its command and its cost. memwatchd stops none. Over the socket file, the caller is not among them."""
    snapshot = services.current()
    try:
        need = parse_need(size, "bytes")
        targets = [find_spot(snapshot, target)] if target else default_targets(snapshot)
    except InvalidInputError as error:
        raise ProblemError(422, f"{error}.") from None
    peer = request.scope.get(PEER)
    asker = find_asker(None if peer is None or snapshot.simulated else peer.pid, snapshot)

    def work() -> bytes:
        return services.json_bytes(room_json(find_room_for(need, snapshot, target, lease, asker)))

    seconds = SECONDS_PER_PROCESS * len(targets) * len(snapshot.processes)
    key = ("room", snapshot.seq, need, target, lease, asker)
    return Response(await services.query(key, seconds, work), media_type=JSON_TYPE)


def find_asker(pid: int | None, snapshot: Snapshot) -> Asker:
    """Return the process that asks, with its unit and container if the snapshot has them."""
    if pid is None:
        return NO_ASKER
    listed = next((one for one in snapshot.processes if one.pid == pid), None)
    found = listed or (snapshot.unlisted.by_pid(pid) if snapshot.unlisted else None)
    return Asker(frozenset({pid}), found.unit, found.container) if found else Asker(frozenset({pid}))
