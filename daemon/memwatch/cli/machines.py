"""`memwatch machines`: the daemon's machine and its neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from memwatch.cli.address import Address, parse_url
from memwatch.cli.atomic_file import write_atomically
from memwatch.cli.context import EXIT_OK, build_context, check_shape, common, print_errors
from memwatch.cli.errors import CommandError
from memwatch.cli.http import ask
from memwatch.cli.placement import NO_NEIGHBOURS
from memwatch.cli.tables import columns
from memwatch.monitor.render import words as wording

# The daemon's machines as targets of Prometheus's file_sd.

Json = dict[str, Any]
METRICS = "/metrics"


class ScrapeTargets(NamedTuple):
    """Groups of targets as file_sd reads them, and the names of machines that Prometheus cannot reach."""

    groups: list[Json]
    left_out: list[str]


def build_targets(machines: Iterable[Json], own: Address) -> ScrapeTargets:
    """Return a group for each machine. `own`: the address by which this command reaches the daemon.

    A socket file cannot be scraped.
    """
    groups, left_out = [], []
    for one in sorted(machines, key=lambda machine: (not machine["is_self"], str(machine["name"]))):
        address = own if one["is_self"] else parse_url(one["url"])
        if address.scheme == "unix":
            left_out.append(str(one["name"]))
        else:
            groups.append(group_of(one, address))
    return ScrapeTargets(groups, left_out)


def group_of(machine: Json, address: Address) -> Json:
    """Return one machine as a group: its address without scheme and path, which are labels of Prometheus."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    labels = {} if machine["is_self"] else {"neighbour": machine["name"]}
    if address.scheme != "http":
        labels["__scheme__"] = address.scheme
    if address.prefix:
        labels["__metrics_path__"] = address.prefix + METRICS
    return {"targets": [f"{host}:{address.port}"], "labels": labels}


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
