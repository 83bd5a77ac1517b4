"""REST: the latest snapshot, its parts, the recent past and the stream of what comes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from memwatch.monitor.loop import Monitor
from memwatch.render import json as as_json
from memwatch.render.json import JSON_TYPE, answer_bytes, to_bytes
from memwatch.snapshot import Snapshot
from memwatch_web.api import history as past
from memwatch_web.api.inquiries import Inquiries
from memwatch_web.asgi.health import current
from memwatch_web.asgi.problems import Problem
from memwatch_web.asgi.render_cache import OncePerTick
from memwatch_web.asgi.single_flight import A, NotDone, Shared, T
from memwatch_web.asgi.sse import Broker, EventStream, sse

STREAM_EVENTS = ("snapshot", "pressure", "event")

# Path, and how its answer is read off a snapshot. What the answers look like is in `contract`.
PARTS: tuple[tuple[str, Callable[[Snapshot], Any]], ...] = (
    ("snapshot", as_json.snapshot_json),
    ("pools", as_json.pools_json),
    ("shares", as_json.shares_json),
    ("devices", as_json.devices_json),
    ("processes", as_json.processes_json),
    ("pressure", as_json.pressure_json),
    ("collectors", as_json.collectors_json),
)


def json_response(value: Any, monitor: Monitor) -> Response:  # noqa: ANN401  JSON is anything
    return Response(answer_bytes(value, monitor.simulated), media_type=JSON_TYPE)


def create_router(monitor: Monitor, broker: Broker, inquiries: Inquiries) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["memory"])
    for name, render in PARTS:
        _add_part(router, monitor, name, render)
    _add_lists(router, monitor)
    _add_inquiries(router, monitor, inquiries)
    past.add_routes(router, monitor)
    _add_release(router, monitor)
    _add_stream(router, monitor, broker)
    return router


def _add_part(router: APIRouter, monitor: Monitor, name: str, render: Callable[[Snapshot], Any]) -> None:
    face = OncePerTick(lambda snapshot: answer_bytes(render(snapshot), snapshot.simulated))

    async def part() -> Response:
        return Response(face.plain(current(monitor)), media_type=JSON_TYPE)

    router.add_api_route(f"/{name}", part, name=name, summary=name.title())


def _add_lists(router: APIRouter, monitor: Monitor) -> None:
    @router.get("/events")
    async def events(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """What happened, newest first."""
        return json_response(as_json.events_json(monitor.events.latest(limit)), monitor)


def _add_inquiries(router: APIRouter, monitor: Monitor, inquiries: Inquiries) -> None:
    @router.get("/backends")
    async def backends() -> Response:
        """What can be computed with here (CPU, CUDA, ROCm, Metal, OpenCL, Vulkan), or why not; looks at most once a
        minute."""
        refuse_simulated(monitor)
        found = await _answer_of(inquiries.backends, current(monitor))
        return json_response(as_json.backends_json(found), monitor)

    @router.get("/doctor")
    async def doctor() -> Response:
        """What is seen of this machine, what is not, why, and what would change that."""
        refuse_simulated(monitor)
        found = await _answer_of(inquiries.doctor, current(monitor))
        return json_response(as_json.examination_json(found), monitor)


def refuse_simulated(monitor: Monitor) -> None:
    if monitor.simulated:
        raise Problem(404, "this machine is simulated: it has no libraries and device files to look at.")


async def _answer_of(inquiry: Shared[A, T], about: A) -> T:
    try:
        return await inquiry.ask(about)
    except NotDone as error:
        raise Problem(503, f"{error}.", headers={"Retry-After": "60"}) from None


def _add_release(router: APIRouter, monitor: Monitor) -> None:
    @router.post("/release")
    async def release(seconds: Annotated[float, Query(ge=1, le=3600, allow_inf_nan=False)] = 60.0) -> Response:
        """Let go of every GPU driver for so long, so that a GPU can be reset or cut into MIG instances."""
        return json_response({"released": monitor.release(seconds), "seconds": seconds}, monitor)


class JsonStream:
    """What one listener of /api/v1/stream gets on each tick: the shared snapshot, and what it has not seen yet."""

    # Numbers of events that no disk kept are given again: a Last-Event-ID of another start resumes nothing.
    run = secrets.token_hex(4)

    def __init__(self, monitor: Monitor, face: OncePerTick, wanted: frozenset[str], last_id: str | None) -> None:
        self._monitor = monitor
        self._face = face
        self._wanted = wanted
        self._seen = self._resumed_from(last_id)
        self._levels: dict[str, str] = {}

    def chunk(self, snapshot: Snapshot) -> bytes:
        parts = [
            sse("event", answer_bytes(as_json.event_json(event), self._monitor.simulated))
            for event in self._events()
        ]
        parts.append(self._pressure(snapshot))
        head = f"id: {self.run}-{self._seen}\n".encode()
        return b"".join(parts) + head + self._face.plain(snapshot)

    def _events(self) -> list[Any]:
        events = self._monitor.events.since(self._seen)
        self._seen = events[-1].seq if events else self._seen
        return events if "event" in self._wanted else []

    def _pressure(self, snapshot: Snapshot) -> bytes:
        levels = {pressure.target: pressure.level.word for pressure in snapshot.pressure}
        if levels == self._levels or "pressure" not in self._wanted:
            return b""
        self._levels = levels
        return sse("pressure", answer_bytes(as_json.pressure_json(snapshot), snapshot.simulated))

    def _resumed_from(self, last_id: str | None) -> int:
        run, _, seq = (last_id or "").partition("-")
        return int(seq) if run == self.run and seq.isdecimal() and len(seq) < 16 else self._monitor.events.last_seq


def _add_stream(router: APIRouter, monitor: Monitor, broker: Broker) -> None:
    snapshot_event = OncePerTick(lambda snapshot: sse("snapshot", to_bytes(as_json.snapshot_json(snapshot))))
    no_snapshot = OncePerTick(lambda snapshot: sse("tick", answer_bytes(tick_json(snapshot), snapshot.simulated)))

    @router.get("/stream")
    async def stream(
        events: Annotated[str, Query(description="Which of snapshot, pressure, event.")] = ",".join(STREAM_EVENTS),
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Server-sent events, one tick at a time; missed events are sent again after a Last-Event-ID."""
        wanted = frozenset(events.split(","))
        for event in wanted - set(STREAM_EVENTS):
            raise Problem(422, f"events is {event[:80]!r}: use some of {', '.join(STREAM_EVENTS)}.")
        refuse_when_full(broker)
        face = snapshot_event if "snapshot" in wanted else no_snapshot
        return EventStream(broker, JsonStream(monitor, face, wanted, last_event_id).chunk)


def tick_json(snapshot: Snapshot) -> as_json.Json:
    """What a listener who wants no snapshots is told of one."""
    return {"seq": snapshot.seq, "unix": snapshot.unix}


def refuse_when_full(broker: Broker) -> None:
    if broker.full:
        raise Problem(
            503,
            f"all {broker.most} streams are taken; try later or raise max_streams.",
            headers={"Retry-After": "30"},
        )
