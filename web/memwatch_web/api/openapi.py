"""OpenAPI description: FastAPI's, completed from the table of routes."""

from __future__ import annotations

from collections.abc import Iterable, Set

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from memwatch.core.model import Device
from memwatch.core.wire import REFERENCE, Description, Json
from memwatch.monitor.render.json import WIRE
from memwatch_web.api import (
    schema,
    schema_alerts,
    schema_base,
    schema_history,
    schema_incidents,
    schema_inquiries,
    schema_machines,
    schema_owners,
)
from memwatch_web.api.route import Route

# All models by name.
MODULES = (
    schema,
    schema_alerts,
    schema_history,
    schema_incidents,
    schema_inquiries,
    schema_machines,
    schema_owners,
)
MODELS: dict[str, type[schema_base.Answer]] = {
    name: found
    for module in MODULES
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, schema_base.Answer)
}
# Shapes of the records of the snapshot, by name.
SHAPES = {one.title: one for one in (*WIRE.shapes, WIRE.shape_of(Device))}
OR, LIST = " or ", "[]"
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
UNUSABLE = "Invalid parameter; `detail` names it."
NOTHING_READ = "No data yet, or memwatchd is overloaded or stopping."
NO_LOGIN = "Login required: credentials are missing or wrong."
NOT_FROM_THERE = "Changes are not accepted from this client."


def with_answers(described: Json, routes: Iterable[Route]) -> Json:
    """Complete FastAPI's description with response models and problems."""
    routes = tuple(routes)
    names = {name for route in routes for name in names_in(route.answer)}
    described.setdefault("components", {}).setdefault("schemas", {}).update(define({*names, "ProblemDetails"}))
    for route in routes:
        responses = described["paths"][route.path][route.method.lower()]["responses"]
        responses["200"]["content"] = dict(map(describe_content, route.answer.split(OR)))
        _describe_problems(route, responses)
    return described


def define(names: Set[str]) -> Json:
    """Return the schemas of answers, and of what is inside them, by name."""
    mode: JsonSchemaMode = "serialization"
    models = [(MODELS[name], mode) for name in sorted(names - SHAPES.keys())]
    _, found = models_json_schema(models, ref_template=REFERENCE + "{model}")
    records = Description(WIRE)
    for name in sorted(names & SHAPES.keys()):
        records.add(SHAPES[name])
    return {**found.get("$defs", {}), **records.definitions}


def names_in(answer: str) -> list[str]:
    """Return the models among the alternatives of a response. The others are media types."""
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
