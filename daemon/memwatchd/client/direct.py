"""The same answers without a daemon: this machine is read once, with the settings a daemon would have."""

from __future__ import annotations

import os
from typing import Any

from memwatch.backends.finder import Finder
from memwatch.doctor.examiner import Examiner
from memwatch_web.as_json import backends_json, examination_json, snapshot_json
from memwatchd import wiring
from memwatchd.client.failure import Failure
from memwatchd.reading import read_machine
from memwatchd.settings.model import Settings
from memwatchd.settings.sources import BadSettings, load

Json = dict[str, Any]


def settings_here() -> Settings:
    """From /etc/memwatchd/memwatchd.toml and the environment."""
    try:
        return load({}, os.environ)
    except BadSettings as error:
        raise Failure(f"the settings of memwatchd cannot be used: {error}") from None


def snapshot() -> Json:
    return snapshot_json(read_machine(settings_here()))


def doctor() -> Json:
    settings = settings_here()
    return examination_json(Examiner(wiring.roots_of(settings)).examine(read_machine(settings)))


def backends() -> Json:
    settings = settings_here()
    return backends_json(Finder(wiring.roots_of(settings)).find(read_machine(settings)))
