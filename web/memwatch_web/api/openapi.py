"""The description of the API: what FastAPI finds in the routes, and the answers, which are only bytes to it."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from memwatch_web.api import schema as contract
from memwatch_web.api import schema_history as contract_past
from memwatch_web.api import schema_inquiries as contract_inquiries
from memwatch_web.api import schema_owners as contract_who

Json = dict[str, Any]

# Path, what it answers with, and whether that is a list.
ANSWERS: tuple[tuple[str, type[contract.Answer], bool], ...] = (
    ("/api/v1/snapshot", contract.Snapshot, False),
    ("/api/v1/pools", contract.Pool, True),
    ("/api/v1/shares", contract.Share, True),
    ("/api/v1/devices", contract.Device, True),
    ("/api/v1/processes", contract.Process, True),
    ("/api/v1/processes/{pid}/pss", contract_who.Pss, False),
    ("/api/v1/owners", contract_who.Owners, False),
    ("/api/v1/growth", contract_who.Growth, False),
    ("/api/v1/pressure", contract.Pressure, True),
    ("/api/v1/collectors", contract.Collector, True),
    ("/api/v1/alerts", contract.Alert, True),
    ("/api/v1/alerts/test", contract.Tested, False),
    ("/api/v1/receivers", contract.Receiver, True),
    ("/api/v1/silences", contract.Silence, True),
    ("/api/v1/silences/{silence_id}", contract.Silence, True),
    ("/api/v1/events", contract.Event, True),
    ("/api/v1/backends", contract_inquiries.Backends, False),
    ("/api/v1/doctor", contract_inquiries.Examination, False),
    ("/api/v1/fit", contract_inquiries.Fit, False),
    ("/api/v1/history", contract_past.History, False),
    ("/api/v1/ticks", contract_past.Tick, True),
    ("/api/v1/last-words", contract_past.LastWords, False),
    ("/api/v1/release", contract.Release, False),
    ("/api/v1/marks", contract.MarkTaken, False),
    ("/api/v1/reports", contract.ReportTaken, False),
    ("/healthz", contract.Health, False),
    ("/readyz", contract.Health, False),
)
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
METRICS_TEXT = "Prometheus text format, or OpenMetrics where the Accept header asks for it."
STREAM_TEXT = (
    "Server-sent events: `snapshot` on each tick, `pressure` when a level changes, `event` when one happens."
)


NOTHING_READ = "Nothing has been read yet, or nothing more."
NO_LOGIN = "A login is set, and what was shown is none."
NOT_FROM_THERE = "Changes are not accepted from there."
OPEN_PATHS = ("/healthz", "/readyz")
# What only some operations say, each by status and description.
REFUSALS: dict[tuple[str, str], tuple[str, str]] = {
    ("get", "/api/v1/backends"): ("404", "The machine is simulated."),
    ("get", "/api/v1/doctor"): ("404", "The machine is simulated."),
    ("get", "/api/v1/last-words"): ("404", "There are none."),
    ("delete", "/api/v1/silences/{silence_id}"): ("404", "There is no such silence."),
    ("post", "/api/v1/silences"): ("409", "There are as many as there may be."),
    ("post", "/api/v1/alerts/test"): ("409", "Nobody is told of alerts."),
}


def with_answers(schema: Json) -> Json:
    """FastAPI's description completed: the models of what is answered, the problems, the metrics and the stream."""
    mode: JsonSchemaMode = "serialization"
    models: list[tuple[type[contract.Answer], JsonSchemaMode]] = [(model, mode) for _, model, _ in ANSWERS]
    models.append((contract.ProblemDetails, mode))
    _, definitions = models_json_schema(models, ref_template="#/components/schemas/{model}")
    schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    for path, model, many in ANSWERS:
        reference = {"$ref": f"#/components/schemas/{model.__name__}"}
        body = {"type": "array", "items": reference} if many else reference
        for answer in _answers_of(schema, path):
            answer["content"] = {"application/json": {"schema": body}}
    csv = _text("", "text/csv")["content"]
    _answers_of(schema, "/api/v1/history")[0]["content"].update(csv)
    _answers_of(schema, "/api/v1/stream")[0].update(_text(STREAM_TEXT, "text/event-stream"))
    operation = {"tags": ["memory"], "summary": "Metrics", "operationId": "metrics"}
    schema["paths"]["/metrics"] = {"get": {**operation, "responses": {"200": _text(METRICS_TEXT, "text/plain")}}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _describe_problems(path, method, operation["responses"])
    return schema


def _answers_of(schema: Json, path: str) -> list[Json]:
    """The successful answers of a path's methods."""
    return [operation["responses"]["200"] for operation in schema["paths"][path].values()]


def _text(description: str, media_type: str) -> Json:
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def _describe_problems(path: str, method: str, responses: Json) -> None:
    if "422" in responses:
        responses["422"] = {
            "description": "A parameter cannot be used; the sentence says which.",
            "content": PROBLEM,
        }
    others = {"503": NOTHING_READ}
    if path not in OPEN_PATHS:
        others["401"] = NO_LOGIN
    if method != "get":
        others["403"] = NOT_FROM_THERE
    if (method, path) in REFUSALS:
        others.update([REFUSALS[method, path]])
    for status, description in others.items():
        responses.setdefault(status, {"description": description, "content": PROBLEM})
