"""`memwatch machines`: the daemon's machine and its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from memwatch.client.address import Address
from memwatch.client.context import build_context, common
from memwatch.client.http import ask
from memwatch.client.tables import columns
from memwatch.render import words as wording

Json = dict[str, Any]
ALONE = "No neighbours: add [[neighbours]] to memwatchd.toml to follow other machines."


@click.command(short_help="This machine and its neighbours.")
@common
def machines(url: Address | None, as_json: bool) -> int:
    """List the daemon's machine and its neighbours, those that need an operator first."""
    context = build_context(url, as_json)
    answer = ask(context.address, "/api/v1/machines")
    return context.show(answer.json, lambda: machine_lines(answer.json), answer.is_simulated)


def machine_lines(found: Sequence[Json]) -> Iterator[str]:
    rows = [("machine", "state", "can allocate", "last tick", ""), *map(_row, found)]
    yield from columns(rows, right=frozenset({2}))
    for one in found:
        if (offset := one["clock_offset_seconds"]) is not None:
            way = "ahead" if offset > 0 else "behind"
            yield f"The clock of {one['name']} is {wording.duration(abs(offset))} {way}."
    if len(found) < 2:
        yield ALONE


def _row(one: Json) -> tuple[str, ...]:
    tick = one["last_tick"]
    if tick is None:
        return one["name"], one["state"], wording.DASH, "never", one["text"]
    headroom = tick["headroom_bytes"]
    state = wording.level(tick["level"]) if one["state"] == "up" else one["state"]
    room = wording.DASH if headroom is None else wording.size(headroom)
    return one["name"], state, room, wording.age(one["age_seconds"]), one["text"]
