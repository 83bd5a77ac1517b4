"""`memwatch advise`: what to set for programs on a machine, why, and who says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click
from msgspec.structs import asdict

from memwatchd.client.address import Address
from memwatchd.client.context import common, question_of, understood


@click.command(short_help="What to set for programs here, and why.")
@common
def advise(url: Address | None, as_json: bool) -> int:
    """What to set for training and inference on a machine: each with its reason and its source.

    Where reports contradict each other it says "try both". Nothing is set.
    """
    from memwatch.library.advice import advice_for, environment_of
    from memwatch.library.machine import machine_of

    question = question_of(url, as_json)
    asked = question.snapshot()
    with understood(question.address):
        cpus = (os.cpu_count() or 1) if question.address.is_here else None
        advice = advice_for(machine_of(asked.json), cpus)
    answer = {"environment": environment_of(advice), "advice": [asdict(one) for one in advice]}
    return question.show(answer, lambda: _lines(answer["advice"]), asked.is_simulated)  # type: ignore[arg-type]


def _lines(advice: Sequence[dict[str, object]]) -> Iterator[str]:
    for one in advice:
        mark = "?" if one["certainty"] == "try both" else "✓"
        certainty = " (try both)" if one["certainty"] == "try both" else ""
        yield f"{mark} {one['name']}={one['value']}{certainty}"
        yield f"    {one['reason']}"
        yield from (f"    {source}" for source in one["sources"])  # type: ignore[attr-defined]
