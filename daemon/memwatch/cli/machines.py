"""`memwatch machines`: the daemon's machine and its neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from memwatch.cli.address import Address
from memwatch.cli.atomic_file import write_atomically
from memwatch.cli.context import EXIT_OK, build_context, check_shape, common, print_errors
from memwatch.cli.errors import CommandError
from memwatch.cli.http import ask
from memwatch.cli.placement import NO_NEIGHBOURS
from memwatch.cli.scrape_targets import build_targets
from memwatch.cli.tables import columns
from memwatch.monitor.render import words as wording

Json = dict[str, Any]


@click.command(short_help="This machine and its neighbours.")
@click.option(
    "--file-sd",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them to FILE as targets of Prometheus's file_sd.",
)
@common
def machines(file: Path | None, url: Address | None, as_json: bool) -> int:
    """List the daemon's machine and its neighbours, those that need an operator first.

    With --file-sd, write their addresses to a file that Prometheus reads at once when it changes.
    """
    context = build_context(url, as_json)
    answer = ask(context.address, "/api/v1/machines")
    if file is not None:
        return write_targets(file, answer.json, context.address)
    return context.show(answer.json, lambda: machine_lines(answer.json), answer.is_simulated)


def write_targets(file: Path, found: Sequence[Json], own: Address) -> int:
    """Write the targets. The file is left as it is if there is none."""
    with check_shape(own):
        groups, left_out = build_targets(found, own)
    if not groups:
        raise CommandError(f"{file} is not written: a socket file cannot be scraped; use --url")
    write_atomically(file, json.dumps(groups, indent=2) + "\n")
    if left_out:
        print_errors([f"left out, as their address is a socket file: {', '.join(left_out)}"])
    print(f"{wording.count(len(groups), 'target')} in {file}")
    return EXIT_OK


def machine_lines(found: Sequence[Json]) -> Iterator[str]:
    rows = [("machine", "state", "can allocate", "last tick", ""), *map(_row, found)]
    yield from columns(rows, right=frozenset({2}))
    for one in found:
        if (offset := one["clock_offset_seconds"]) is not None:
            way = "ahead" if offset > 0 else "behind"
            yield f"The clock of {one['name']} is {wording.duration(abs(offset))} {way}."
    if sum(one["state"] != "found" for one in found) < 2:
        yield NO_NEIGHBOURS


def _row(one: Json) -> tuple[str, ...]:
    tick = one["last_tick"]
    if tick is None:
        return one["name"], one["state"], wording.DASH, "" if one["state"] == "found" else "never", one["text"]
    headroom = tick["headroom_bytes"]
    state = wording.level(tick["level"]) if one["state"] == "up" else one["state"]
    room = wording.DASH if headroom is None else wording.size(headroom)
    return one["name"], state, room, wording.age(one["age_seconds"]), one["text"]
