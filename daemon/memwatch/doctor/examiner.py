"""Examination of one machine: the PCI bus, the latest snapshot, then the installed versions."""

from __future__ import annotations

from memwatch.doctor.checks import run_checks
from memwatch.doctor.known_issues import find_known_issues
from memwatch.doctor.model import Examination
from memwatch.doctor.unseen_gpus import find_unseen_gpus
from memwatch.doctor.versions import read_versions
from memwatch.linux.files import Roots
from memwatch.snapshot import Snapshot


class Examiner:
    """Runs all checks. Each run reads a few small files; nothing runs on a tick."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def examine(self, snapshot: Snapshot) -> Examination:
        unseen = find_unseen_gpus(self._roots, snapshot)
        return Examination((*unseen, *run_checks(snapshot), *find_known_issues(read_versions(self._roots))))
