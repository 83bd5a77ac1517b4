"""`memwatch fit --what` and `--on`: the largest models that fit, and machines that a user names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import asdict, replace

from memwatch.cli.context import EXIT_OK, ClientContext, check_shape
from memwatch.cli.http import EXIT_FAILURE, EXIT_UNKNOWN, CommandError, DaemonResponse
from memwatch.cli.tables import columns
from memwatch.core.accounting.leased import with_leases_used
from memwatch.core.leases import OWN_LEASE, without_lease
from memwatch.core.model import Absent, Architecture, PoolKind
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json
from memwatch.planning.answer import FitAnswer, figure
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.fit import CPU, compute_fit
from memwatch.planning.model_table import Runnable, list_runnable, list_shorter
from memwatch.planning.named_machines import (
    SUFFIX,
    find_bandwidth,
    is_saved_simulation,
    more_gpus_of,
    read_machine,
    without_load,
)
from memwatch.planning.request import DEFAULT_CONTEXT, Use
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.fit_json import fit_json


def show_runnable(context: ClientContext, use: Use, machine: str, min_rate: float) -> int:
    """Print the largest models of the table that fit now, and those that fit if nothing else ran."""
    if machine:
        snapshot = read_machine(machine)
        _check_rates(snapshot, min_rate)
        if (use.offload_kv or use.cpu_layers) and not _has_ram(snapshot):
            raise InvalidInputError(
                f"{machine}: its System RAM is not known, into which a part would move; "
                f"{_name_ram(machine)}, or leave the option for System RAM out"
            )
        lists, simulated = {"empty": list_runnable(snapshot, use, min_rate)}, is_saved_simulation(machine, snapshot)
    else:
        answer = context.snapshot()
        with check_shape(context.address):
            snapshot, simulated = answer.snapshot, answer.is_simulated
        _check_rates(snapshot, min_rate)
        leased = with_leases_used(snapshot, without_lease(snapshot.leases, os.environ.get(OWN_LEASE, "")))
        lists = {
            "now": list_runnable(leased, use, min_rate),
            "empty": list_runnable(without_load(snapshot), use, min_rate),
        }
    found: dict[str, Any] = {name: [_as_json(one) for one in rows] for name, rows in lists.items()}
    found |= {"context": use.context or DEFAULT_CONTEXT, "on": machine or None, "shorter": list_shorter(use)}
    found |= {"simulated": True} if simulated else {}
    found["min_speed"] = min_rate or None
    code = EXIT_OK if any(lists.values()) else EXIT_FAILURE
    if code == EXIT_FAILURE and (unknown := compute_fit(1, snapshot).unknown):
        found["unknown"], code = unknown, EXIT_UNKNOWN
    return context.show(found, lambda: _lines(lists, found), simulated) or code


def _check_rates(snapshot: Snapshot, min_rate: float) -> None:
    """Raise CommandError if a least rate is asked for, and no memory of the machine has a known bandwidth."""
    names = [one.name for one in snapshot.devices]
    if min_rate and not any(find_bandwidth(name) for name in names):
        what = f"of {', '.join(dict.fromkeys(names))}" if names else "of System RAM, which the CPU uses,"
        raise CommandError(
            f"the bandwidth {what} is not known, so that no rate is either; leave --min-speed out", EXIT_UNKNOWN
        )


def _as_json(one: Runnable) -> dict[str, Any]:
    return {**asdict(one), "rate": asdict(one.rate) if one.rate else None}


def _lines(lists: dict[str, tuple[Runnable, ...]], found: Json) -> Iterator[str]:
    place = f"on {found['on']}" if found["on"] else "on this machine if nothing else ran"
    titles = {"now": "now", "empty": place}
    known = {(one.model, one.dtype) for one in lists.get("now", ())}
    context = found["context"]
    for name, rows in lists.items():
        further = [one for one in rows if name == "now" or (one.model, one.dtype) not in known]
        yield f"Largest models that fit {titles[name]}, context {context}:"
        yield from (
            columns([_row(one, context) for one in further], right=frozenset({2}))
            if further
            else (
                f"  not known: {found['unknown']}"
                if "unknown" in found
                else f"  none{' further' if known else ''}",
            )
        )
        yield ""
    yield "Models of a table in this version, by parameters; tokens a second of one sequence are estimated."
    if found["min_speed"]:
        yield "With --min-speed: on one GPU, at the low end of the estimate. There is none for several GPUs."
    if shorter := len(found["shorter"]):
        yield f"{shorter} {'model has' if shorter == 1 else 'models have'} a shorter context and are left out."
    if not all(one.is_sure_of(context) for rows in lists.values() for one in rows):
        yield "? its own longest context is not in the table: check that it takes this one."
    if not all(one.is_compared for rows in lists.values() for one in rows):
        yield "~ its shape was not compared with its files: check it by name before a download, with --online."


def _row(one: Runnable, context: int) -> tuple[str, ...]:
    speed = f"{figure(one.rate.low)} to {figure(one.rate.high)} tokens/s" if one.rate else ""
    where = one.devices[0] if len(one.devices) == 1 else f"{len(one.devices)} GPUs"
    return (
        f"  {'' if one.is_compared else '~ '}{one.model}{'' if one.is_sure_of(context) else ' ?'}",
        one.dtype or "as published",
        wording.size(one.bytes),
        where,
        speed,
    )


def _has_ram(named: Snapshot) -> bool:
    return any(one.kind is PoolKind.SYSTEM_RAM and one.size_bytes for one in named.pools)


def _name_ram(machine: str) -> str:
    return f"name it, for example --on '{machine.partition('+')[0].strip()} + 64GiB'"


def answer_named(machine: str, answer: Callable[[Snapshot], FitAnswer]) -> DaemonResponse:
    """Return the answer on a machine that a user names, with more of its GPUs if it does not fit on these."""
    named = read_machine(machine)
    found = answer(named) if _has_ram(named) else _explain_ram(answer(named), named, machine)
    simulated = is_saved_simulation(machine, named)
    shown: dict[str, Any] = {**fit_json(found), **({"simulated": True} if simulated else {})}
    more = None if found.fits else _find_more(machine, answer)
    return DaemonResponse({**shown, "more_gpus": more}, None, simulated)


def _explain_ram(found: FitAnswer, named: Snapshot, machine: str) -> FitAnswer:
    """Say how System RAM is named. Of several machines with one memory each, the CPU has that of the GPU, which is
    judged: leave it out."""
    fit = found.fit
    if named.devices and all(one.architecture is Architecture.UNIFIED for one in named.devices):
        verdicts = tuple(one for one in fit.verdicts if one.device != CPU)
        is_unsure = any(isinstance(one.fits, Absent) for one in verdicts)
        fit = replace(fit, verdicts=verdicts, unknown=fit.unknown if is_unsure else "")
    elif fit.unknown and not found.need.note and not machine.endswith(SUFFIX):
        remedy = _name_ram(machine)
        fit = replace(fit, unknown=f"{fit.unknown} {remedy[0].upper()}{remedy[1:]}.")
    return replace(found, fit=fit)


def _find_more(machine: str, answer: Callable[[Snapshot], FitAnswer]) -> str | None:
    """Return the machine with the fewest more GPUs on which it fits."""
    return next((one for one in more_gpus_of(machine) if answer(read_machine(one)).fit.split), None)
