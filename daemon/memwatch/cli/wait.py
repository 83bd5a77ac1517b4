"""`memwatch wait --free SIZE -- CMD` waits for free memory; with --lease it reserves it for the program."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import NoReturn

import click
from msgspec import Struct

from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    build_context,
    check_shape,
    common,
    seconds_within,
)
from memwatch.cli.headroom import PlaceHeadroom, find_headroom, find_place, find_ram
from memwatch.cli.http import EXIT_FAILURE, EXIT_UNKNOWN, Address, CommandError, RequestDeclinedError, ask
from memwatch.cli.run import COMMAND, PASS_THROUGH, CommandNotRunError
from memwatch.core.leases import MAX_NAME_LENGTH, OWN_LEASE
from memwatch.core.linux.process_files import parse_stat
from memwatch.planning.arguments import InvalidInputError, parse_bytes
from memwatch.reporting.render import words as wording

LEASES = "/api/v1/leases"
# The lease is granted later: its limit is reached, or another program was faster.
CONFLICT = 409


class Wish(Struct, frozen=True):
    """Memory to wait for, and the program to start then. `lease_seconds`: None without a lease."""

    size: str
    need: int
    device: str | None
    certain: bool
    timeout: float | None
    lease_seconds: float | None
    command: tuple[str, ...]


@click.command(short_help="Wait for free memory, then run a program.", context_settings=PASS_THROUGH)
@click.option("--free", "size", required=True, metavar="SIZE", help="Amount, such as 20GiB.")
@click.option("--device", metavar="ID", help="Wait for this GPU instead of System RAM: gpu0, cuda:0 or a UUID.")
@click.option("--certain", is_flag=True, help="Count only memory that is free without reclaim of page cache.")
@click.option("--timeout", callback=seconds_within("1s", "366d", "10m"), help="Give up after this time.")
@click.option(
    "--lease",
    metavar="DURATION",
    callback=seconds_within("1s", "1h", "2m"),
    help="Reserve SIZE for COMMAND until it is allocated, for this time at most.",
)
@COMMAND
@common
def wait(
    size: str,
    device: str | None,
    certain: bool,
    timeout: float | None,
    lease: float | None,
    command: tuple[str, ...],
    url: Address | None,
    as_json: bool,
) -> int:
    """Wait until SIZE is available, then replace this process with COMMAND.

    In System RAM, the limit of this program's container, unit or job counts as well. Memory that is leased to
    others does not count. With --lease, SIZE is reserved in the daemon before COMMAND starts: of several waiting
    programs that fit only alone, one starts. The lease ends with its time, with COMMAND, or when COMMAND and its
    children have allocated SIZE.
    Exits with 1 after --timeout, 3 if the available memory is not known then, and 2 at once if SIZE exceeds the
    total.
    """
    try:
        need = parse_bytes(size, "--free")
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None
    if lease is not None and not command:
        raise click.UsageError(
            "--lease needs a COMMAND to reserve memory for; for example memwatch wait --free 20GiB --lease 2m "
            "-- python train.py"
        )
    wish = Wish(size, need, device, certain, timeout, lease, command)
    context = build_context(url, as_json)
    if lease is not None:
        ask(context.address, LEASES)  # without a daemon there are no leases, and memory is not read directly
    headroom, lease_id = wait_for(wish, context)
    if command:
        _exec(command, context.address, lease_id)
    answer = {"free_bytes": headroom.left_bytes, "free_certain_bytes": headroom.certain_bytes}
    context.show(answer, lambda: [headroom.left_words(certain)])
    return EXIT_OK


def wait_for(wish: Wish, context: ClientContext) -> tuple[PlaceHeadroom, str]:
    """Return the headroom once there is enough, and the id of the lease, empty without one."""
    until = None if wish.timeout is None else time.monotonic() + wish.timeout
    # With a COMMAND, stdout belongs to it, so messages are text even with --json.
    console = ClientContext(context.address, as_json=context.as_json and not wish.command)
    is_first, refusal = True, ""
    for answer in context.snapshots(1.0):
        with check_shape(context.address):
            snapshot = answer.snapshot
            console.print_simulated(is_first and snapshot.simulated)
            headroom = find_headroom(snapshot, wish.device)
            place = None if wish.device is None else find_place(snapshot, wish.device)
            target = place or find_ram(snapshot)
        is_first, lease_id = False, ""
        decisive = headroom.decisive_bytes(wish.certain)
        if decisive is not None and decisive >= wish.need:
            if wish.lease_seconds is not None:
                lease_id, refusal = request_lease(wish, target, context.address)
            if lease_id or wish.lease_seconds is None:
                return headroom, lease_id
        refuse_more_than_all(wish, headroom)
        if until is not None and time.monotonic() >= until:
            left = refusal or headroom.left_words(wish.certain)
            waited = wording.duration(wish.timeout or 0.0)
            code = EXIT_UNKNOWN if decisive is None else EXIT_FAILURE
            raise CommandError(f"{wish.size} did not become available within {waited}: {left}", code)
    raise CommandError("memwatchd sends no more snapshots; start it again")


def refuse_more_than_all(wish: Wish, headroom: PlaceHeadroom) -> None:
    """Raise UsageError if the size can never become available."""
    if headroom.whole_bytes is not None and wish.need > headroom.whole_bytes:
        missing = wording.size(wish.need - headroom.whole_bytes)
        raise click.UsageError(f'--free is "{wish.size}", but {headroom.whole_words}: short by {missing}')


def request_lease(wish: Wish, target: str, address: Address) -> tuple[str, str]:
    """Return the id of a granted lease, or an empty id and the reason. Raises RequestDeclinedError if waiting is no
    use."""
    pid, start_ticks = read_own_process()
    body = {
        "bytes": wish.need,
        "target": target,
        "seconds": wish.lease_seconds,
        "pid": pid,
        "start_ticks": start_ticks,
        "name": os.path.basename(wish.command[0])[:MAX_NAME_LENGTH],
        "certain": wish.certain,
    }
    try:
        found = ask(address, LEASES, "POST", body=body).json
    except RequestDeclinedError as error:
        if error.status != CONFLICT:
            raise
        return "", error.detail
    with check_shape(address):
        return str(found["id"]), ""


def read_own_process() -> tuple[int, int]:
    """Return the id and the start of this process, which COMMAND keeps."""
    try:
        with open("/proc/self/stat", "rb") as file:
            stat = parse_stat(file.read())
    except (OSError, ValueError) as error:
        raise CommandError(f"--lease needs /proc: {error}; run it on Linux, or without --lease") from None
    if stat is None:
        raise CommandError("--lease needs /proc: this process is not in it; run it without --lease")
    return os.getpid(), stat.start_ticks


def _exec(command: tuple[str, ...], address: Address, lease_id: str) -> NoReturn:
    sys.stdout.flush()
    if lease_id:
        os.environ[OWN_LEASE] = lease_id
    try:
        os.execvp(command[0], command)  # noqa: S606  as env and nice do
    except OSError as error:
        if lease_id:
            with suppress(CommandError):  # it also ends with this process
                ask(address, f"{LEASES}/{lease_id}", "DELETE")
        raise CommandNotRunError(command[0], error) from None
