"""Result of a collector as the sampler publishes it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from memwatch.core.findings import Findings
from memwatch.core.model import Absent
from memwatch.core.snapshot import CollectorState


class CollectorResult(Struct, frozen=True):
    """Latest result of a collector. It is replaced as a whole, so that other threads never see a partial one.

    `succeeded_at` and `overdue_at` are monotonic seconds.
    """

    state: CollectorState = "starting"
    findings: Findings = Findings()
    succeeded_at: float | None = None
    succeeded_unix: float | Absent = Absent.NOT_AVAILABLE
    duration_seconds: float | Absent = Absent.NOT_AVAILABLE
    error: str | None = None
    errors: Mapping[str, int] = {}
    overdue_at: float = math.inf
