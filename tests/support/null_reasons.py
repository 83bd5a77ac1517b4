"""The law of nulls: each null of JSON has a reason beside it, under `absent`, or the schema says when it is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, get_args, get_origin

from memwatch.core.doc import Doc
from memwatch.core.wire import ABSENT, Json, Wire

# Words for which null is an answer: there is no such thing, or the setting that adds them is off. A figure never is
# one of them; a rank is a name that happens to be a number.
NO_SUCH_THING = frozenset(
    {
        "advice",
        "cgroup_note",
        "command",
        "container",
        "container_name",
        "device",
        "error",
        "job",
        "name",
        "note",
        "pod",
        "pod_name",
        "rank",
        "script",
        "unit",
    }
)


def unexplained_nulls(value: Any) -> Iterator[str]:
    """Yield the names of nulls without a reason, at any depth."""
    if isinstance(value, dict):
        absent = value.get(ABSENT, {})
        yield from (name for name, part in value.items() if part is None and name not in absent)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from unexplained_nulls(part)


def undescribed_optionals(wires: Iterable[Wire]) -> list[str]:
    """Return the fields of all shapes that may be null without a reason and do not say when, as `Record.field`."""
    fields = {
        (shape.record.__name__, name): hint
        for wire in wires
        for shape in tuple(wire.shapes)
        for name, hint in shape.hints.items()
        if name in shape.columns
    }
    return sorted(f"{record}.{name}" for (record, name), hint in fields.items() if not says_when_null(hint))


def says_when_null(hint: Any) -> bool:
    """Return True for a type without None, and for one whose `Doc` names null."""
    parts = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    texts = [one.text.lower() for one in parts[1:] if isinstance(one, Doc)]
    return type(None) not in get_args(parts[0]) or any("null" in text for text in texts)


def undescribed_nulls(schemas: Json) -> list[str]:
    """Return the fields of schemas by name that may be null and do not say when, as `Schema.field`.

    Objects with `absent` have a reason for each null beside it, or `undescribed_optionals` has the field.
    """
    return sorted(
        f"{title}.{name}"
        for title, schema in schemas.items()
        for name, field in schema["properties"].items()
        if may_be_null(field)
        and "null" not in field.get("description", "").lower()
        and ABSENT not in schema["properties"]
    )


def may_be_null(schema: Json) -> bool:
    """Return True for a value that may be null, and for a list or an object of these."""
    inner = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
    return schema.get("type") == "null" or any(may_be_null(one) for one in inner if isinstance(one, dict))


def figures_without_a_reason(value: Any) -> list[str]:
    """Return the nulls without a reason that are no words."""
    return sorted(set(unexplained_nulls(value)) - NO_SUCH_THING)
