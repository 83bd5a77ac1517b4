"""`memwatch record`: the snapshots of a daemon in a file, for a bug report or a replay."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import click

from memwatch.cli.context import build_context, check_shape, common, seconds_within
from memwatch.cli.http import Address, CommandError, DaemonResponse, DaemonUnreachableError, ask
from memwatch.core.printable import describe_error
from memwatch.core.runtime.own_files import remedy_to_write
from memwatch.core.snapshot_json import MAX_INTERVAL, MIN_INTERVAL
from memwatch.core.wire import Json
from memwatch.reporting.recording import RecordingError, RecordingFile, Redactor
from memwatch.reporting.render import words as wording

# Time to wait for a daemon that restarts.
RECONNECT_SECONDS = 30.0


class SnapshotRedactor(Protocol):
    """Redacts the JSON of snapshots, with the same words in each."""

    def redact(self, snapshot: Json) -> Json: ...


class Recorded(NamedTuple):
    """Number of recorded snapshots. `interrupted_after`: seconds until Ctrl-C, None if it was not interrupted."""

    snapshots: int
    interrupted_after: float | None = None


@click.command(short_help="Record the snapshots of a daemon.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "24h", "10m"),
    default="10m",
    metavar="DURATION",
    help="Duration, 1s to 24h; Ctrl-C ends it early.  [default: 10m]",
)
@click.option("--redact", is_flag=True, help="Hide names and ids of hosts, users, programs, units and devices.")
@common
def record(file: Path, seconds: float, redact: bool, url: Address | None, as_json: bool) -> int:
    """Record each snapshot of a daemon to FILE. memwatchd --replay FILE plays it.

    Appends to an existing recording.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = build_context(url, as_json)
    count = write_recording(context.address, file, seconds, Redactor() if redact else None).snapshots
    found = {"file": str(file), "snapshots": count, "redacted": redact}
    line = f"{wording.count(count, 'snapshot')} in {file}; play it with: memwatchd --replay {file}"
    return context.show(found, lambda: [line])


def write_recording(address: Address, path: Path, seconds: float, redactor: SnapshotRedactor | None) -> Recorded:
    """Record for `seconds` or until interrupted. Raise CommandError on failure."""
    first = ask(address, "/api/v1/snapshot")
    try:
        with check_shape(address):
            host = str(first.json["host"])
        file = RecordingFile(path, host="host-1" if redactor else host, redacted=redactor is not None)
    except RecordingError as error:
        raise CommandError(str(error)) from None
    began, interrupted_after = time.monotonic(), None
    try:
        try:
            _follow(address, first, file, redactor, began + seconds)
        except KeyboardInterrupt:
            interrupted_after = time.monotonic() - began
        file.close()
    except OSError as error:
        raise CommandError(
            f"recording to {path} failed after {wording.count(file.lines - 1, 'snapshot')}: "
            f"{describe_error(error)}; {remedy_to_write(error)}"
        ) from None
    return Recorded(file.lines - 1, interrupted_after)


def _follow(
    address: Address,
    answer: DaemonResponse | None,
    file: RecordingFile,
    redactor: SnapshotRedactor | None,
    end: float,
) -> None:
    seen, interval = -1.0, 1.0
    while True:
        if answer is not None and (times := _times(address, answer))[0] != seen:
            seen, interval = times
            with check_shape(address):
                found = redactor.redact(answer.json) if redactor else answer.json
                line = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
            file.write(line)
        if time.monotonic() + interval >= end:
            return
        time.sleep(interval)
        answer = _reconnect(address, end)


def _times(address: Address, answer: DaemonResponse) -> tuple[float, float]:
    """Return the time of a snapshot and the daemon's interval."""
    with check_shape(address):
        unix, interval = float(answer.json["unix"]), float(answer.json["interval_seconds"])
        if not MIN_INTERVAL <= interval <= MAX_INTERVAL:
            raise ValueError(f"interval_seconds is {interval:g}")
        return unix, interval


def _reconnect(address: Address, end: float) -> DaemonResponse | None:
    """Return the next snapshot. Retry for RECONNECT_SECONDS while the daemon restarts."""
    until = min(end, time.monotonic() + RECONNECT_SECONDS)
    while time.monotonic() < until:
        with suppress(DaemonUnreachableError):
            return ask(address, "/api/v1/snapshot")
        time.sleep(0.5)
    return ask(address, "/api/v1/snapshot")
