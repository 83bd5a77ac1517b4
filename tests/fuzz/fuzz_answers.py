"""Answers to the library and to `memwatch`: records, lines, or not understood."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from fuzz.oracle import are_valid
from memwatch.cli import tables
from memwatch.cli.context import UnexpectedResponseError, check_shape
from memwatch.cli.holders import history_lines
from memwatch.cli.http import DEFAULT, parse_date
from memwatch.cli.incidents import event_lines
from memwatch.cli.machines import machine_lines, read_machines
from memwatch.cli.status import tree_lines
from memwatch.core.backends.model import Backends
from memwatch.core.collectors.containers import MAX_NAME_CHARACTERS, parse_containers
from memwatch.core.events import Event
from memwatch.core.linux.files import ParseError
from memwatch.core.printable import printable
from memwatch.core.snapshot_json import RECORDS, build_snapshot
from memwatch.library.machine_record import (
    ResponseDecodeError,
    decode_backends,
    decode_devices,
    decode_pools,
    decode_shares,
)
from memwatch.library.pressure_watch import parse_events
from memwatch.reporting.answers import Examination, History, Release
from memwatch_monitor.notify.http_post import MAX_RETRY_AFTER_SECONDS, retry_after_seconds

MAX_BYTES = 6000
HERE = DEFAULT
LINES: tuple[Callable[[Any], Iterable[str]], ...] = (
    lambda found: tree_lines(build_snapshot(found), 5.0),
    lambda found: tables.device_lines(build_snapshot(found)),
    lambda found: event_lines(RECORDS.decode(tuple[Event, ...], found)),
    lambda found: tables.backend_lines(RECORDS.decode(Backends, found)),
    lambda found: tables.check_lines(RECORDS.decode(Examination, found)),
    lambda found: tables.release_lines(RECORDS.decode(Release, found), 1.0),
    lambda found: machine_lines(read_machines(found)),
    lambda found: history_lines(RECORDS.decode(History, found)),
)


def check(data: bytes) -> None:
    events = list(parse_events(io.BytesIO(data)))
    assert len(events) <= data.count(b"\n") + 1
    header = data.decode("latin-1")
    assert 0 <= retry_after_seconds(header, 1.7e9) <= MAX_RETRY_AFTER_SECONDS
    parse_date(header)
    with suppress(ParseError):
        assert all(len(name) <= MAX_NAME_CHARACTERS for name in parse_containers(data).values())
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    library(found)
    for lines in LINES:
        with suppress(UnexpectedResponseError), check_shape(HERE):
            assert all(printable(line).isprintable() for line in lines(found))


def library(found: Any) -> None:
    places = found if isinstance(found, dict) else {}
    readers: dict[str, Callable[[Any], Any]] = {
        "pools": decode_pools,
        "shares": decode_shares,
        "devices": decode_devices,
    }
    for name, read in readers.items():
        with suppress(ResponseDecodeError):
            are_valid(read(places.get(name, found)))
    with suppress(ResponseDecodeError):
        decode_backends(found)
