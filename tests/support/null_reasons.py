"""The law of nulls: each null of JSON has a reason beside it, under `absent`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Words for which null is an answer: there is no such thing, or the setting that adds them is off. A figure never is
# one of them.
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
        "unit",
    }
)


def unexplained_nulls(value: Any) -> Iterator[str]:
    """Yield the names of nulls without a reason, at any depth."""
    if isinstance(value, dict):
        absent = value.get("absent", {})
        yield from (name for name, part in value.items() if part is None and name not in absent)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from unexplained_nulls(part)


def figures_without_a_reason(value: Any) -> list[str]:
    """Return the nulls without a reason that are no words."""
    return sorted(set(unexplained_nulls(value)) - NO_SUCH_THING)
