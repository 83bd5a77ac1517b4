"""`memwatch advise`: recommended settings for programs on a machine, with reasons and sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from msgspec.structs import asdict

from memwatch.client.address import Address
from memwatch.client.context import build_context, check_shape, common

MARKS = {"recommended": "✓", "try both": "?", "if needed": "·", "avoid": "✗"}


@click.command(short_help="Recommended settings.")
@common
def advise(url: Address | None, as_json: bool) -> int:
    """Print recommended settings for training and inference, each with its reason and source.

    GPUs that variables such as CUDA_VISIBLE_DEVICES hide are left out. Settings with contradicting reports
    are marked "try both", those for one case "if needed". The number of workers needs the CPUs of the machine,
    which are known only on it. No setting is changed.
    """
    from memwatch.library.advice import advice_for, select_environment, with_visible_gpus
    from memwatch.library.machine_record import decode_machine

    context = build_context(url, as_json)
    response = context.snapshot()
    with check_shape(context.address):
        machine = decode_machine(response.json)
        if context.address.is_here:
            machine = with_visible_gpus(machine)
        advice = advice_for(machine)
    answer = {"environment": select_environment(advice), "advice": [asdict(one) for one in advice]}
    return context.show(answer, lambda: _lines(answer["advice"]), response.is_simulated)  # type: ignore[arg-type]


def _lines(advice: Sequence[dict[str, object]]) -> Iterator[str]:
    for one in advice:
        certainty = "" if one["certainty"] == "recommended" else f" ({one['certainty']})"
        yield f"{MARKS[str(one['certainty'])]} {one['name']}={one['value']}{certainty}"
        yield f"    {one['reason']}"
        yield from (f"    {source}" for source in one["sources"])  # type: ignore[attr-defined]
