"""docs/reference/http-api.md: every path, from the OpenAPI description that a daemon serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memwatch_web.api.openapi import with_answers
from memwatch_web.api_app import api_routes, create_api
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages.template_environment import LINKS, PATHS
from memwatchd.daemon import Daemon
from memwatchd.settings.schema import Settings
from memwatchd.web_app import create_services
from scripts.reference.markdown import code, codes, first_paragraph, page, prose, table

Json = Mapping[str, Any]

INTRO = """
This page lists every path that the daemon answers. The daemon listens at `http://127.0.0.1:6360` unless
`listen` under [`[web]`](configuration.md#web) says otherwise. It serves a description of this API for programs
at `/openapi.json`, and one to try out at `/docs`.

## First calls

Start a simulated DGX Spark, so that no GPU is needed. For a daemon that already runs, use its address instead.

<!-- runs: in background -->
```sh
memwatchd --demo dgx-spark --listen 127.0.0.1:8099
```

Each of these calls answers with a list. The first has the pools, the second the level of each pool and limit,
and the third the GPUs:

```sh
curl -sf http://127.0.0.1:8099/api/v1/pools
curl -sf http://127.0.0.1:8099/api/v1/pressure
curl -sf http://127.0.0.1:8099/api/v1/devices
```

The answer to the first, shortened, as the demo gave it:

```json
[{"simulated": true, "id": "ram", "kind": "system_ram", "label": "System RAM", "size_bytes": 130663165952,
  "used_bytes": 86264424448, "available_bytes": 44398741504, "quality": "measured", "reserved_bytes": null,
  "absent": {"reserved_bytes": "not_supported"}}]
```

So 44.4 GB of 130.7 GB can still be used. `reserved_bytes` is unknown here, and `absent` has the reason. If
the daemon has a token, add `-H "Authorization: Bearer $(cat token)"` to each call; without it the answer is 401.

## Conventions

Sizes are bytes. `null` means that a figure is absent, and `absent` of the same object has the reason:
`not_supported`, `not_permitted`, `not_available`, `not_read`, `suspended`, `stale` or `inconsistent`. Every object
has `simulated`, which is true with `--demo` and `--replay`. The tables below leave out both fields. Times
ending in `_unix` are Unix seconds.

Errors are `application/problem+json` (RFC 9457) with a sentence that names the fix. Any path can answer 401 (a
login is required), 503 (no reading yet, or too many clients or queries), and 422 (a parameter is wrong or unknown).
Methods other than GET can answer 403: without a login they are accepted from root and the daemon's user on this
machine, and marks, reports and leases also from the user of their process. [Security
model](../explanation/security.md#access) has the rules. `/healthz` and `/readyz` need no login.
"""

PAGES = {
    "overview": "pools, shares, devices and their pressure, live by server-sent events",
    "history": "charts of the past; the address names range, begin and end",
    "processes": "processes and their memory; `by`, `sort` and `q` group, sort and filter the list",
    "devices": "GPUs and NPUs: what they allocate from, headroom, errors",
    "machines": "this machine and its neighbours, those that need an operator first",
    "fit": "whether a model fits: a size, numbers, or a `config.json`",
    "alerts": "firing alerts, receivers, silences",
    "incidents": "what took the memory, what was killed and by whom; `/incidents/ID` has a picture",
    "about": "collectors, their errors, and the daemon's own cost",
}
OTHER_PAGES = {
    "/processes/PID": "one process: its footprint over time, its memory by kind, its allocators",
    "/machines/NAME": "the last two minutes and the last hour of a neighbour",
    "/picture.svg": "the memory as a picture: `at` (a time), `machine` (a neighbour), `size` (1200x630 or "
    "600x315), `theme` (light or dark)",
    "/last-words": "the last two minutes of a run that did not end cleanly",
    "/runbooks": "what to check and do for each alert; `runbook_url` in notifications leads there",
    "/docs": "this API, to try out",
    "/openapi.json": "the description of this API (OpenAPI 3.1)",
}
# The first subject whose list has a beginning of the path.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Processes and owners": ("/api/v1/processes", "/api/v1/engines", "/api/v1/owners", "/api/v1/growth"),
    "Current state": (
        "/api/v1/snapshot",
        "/api/v1/pools",
        "/api/v1/shares",
        "/api/v1/devices",
        "/api/v1/pressure",
        "/api/v1/collectors",
        "/api/v1/stream",
        "/api/v1/machines",
        "/metrics",
    ),
    "History and events": (
        "/api/v1/events",
        "/api/v1/incidents",
        "/api/v1/history",
        "/api/v1/ticks",
        "/api/v1/last-words",
    ),
    "Alerts and silences": ("/api/v1/alerts", "/api/v1/receivers", "/api/v1/silences"),
    "Planning and diagnosis": ("/api/v1/fit", "/api/v1/room", "/api/v1/backends", "/api/v1/doctor"),
    "From programs": ("/api/v1/marks", "/api/v1/reports", "/api/v1/leases", "/api/v1/guardian", "/api/v1/release"),
    "Probes": ("/healthz", "/readyz"),
}
ORDER = (
    "Current state",
    "Processes and owners",
    "History and events",
    "Alerts and silences",
    "Planning and diagnosis",
    "From programs",
    "Probes",
)
# What every path can answer; the introduction has them.
COMMON_STATUSES = frozenset({"200", "401", "403", "422", "503"})
COMMON_FIELDS = frozenset({"simulated", "absent"})
PROBLEMS = "ProblemDetails"
# Of FastAPI's own, which no path answers with.
UNUSED = frozenset({"HTTPValidationError", "ValidationError"})


def describe() -> Json:
    """Return the description of the API without `info`, which has the version of the program that serves it."""
    daemon = Daemon(Settings(), lambda _: Settings())
    try:
        api = create_api(create_services(daemon), MetricsEndpoint(daemon.monitor, daemon.exporter))
        return {name: part for name, part in with_answers(api.openapi(), api_routes()).items() if name != "info"}
    finally:
        daemon.stop()


def render_description() -> str:
    """Return the description as it is served, with a line for each path and each schema."""
    described = describe()
    parts = [f'"openapi":{_compact(described["openapi"])}', f'"paths":{_lines(described["paths"])}']
    groups = [f"{_compact(name)}:{_lines(part)}" for name, part in described["components"].items()]
    return "{" + ",\n".join([*parts, f'"components":{{{",".join(groups)}}}']) + "}\n"


def _lines(members: Json) -> str:
    return "{\n" + ",\n".join(f"{_compact(name)}:{_compact(part)}" for name, part in members.items()) + "\n}"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema_text(schema: Json) -> str:
    """Return a schema as words: `integer`, `list of [Pool](#pool)`, `text or null`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(schema_text(one) for one in schema["anyOf"])
    if "const" in schema:
        return code(str(schema["const"]))
    if "enum" in schema:
        return codes(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {schema_text(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"object of {schema_text(inner)}" if isinstance(inner, dict) else "object"
    kind: str = schema.get("type", "any")
    return "text" if kind == "string" else kind


def bounds_text(schema: Json) -> str:
    """Return the limits of a number, or nothing."""
    least = schema.get("minimum")
    most = schema.get("maximum")
    if least is None or most is None:
        return ""
    return f", {least:g} to {most:,.0f}" if float(most).is_integer() else f", {least:g} to {most:g}"


def parameter_row(parameter: Json) -> tuple[str, ...]:
    """Return the row of one parameter."""
    schema = parameter["schema"]
    kinds = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    value = " or ".join(schema_text(one) for one in kinds) + bounds_text(schema)
    default = "**required**" if parameter.get("required") else _default(schema.get("default"))
    place = "" if parameter["in"] == "query" else f" ({parameter['in']})"
    return code(parameter["name"]) + place, default, value, prose(parameter.get("description", ""))


def _default(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, float):
        return code(f"{value:g}")
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def field_rows(model: Json) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a model's fields, without those that every object has."""
    for name, schema in model.get("properties", {}).items():
        if name not in COMMON_FIELDS:
            yield code(name), schema_text(schema), prose(first_paragraph(schema.get("description")))


def operation_part(method: str, path: str, operation: Json) -> str:
    """Return the part of the page about one method of one path."""
    parts = [f"### {method.upper()} {path}"]
    if text := operation.get("description"):
        parts.append(prose(re.sub(r"\s+", " ", text)))
    rows = [parameter_row(one) for one in operation.get("parameters", ())]
    parts.append(table(("parameter", "default", "value", "meaning"), rows))
    if body := operation.get("requestBody"):
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        parts.append(f"Body, `application/json`: [{name}](#{name.lower()}).")
    parts.append(answer_text(operation["responses"]))
    return "\n\n".join(part for part in parts if part)


def answer_text(responses: Json) -> str:
    """Return what an operation answers with, and its own statuses."""
    content = responses["200"]["content"]
    kinds = [
        schema_text(inner["schema"]) if kind == "application/json" else code(kind)
        for kind, inner in content.items()
    ]
    kinds = [f"a {kind}" if kind.startswith("list of ") else kind for kind in kinds]
    text = f"Answers with {' or '.join(kinds)}."
    further = sorted(set(responses) - COMMON_STATUSES)
    texts = [f" {status}: {responses[status]['description'].rstrip('.')}." for status in further]
    return text + "".join(prose(one) for one in texts)


def pages_part() -> str:
    """Return the pages for browsers."""
    rows = [(code(path), PAGES[name]) for name, path in {**PATHS, **LINKS}.items()]
    rows += [(code(path), text) for path, text in OTHER_PAGES.items()]
    return "## Pages\n\n" + table(("path", "shows"), rows)


def subject_of(path: str) -> str:
    """Return the heading under which a path stands. One that has none raises KeyError."""
    for subject, beginnings in SUBJECTS.items():
        if path.startswith(beginnings):
            return subject
    raise KeyError(f"{path} has no subject in {__name__}.SUBJECTS; add it to one")


def objects_part(schemas: Json) -> str:
    """Return all objects with their fields."""
    parts = ["## Objects"]
    for name in sorted(schemas):
        if name not in UNUSED:
            model = schemas[name]
            body = table(("field", "value", "meaning"), field_rows(model))
            parts += [f"### {name}", prose(first_paragraph(model.get("description"))), body]
    return "\n\n".join(part for part in parts if part)


def render(described: Json | None = None) -> str:
    """Return the page."""
    described = described or describe()
    schemas = described["components"]["schemas"]
    by_subject: dict[str, list[str]] = {subject: [f"## {subject}"] for subject in ORDER}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            by_subject[subject_of(path)].append(operation_part(method, path, operation))
    parts = ["\n\n".join(found) for found in by_subject.values()]
    return page("HTTP API", INTRO, pages_part(), *parts, objects_part(schemas))
