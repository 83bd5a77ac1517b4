"""Page of an incident, its report in Markdown and its picture, each at its address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.incidents.markdown import render
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.incidents.words import Fact, list_facts, write_summary, write_title
from memwatch.reporting.render.drawing import shorten, width_of
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.history_page import send_page
from memwatch_web.pages.incident_picture import Layout, Picture, draw
from memwatch_web.pages.picture import THEMES, Ink
from memwatch_web.pages.renderer import PageServices

# Drawing takes this long.
DRAW_SECONDS = 0.05
WIDTH, HEIGHT, FONT = 1200, 630, 13.75
# Sizes of the title, the summary and the facts, in that of the font.
TITLE, SUMMARY, FACT = 2.0, 1.2, 1.2
MAX_LINES = 2


class Card(Struct, frozen=True):
    """The picture of an incident with its words, cut to fit."""

    ink: Ink
    width: int
    height: int
    font: float
    title: str
    lines: tuple[str, ...]
    facts: tuple[Fact, ...]
    picture: Picture | None
    host: str
    moment: str


def find(services: PageServices, request: Request) -> Incident:
    """Return the incident of a request. Raises ProblemError."""
    found = services.monitor.features.get(IncidentObserver).log.find(request.path_params["incident_id"])
    if found is None:
        raise ProblemError(404, "no such incident: the page /incidents lists those that are kept.")
    return found


async def page(services: PageServices, request: Request) -> Response:
    """Return the page of an incident."""
    one, simulated = find(services, request), services.monitor.simulated
    heads = services.monitor.features.get(IncidentObserver).log.heads()

    def work() -> bytes:
        return services.pages.incident(one, simulated, heads)

    newest = heads[0].id if heads else ""
    key = ("incident", one.id, one.ended, one.quiet_until, len(one.timeline), one.told, newest)
    return await send_page(services, request, key, DRAW_SECONDS, work)


async def report(services: PageServices, request: Request) -> Response:
    """Return the report of an incident in Markdown, as the command line prints it, for browsers as plain text."""
    return Response(render(find(services, request)), media_type="text/plain")


async def picture(services: PageServices, request: Request) -> Response:
    """Return the picture of an incident, 1200 by 630 pixels."""
    one, ink, snapshot = find(services, request), parse_theme(request.query_params), services.current()

    def work() -> bytes:
        return services.pages.incident_picture(build_card(one, ink, snapshot))

    key = ("incident picture", one.id, one.ended, one.quiet_until, len(one.timeline), one.told, ink.page)
    return Response(await services.query(key, DRAW_SECONDS, work), media_type="image/svg+xml")


def parse_theme(query: QueryParams, themes: Mapping[str, Ink] = THEMES) -> Ink:
    """Return the colours of `theme`. Raises ProblemError."""
    wanted = query.get("theme") or next(iter(themes))
    if wanted not in themes:
        raise ProblemError(422, f"theme is {wanted[:80]!r}: use one of {', '.join(themes)}.")
    return themes[wanted]


def build_card(one: Incident, ink: Ink, snapshot: Snapshot) -> Card:
    """Return the picture of an incident. `snapshot`: of now, for the name of the machine."""
    room = WIDTH - 5 * FONT
    above = 11.2 * FONT
    machine = snapshot.machine.name
    host = snapshot.host if isinstance(machine, Absent) else f"{snapshot.host} · {machine}"
    began = datetime.fromtimestamp(one.began, timezone.utc)
    moment = " · ".join(
        [f"{began:%d %b %Y, %H:%M:%S UTC}", *(["simulated"] if snapshot.simulated else []), "memwatch"]
    )
    facts = list_facts(one)[:4]
    return Card(
        ink,
        WIDTH,
        HEIGHT,
        FONT,
        shorten(write_title(one), room, TITLE * FONT, strong=True),
        tuple(wrap(write_summary(one), room, SUMMARY * FONT)[:MAX_LINES]),
        tuple(
            Fact(fact.name, shorten(fact.value, room / len(facts) - FONT, FACT * FONT, strong=True))
            for fact in facts
        ),
        draw(one, Layout(room, HEIGHT - above - 3.4 * FONT, FONT, True)),
        shorten(host, room / 2, FONT),
        moment,
    )


def wrap(text: str, room: float, font: float) -> list[str]:
    """Return the text in lines that fit, each cut where one word is too long."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, font) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [shorten(line, room, font) for line in lines if line]
