"""JSON answers checked by the description of the API: types, required and unknown fields, words of lists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from memwatch_web.api.openapi import define, describe_content, names_in

Json = Any
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


@cache
def definitions(name: str) -> dict[str, Json]:
    return define({name})


def check_answer(body: bytes | Json, answer: str) -> None:
    """Fail if an answer is not as the description says of it: `Pool[]`, `Snapshot`."""
    value = json.loads(body) if isinstance(body, bytes) else body
    (name,) = names_in(answer)
    faults = list(_faults(value, describe_content(answer)[1]["schema"], definitions(name), ""))
    assert not faults, faults[:5]


def _faults(value: Json, schema: Json, known: dict[str, Json], path: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        each = [list(_faults(value, one, known, path)) for one in schema["anyOf"]]
        yield from [] if [] in each else min(each, key=len)
        return
    if type(value) not in TYPES[schema["type"]]:
        yield f"{path} is {value!r:.40}, no {schema['type']}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path} is {value!r:.40}, none of {schema['enum']}"
    elif isinstance(value, list):
        for one in value:
            yield from _faults(one, schema["items"], known, f"{path}[]")
    elif isinstance(value, dict):
        yield from _faults_of_object(value, schema, known, path)


def _faults_of_object(value: Json, schema: Json, known: dict[str, Json], path: str) -> Iterator[str]:
    fields, others = schema.get("properties", {}), schema["additionalProperties"]
    yield from (f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value)
    for name, inner in value.items():
        if name in fields or isinstance(others, dict):
            yield from _faults(inner, fields.get(name, others), known, f"{path}.{name}")
        else:
            yield f"{path}.{name} is not described"
