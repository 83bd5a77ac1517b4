"""Examination of one machine: the PCI bus, the latest snapshot, then the installed versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memwatch.core.config_state import ConfigState
from memwatch.core.linux.files import Roots
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.doctor.checks import check_config, check_deliveries, check_locked_memory, run_checks
from memwatch.monitor.doctor.known_issues import find_known_issues
from memwatch.monitor.doctor.meminfo_lines import check_meminfo_lines
from memwatch.monitor.doctor.model import Examination
from memwatch.monitor.doctor.unseen_gpus import find_unseen_gpus
from memwatch.monitor.doctor.versions import read_versions


class Examiner:
    """Runs all checks. Each run reads a few small files; nothing runs on a tick."""

    def __init__(
        self,
        roots: Roots,
        lock_error: Callable[[], str | None] = lambda: None,
        config: Callable[[], ConfigState] = ConfigState,
        failed_deliveries: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`lock_error`: the reason why the daemon could not lock its memory; a command locks none.

        `config`: state of the daemon's configuration. `failed_deliveries`: a sentence for each failing receiver.
        """
        self._roots = roots
        self._lock_error = lock_error
        self._config = config
        self._failed_deliveries = failed_deliveries

    def examine(self, snapshot: Snapshot) -> Examination:
        unseen = find_unseen_gpus(self._roots, snapshot)
        locked = check_locked_memory(self._lock_error())
        issues = find_known_issues(read_versions(self._roots))
        lines = check_meminfo_lines(self._roots.procfs)
        config = check_config(self._config())
        deliveries = check_deliveries(self._failed_deliveries())
        return Examination((*config, *unseen, *run_checks(snapshot), *deliveries, *locked, *issues, *lines))
