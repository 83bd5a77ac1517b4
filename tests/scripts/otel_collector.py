"""The conventional names in deploy/otel/collector.yml, which `make reference` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memwatchd.otlp import CONVENTIONS, Convention
from support.paths import DEPLOY

SHIPPED = DEPLOY / "otel/collector.yml"
TRANSFORMS = re.compile(r"(    transforms:\n)(?:      .*\n)+")
STATEMENTS = re.compile(r"(        statements:\n)(?:          .*\n)+")


def with_conventions(text: str) -> str:
    """Return the file's text with the transforms and statements of all conventions."""
    transforms = "".join(line for one in CONVENTIONS for line in transform_of(one))
    statements = "".join(f"          - {line}\n" for line in statements_of(CONVENTIONS))
    text = TRANSFORMS.sub(lambda found: found[1] + transforms, text)
    return STATEMENTS.sub(lambda found: found[1] + statements, text)


def transform_of(one: Convention) -> Iterator[str]:
    """Yield the lines of one transform: a copy of the matching series, with other labels."""
    name = "^" + re.escape(one.source) + "$" if one.where else one.source
    yield f"      - include: {name}\n"
    yield f"        match_type: {'regexp' if one.where else 'strict'}\n"
    if one.where:
        labels = ", ".join(f'{label}: "{pattern}"' for label, pattern in one.where.items())
        yield f"        experimental_match_labels: {{{labels}}}\n"
    yield "        action: insert\n"
    yield f"        new_name: {one.name}\n"
    yield "        operations:\n"
    yield from (f"          - {operation}\n" for operation in operations_of(one))


def operations_of(one: Convention) -> Iterator[str]:
    """Yield the operations on labels: leave out those that the convention has not, rename, and add."""
    kept = ", ".join(one.attributes)
    yield f"{{action: aggregate_labels, label_set: [{kept}], aggregation_type: sum}}"
    for label, attribute in one.attributes.items():
        yield f"{{action: update_label, label: {label}, new_label: {attribute}}}"
    for attribute, value in one.fixed.items():
        yield f"{{action: add_label, new_label: {attribute}, new_value: {value}}}"


def statements_of(conventions: tuple[Convention, ...]) -> Iterator[str]:
    """Yield OTTL statements for units and sums, one for each name."""
    units = {one.name: one.unit for one in conventions}
    for name, unit in units.items():
        yield f"""set(unit, "{unit}") where name == "{name}\""""
    for name in {one.name: None for one in conventions if one.instrument == "updowncounter"}:
        yield f"""convert_gauge_to_sum("cumulative", false) where name == "{name}\""""
