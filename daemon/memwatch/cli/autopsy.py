"""`memwatch autopsy FILE` shows the largest blocks of a PyTorch allocator snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from memwatch.cli.context import EXIT_OK, Number, build_context, common
from memwatch.cli.http import Address, CommandError
from memwatch.cli.tables import columns
from memwatch.core.printable import describe_error
from memwatch.core.runtime.own_files import remedy_to_read
from memwatch.reporting.render import words as wording
from memwatch.training.allocator_snapshot import SnapshotSummary, read_snapshot
from memwatch.training.pickle_reader import PickleRefusedError

RECORD = "torch.cuda.memory._record_memory_history()"


@click.command(short_help="Largest blocks of a PyTorch allocator snapshot.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--limit", type=Number(1, 1000, 10), default=10, show_default=True, help="Maximum number of places.")
@common
def autopsy(file: Path, limit: int, url: Address | None, as_json: bool) -> int:
    """Show the largest live blocks of FILE, a snapshot of PyTorch's allocator, by where they were allocated.

    memwatch.autopsy() and torch.cuda.memory._dump_snapshot() write such files. They are pickles, which can contain
    code. Here they are not unpickled: a file with more than plain values is refused.
    """
    context = build_context(url, as_json)
    try:
        summary = read_snapshot(file)
    except PickleRefusedError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        why = describe_error(error)
        raise CommandError(f"{file} cannot be read ({why}); {remedy_to_read(error)}") from None
    found: dict[str, Any] = to_builtins(summary)
    found["sites"] = found["sites"][:limit]
    context.show(found, lambda: list(render_lines(summary, limit)))
    return EXIT_OK


def render_lines(summary: SnapshotSummary, limit: int) -> Iterator[str]:
    for device in summary.devices:
        yield (
            f"GPU {device.device}: {wording.size(device.allocated_bytes)} allocated, "
            f"{wording.size(device.reserved_bytes)} reserved, {wording.size(device.unused_bytes)} of it unused "
            f"(largest piece {wording.size(device.largest_unused_bytes)})"
        )
    if not summary.devices:
        yield "The snapshot has no memory: no GPU was in use"
    if summary.out_of_memory is None:
        yield "out-of-memory errors in the recorded history: not counted, as it is too long"
    elif summary.out_of_memory:
        yield f"out-of-memory errors in the recorded history: {summary.out_of_memory}"
    if summary.sites:
        yield ""
    rows = [("TOTAL", "LARGEST", "BLOCKS", "ALLOCATED AT")] if summary.sites else []
    for site in summary.sites[:limit]:
        rows.append(
            (wording.size(site.total_bytes), wording.size(site.largest_bytes), str(site.blocks), site.location)
        )
        rows += [("", "", "", f"  called from {one}") for one in site.stack[1:]]
    yield from columns(rows, right=frozenset({0, 1, 2}))
    left = summary.sites[limit:]
    if left:
        yield f"{len(left)} more places hold {wording.size(sum(one.total_bytes for one in left))}"
    if summary.unrecorded_bytes:
        yield (
            f"{wording.size(summary.unrecorded_bytes)} without a place: {RECORD} was not called before they "
            "were allocated"
        )
