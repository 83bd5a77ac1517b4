"""`memwatch advise`: recommended settings for programs on a machine, with reasons and sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec.structs import asdict

from memwatch.cli.address import Address
from memwatch.cli.context import ClientContext, SnapshotAnswer, build_context, check_shape, common
from memwatch.cli.headroom import is_this_machine

MARKS = {"recommended": "✓", "try both": "?", "if needed": "·", "avoid": "✗"}


@click.command(short_help="Recommended settings.")
@click.option("--systemd", "for_units", is_flag=True, help="Print files for services with GPU memory, to review.")
@common
def advise(for_units: bool, url: Address | None, as_json: bool) -> int:
    """Print recommended settings for training and inference, each with its reason and source.

    GPUs that variables such as CUDA_VISIBLE_DEVICES hide are left out. Settings with contradicting reports
    are marked "try both", those for one case "if needed". The number of workers needs the CPUs of the machine,
    which are known only on it. No setting is changed.

    With --systemd, print drop-ins for services whose footprint is GPU memory, which the kernel's OOM killer and
    systemd-oomd do not count: OOMScoreAdjust=, OOMPolicy=, MemoryMax=, ManagedOOMPreference= and a rule. No file is
    written.
    """
    from memwatch.library.advice import advice_for, select_environment, with_visible_gpus
    from memwatch.library.machine_record import from_snapshot

    context = build_context(url, as_json)
    response = context.snapshot()
    if for_units:
        return _print_unit_files(context, response)
    with check_shape(context.address):
        machine = from_snapshot(response.snapshot, from_daemon=True)
        # Variables of this process hide no GPU of a remote or simulated machine.
        if not response.is_simulated and is_this_machine(response.snapshot):
            machine = with_visible_gpus(machine)
        advice = advice_for(machine)
    answer = {"environment": select_environment(advice), "advice": [asdict(one) for one in advice]}
    return context.show(answer, lambda: _lines(answer["advice"]), response.is_simulated)  # type: ignore[arg-type]


def _print_unit_files(context: ClientContext, response: SnapshotAnswer) -> int:
    from memwatch.planning.unit_files import build_unit_files, find_other_holders

    with check_shape(context.address):
        snapshot = response.snapshot
    files, others = build_unit_files(snapshot), find_other_holders(snapshot)
    answer: dict[str, Any] = {"files": [asdict(one) for one in files], "units_without_drop_ins": others}
    return context.show(answer, lambda: _file_lines(answer), response.is_simulated)


def _file_lines(answer: dict[str, Any]) -> Iterator[str]:
    if not answer["files"]:
        yield "# No system service holds 2 GiB of GPU memory or more: there is nothing to set."
    for one in answer["files"]:
        yield f"# --- {one['path']}"
        yield from one["text"].splitlines()
        yield ""
    for unit in answer["units_without_drop_ins"]:
        yield f"# {unit} holds GPU memory, and is no system service: set limits where it is started."


def _lines(advice: Sequence[dict[str, object]]) -> Iterator[str]:
    for one in advice:
        certainty = "" if one["certainty"] == "recommended" else f" ({one['certainty']})"
        yield f"{MARKS[str(one['certainty'])]} {one['name']}={one['value']}{certainty}"
        yield f"    {one['reason']}"
        yield from (f"    {source}" for source in one["sources"])  # type: ignore[attr-defined]
