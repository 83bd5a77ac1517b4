"""OpenAPI description: FastAPI's, completed from the table of routes. `make reference` writes openapi.json."""

from __future__ import annotations

from collections.abc import Iterable, Set

from memwatch.core.wire import REFERENCE, Description, Json, Shape, Wire
from memwatch.reporting.answers import History, Release
from memwatch.reporting.incidents.words import INCIDENTS
from memwatch.reporting.render.fit_json import FIT
from memwatch.reporting.render.json import WIRE
from memwatch.reporting.render.room import ROOM
from memwatch_monitor.notify.status import ALERTS
from memwatch_monitor.render.owners_json import OWNERS
from memwatch_web.api.alerts import AlertTest
from memwatch_web.api.guardian import GuardianReceipt
from memwatch_web.api.machines import MACHINES
from memwatch_web.api.programs import MarkReceipt, ReportReceipt
from memwatch_web.asgi.latest_snapshot import Health
from memwatch_web.asgi.problems import ProblemDetails
from memwatch_web.asgi.routes import Route

OTHERS = Wire(
    map(Shape, (AlertTest, GuardianReceipt, History, MarkReceipt, ReportReceipt, Release, Health, ProblemDetails))
)
# Shapes of answers by name, with the encoder of each. A shape of a former one is complete.
WIRES = (WIRE, OWNERS, ALERTS, INCIDENTS, MACHINES, FIT, ROOM, OTHERS)
SHAPES = {one.title: (one, wire) for wire in reversed(WIRES) for one in tuple(wire.shapes)}
OR, LIST = " or ", "[]"
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
UNUSABLE = "Invalid parameter; `detail` names it."
NOTHING_READ = "No data yet, or memwatchd is overloaded or stopping."
NO_LOGIN = "Login required: credentials are missing or wrong."
NOT_FROM_THERE = "Changes are not accepted from this client."


def with_answers(described: Json, routes: Iterable[Route]) -> Json:
    """Complete FastAPI's description with the schemas of answers and problems."""
    routes = tuple(routes)
    names = {name for route in routes for name in names_in(route.answer)}
    described.setdefault("components", {}).setdefault("schemas", {}).update(define({*names, "ProblemDetails"}))
    for route in routes:
        operation = described["paths"][route.path][route.method.lower()]
        operation["summary"] = summarize(operation["description"])
        responses = operation["responses"]
        responses["200"]["content"] = dict(map(describe_content, route.answer.split(OR)))
        _describe_problems(route, responses)
    return described


def summarize(description: str) -> str:
    """Return the first sentence of a description, without marks of Markdown, which /docs does not render here."""
    first, stop, _ = " ".join(description.replace("`", "").split()).partition(". ")
    return f"{first}." if stop else first


def define(names: Set[str]) -> Json:
    """Return the schemas of answers, and of what is inside them, by name."""
    definitions: Json = {}
    for wire in reversed(WIRES):
        description = Description(wire)
        for shape in [SHAPES[name][0] for name in sorted(names) if SHAPES[name][1] is wire]:
            description.add(shape)
        definitions |= description.definitions
    return definitions


def names_in(answer: str) -> list[str]:
    """Return the shapes among the alternatives of a response. The others are media types."""
    return [one.removesuffix(LIST) for one in answer.split(OR) if "/" not in one]


def describe_content(answer: str) -> tuple[str, Json]:
    """Return the media type and the schema of one alternative."""
    if "/" in answer:
        return answer, {"schema": {"type": "string"}}
    model = {"$ref": REFERENCE + answer.removesuffix(LIST)}
    return "application/json", {"schema": {"type": "array", "items": model} if answer.endswith(LIST) else model}


def _describe_problems(route: Route, responses: Json) -> None:
    problems = {422: UNUSABLE} if "422" in responses else {}
    problems |= {503: NOTHING_READ, **route.refusals}
    if route.who != "anyone":
        problems[401] = NO_LOGIN
    if route.who in ("program", "operator"):
        problems[403] = NOT_FROM_THERE
    for status, description in problems.items():
        responses[str(status)] = {"description": description, "content": PROBLEM}
    if route.who == "anyone":  # a failing health check returns the same model
        responses["503"]["content"] = responses["200"]["content"]
