"""Responses without a daemon: read this machine directly, with the settings of a daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from memwatch.backends.finder import Finder
from memwatch.clock import SystemClock
from memwatch.doctor.examiner import Examiner
from memwatch.monitor.loop import Monitor
from memwatch.monitor.sampler import Sampler
from memwatch.planning.answer import FitAnswer
from memwatch.render.json import backends_json, examination_json, fit_json, snapshot_json
from memwatch.snapshot import Snapshot
from memwatchd import wiring
from memwatchd.client.errors import CommandError
from memwatchd.first_tick import first_tick, read_machine
from memwatchd.settings.load import SettingsError, load
from memwatchd.settings.schema import Settings

Json = dict[str, Any]


def settings_here() -> Settings:
    """Load the settings from /etc/memwatchd/memwatchd.toml and the environment."""
    try:
        return load({}, os.environ)
    except SettingsError as error:
        raise CommandError(f"invalid memwatchd settings: {error}") from None


def snapshot() -> Json:
    return snapshot_json(read_machine(settings_here()))


def snapshots(interval_seconds: float) -> Iterator[Json]:
    """Yield snapshots. The collectors stay open in between."""
    settings = settings_here()
    roots, clock = wiring.build_roots(settings), SystemClock()
    sampler = Sampler(wiring.list_enabled_collectors(settings), clock)
    monitor = Monitor(sampler, clock, wiring.build_rules(settings), wiring.read_identity(roots))
    sampler.start()
    try:
        yield snapshot_json(first_tick(sampler, monitor))
        while True:
            time.sleep(interval_seconds)
            yield snapshot_json(monitor.tick())
    finally:
        sampler.stop()


def fit(answer: Callable[[Snapshot], FitAnswer]) -> Json:
    return fit_json(answer(read_machine(settings_here())))


def doctor() -> Json:
    settings = settings_here()
    return examination_json(Examiner(wiring.build_roots(settings)).examine(read_machine(settings)))


def backends() -> Json:
    settings = settings_here()
    return backends_json(Finder(wiring.build_roots(settings)).find(read_machine(settings)))
