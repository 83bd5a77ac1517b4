"""Examines one machine: what the latest tick shows, then what is installed."""

from __future__ import annotations

from memwatch.collector import Roots
from memwatch.doctor.installed import installed
from memwatch.doctor.known import known_bad
from memwatch.doctor.model import Examination
from memwatch.doctor.seen import seen
from memwatch.snapshot import Snapshot


class Examiner:
    """Reads some small files each time it is asked; nothing of it happens on a tick."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def examine(self, snapshot: Snapshot) -> Examination:
        return Examination((*seen(snapshot), *known_bad(installed(self._roots))))
