"""`memwatch room`: which model or process has to go so that a size fits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from memwatch.cli.context import EXIT_OK, build_context, check_shape, common
from memwatch.cli.headroom import find_place, is_this_machine
from memwatch.cli.http import EXIT_FAILURE, EXIT_UNKNOWN, Address, CommandError
from memwatch.cli.tables import MARKS
from memwatch.core.leases import OWN_LEASE
from memwatch.core.linux.cgroups import parse_cgroup, parse_owners
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.process_files import parse_stat
from memwatch.core.model import Absent, known_or
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots
from memwatch.library.host import as_used_here
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.fit import CPU
from memwatch.planning.need import parse_need
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.room import (
    RoomAnswer,
    RoomStep,
    RoomTarget,
    find_room_for,
    list_room_targets,
    room_json,
)
from memwatch.reporting.render.room_candidates import NO_ASKER, Asker

# Parents of a program: a shell, a terminal or a login, and their managers.
MAX_PARENTS = 64
MAX_ALTERNATIVES = 3


@click.command(short_help="Which model has to go so that a size fits.")
@click.argument("size")
@click.option(
    "--device", metavar="ID", help="This GPU, MIG instance or cpu: gpu0, cuda:0, a UUID.  [default: every device]"
)
@common
def room(size: str, device: str | None, url: Address | None, as_json: bool) -> int:
    """Show what would have to go so that SIZE, such as 40GiB, fits: models, servers and programs, in order.

    Page cache comes first and costs nothing. Then come models that their server unloads and loads again, servers
    without requests, servers whose use is not known, and all others by what has to be built up again. Each has what
    stopping it frees for certain, its command, and its cost. No step is taken that others make needless.

    Sizes that are not known do not count. Never among them: process 1, memwatchd, SSH, managers of sessions,
    containers and jobs, and this program with its parents. No command is run.
    Exits with 1 if all of it is not enough, and with 3 if that is not known: the memory cannot be read.
    """
    context = build_context(url, as_json)
    try:
        need = parse_need(size)
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None
    try:
        answer = context.snapshot()
        with check_shape(context.address):
            snapshot = answer.snapshot
    except CommandError as error:
        raise CommandError(str(error), EXIT_UNKNOWN) from None
    is_here = not answer.is_simulated and is_this_machine(snapshot)
    asker = read_asker(read_roots(os.environ)[0]) if is_here else NO_ASKER
    snapshot = as_used_here(snapshot) if is_here else snapshot
    target = "" if device is None else find_target(snapshot, device)
    found = find_room_for(need, snapshot, target, os.environ.get(OWN_LEASE, ""), asker)
    sent = {**room_json(found), **({"simulated": True} if answer.is_simulated else {})}
    code = EXIT_OK if found.best else EXIT_UNKNOWN if found.is_unknown else EXIT_FAILURE
    return context.show(sent, lambda: room_lines(found), answer.is_simulated) or code


def find_target(snapshot: Snapshot, device: str) -> str:
    """Return the target of an id, or of a name as a program started here would use it. Raises UsageError."""
    return device if device in list_room_targets(snapshot) else find_place(snapshot, device) or CPU


def read_asker(procfs: Path) -> Asker:
    """Return this process and its parents, with the unit and container that it is in."""
    pids: list[int] = []
    name = "self"
    with suppress(ParseError):
        while len(pids) < MAX_PARENTS and (stat := parse_stat(read_once(procfs / name / "stat") or b"")):
            pids.append(stat.pid)
            name = str(stat.parent)
    text = read_once(procfs / "self/cgroup")
    home = parse_owners(parse_cgroup(text)).printable() if text else None
    return Asker(frozenset(pids), home.unit, home.container) if home else Asker(frozenset(pids))


def room_lines(found: RoomAnswer) -> Iterator[str]:
    yield f"Room for {wording.size(found.bytes)}"
    for one in found.targets:
        yield ""
        yield from _target_lines(one)
    yield ""
    yield _conclusion(found)


def _target_lines(one: RoomTarget) -> Iterator[str]:
    now = one.fit
    headroom = wording.headroom(now.headroom_bytes, now.headroom_after_reclaim_bytes)
    room = "" if isinstance(now.headroom_after_reclaim_bytes, Absent) else f" ({headroom} available)"
    short = -now.spare_bytes if one.steps and isinstance(now.spare_bytes, int) else 0
    text = f"short by {wording.size(short)} now; to make room:" if short else one.text
    yield f"{MARKS[known_or(now.fits, None)]} {now.device}, {now.name}{room}: {text}"
    for number, step in enumerate(one.steps, 1):
        yield from _step_lines(f"{number}.", step)
    if one.steps:
        yield f"  {one.text}"
    if one.alternatives:
        yield "  Each of these alone would be enough as well:"
    for step in one.alternatives[:MAX_ALTERNATIVES]:
        yield from _step_lines("-", step)
    if more := len(one.alternatives[MAX_ALTERNATIVES:]):
        yield f"  and {more} more, which --json lists"
    if one.unknown:
        yield f"  Of unknown size, and not counted: {'; '.join(one.unknown)}."


def _step_lines(mark: str, step: RoomStep) -> Iterator[str]:
    owner = f"{step.owner}, " if step.owner else ""
    more = f" and {len(step.pids) - 1} more" if step.pids[1:] else ""
    who = f"{step.subject} ({owner}PID {step.pid}{more})"
    then = wording.size(step.available_bytes)
    yield f"  {mark} {who}: frees {step.freed.text}, then {then} available"
    yield f"     {step.command or 'no command for it is known here'}"
    yield f"     {'; '.join(one for one in (step.state, step.cost) if one)}"
    if step.hint:
        yield f"     {step.hint}"


def _conclusion(found: RoomAnswer) -> str:
    best = next((one for one in found.targets if one.fit.device == found.best), None)
    if best is not None:
        return f"Fits {'after these steps' if best.steps else 'now'}: use {best.fit.device}."
    return "Not known if it fits." if found.is_unknown else "Does not fit."
