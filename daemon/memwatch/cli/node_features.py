"""`memwatch node-features`: labels of this node for Kubernetes' node-feature-discovery."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import click

from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    build_context,
    check_shape,
    common,
    print_errors,
    seconds_within,
)
from memwatch.cli.http import Address, CommandError
from memwatch.cli.output import write_atomically
from memwatch.core.backends.devices import build_room
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import MIB

PREFIX = "feature.node.kubernetes.io/memwatch."
# Allocatable memory in steps of this part of the size: each change is a write to the Kubernetes API.
STEPS = 8
# Labels disappear when the file has not been renewed for this many intervals.
MAX_MISSED = 3
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@click.command(short_help="Labels of this node for Kubernetes.")
@click.option(
    "--output", "file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write them to FILE."
)
@click.option(
    "--interval",
    metavar="DURATION",
    callback=seconds_within("10s", "24h", "1m"),
    help="With --output: write again each DURATION. Labels expire after three missed writes.",
)
@common
def node_features(file: Path | None, interval: float | None, url: Address | None, as_json: bool) -> int:
    """Print labels of this node in the format of node-feature-discovery's feature files.

    They name the kind of GPU memory, the number of GPUs, the memory of the largest GPU, and how much it can
    allocate, in MiB.
    """
    context = build_context(url, as_json)
    if interval is not None and file is None:
        raise click.UsageError("--interval needs --output FILE")
    if file is None:
        labels = read_labels(context)
        return context.show(labels, lambda: lines_of(labels))
    while True:
        try:
            write_atomically(file, feature_file(read_labels(context), interval, datetime.now(timezone.utc)))
        except CommandError as error:
            if interval is None:
                raise
            print_errors([str(error)])
        if interval is None:
            return EXIT_OK
        time.sleep(interval)


def read_labels(context: ClientContext) -> dict[str, str]:
    answer = context.snapshot()
    with check_shape(context.address):
        return dict(labels_of(answer.snapshot))


def labels_of(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the labels whose value is known."""
    architecture = snapshot.machine.architecture
    if VALUE.fullmatch(architecture):
        yield "memoryType", architecture
    devices = snapshot.devices
    yield "gpu.count", str(len(devices))
    rooms_of = [build_room(one, snapshot) for one in devices]
    known = [(room, size) for size, _, room in rooms_of if isinstance(size, int) and size]
    if known:
        yield "gpu.memory", str(max(size for _, size in known) // MIB)
    rooms = [round_down(room, size) for room, size in known if isinstance(room, int)]
    if rooms:
        yield "gpu.allocatable", str(max(rooms) // MIB)


def round_down(room: int, size: int) -> int:
    """Return the largest part of the size, in eighths, that can be allocated."""
    return min(STEPS, room * STEPS // size) * size // STEPS


def lines_of(labels: dict[str, str]) -> Iterator[str]:
    return (f"{PREFIX}{name}={value}" for name, value in labels.items())


def feature_file(labels: dict[str, str], interval: float | None, now: datetime) -> str:
    """Return the text of a feature file. With an interval it has a time at which the labels expire."""
    expires = [] if interval is None else [expiry_line(now + timedelta(seconds=MAX_MISSED * interval))]
    return "".join(f"{line}\n" for line in [*expires, *lines_of(labels)])


def expiry_line(at: datetime) -> str:
    return f"# +expiry-time={at:%Y-%m-%dT%H:%M:%SZ}"
