"""`memwatch advise`: what to set for programs on a machine, why, and who says so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click
from msgspec.structs import asdict

from memwatchd.client.address import Address
from memwatchd.client.context import build_context, check_shape, common


@click.command(short_help="What to set for programs here, and why.")
@common
def advise(url: Address | None, as_json: bool) -> int:
    """What to set for training and inference on a machine: each with its reason and its source.

    Where reports contradict each other it says "try both". Nothing is set.
    """
    from memwatch.library.advice import advice_for, select_environment
    from memwatch.library.machine import decode_machine

    question = build_context(url, as_json)
    response = question.snapshot()
    with check_shape(question.address):
        cpus = (os.cpu_count() or 1) if question.address.is_here else None
        advice = advice_for(decode_machine(response.json), cpus)
    answer = {"environment": select_environment(advice), "advice": [asdict(one) for one in advice]}
    return question.show(answer, lambda: _lines(answer["advice"]), response.is_simulated)  # type: ignore[arg-type]


def _lines(advice: Sequence[dict[str, object]]) -> Iterator[str]:
    for one in advice:
        mark = "?" if one["certainty"] == "try both" else "✓"
        certainty = " (try both)" if one["certainty"] == "try both" else ""
        yield f"{mark} {one['name']}={one['value']}{certainty}"
        yield f"    {one['reason']}"
        yield from (f"    {source}" for source in one["sources"])  # type: ignore[attr-defined]
