"""Responses without a daemon: read this machine directly, with the settings of memwatchd if it is installed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec

from memwatch.cli.http import CommandError
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import Roots
from memwatch.core.reading.machine import DirectReading, read_machine
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Json
from memwatch.library.daemon_client import read_roots
from memwatch.planning.answer import FitAnswer


def load_reading() -> DirectReading:
    """Return a direct reading of this machine. Without memwatchd it has all collectors and the default rules.

    Not an import statement: this package does not depend on memwatchd, which depends on it.
    """
    if find_spec("memwatchd") is not None:
        loaded: DirectReading = import_module("memwatchd.wiring").load_reading()
        return loaded
    return default_reading()


def load_reading_despite_settings() -> tuple[DirectReading, str]:
    """Return a direct reading, with the default rules if the settings are invalid, and what is wrong with them."""
    try:
        return load_reading(), ""
    except CommandError as error:
        return default_reading(), str(error)


def default_reading() -> DirectReading:
    roots = Roots(*read_roots(os.environ))
    return DirectReading(roots, list_collectors(Host(roots)))


def snapshot(reading: DirectReading | None = None) -> Snapshot:
    return read_machine(reading or load_reading())


def snapshots(interval_seconds: float, reading: DirectReading | None = None) -> Iterator[Snapshot]:
    """Yield snapshots. The collectors stay open in between."""
    for found in (reading or load_reading()).snapshots():
        yield found
        time.sleep(interval_seconds)


def fit(answer: Callable[[Snapshot], FitAnswer]) -> Json:
    from memwatch.reporting.render.fit_json import fit_json  # with the planner

    return fit_json(answer(read_machine(load_reading())))


def doctor(reading: DirectReading | None = None) -> Json:
    from memwatch.reporting.doctor.examiner import Examiner
    from memwatch.reporting.render.json import WIRE

    reading = reading or load_reading()
    return WIRE.encode(Examiner(reading.roots).examine(read_machine(reading)))


def backends() -> Json:
    from memwatch.core.backends.finder import Finder
    from memwatch.reporting.render.json import WIRE

    reading = load_reading()
    return WIRE.encode(Finder(reading.roots).find(read_machine(reading)))
