"""Fields of a snapshot that come from the findings of a tick."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from memwatch.core.accounting.tegra import build_tegrastats
from memwatch.core.findings import Findings
from memwatch.core.reading.absent_reasons import COLLECTOR_OF, find_absent_reasons
from memwatch.core.snapshot import CollectorStatus, Machine, Snapshot

# Copied unchanged.
COPIED = tuple(
    name for name in Snapshot.__struct_fields__ if name in Findings.__struct_fields__ and name != "tegrastats"
)
copied_of: attrgetter[tuple[Any, ...]] = attrgetter(*COPIED)


def build_fields(findings: Findings, statuses: Sequence[CollectorStatus]) -> dict[str, Any]:
    """Return the fields that were found, and a reason for each other one that a single collector provides."""
    fields = zip(COPIED, copied_of(findings), strict=True)
    found: dict[str, Any] = {name: value for name, value in fields if value is not None}
    if (tegrastats := build_tegrastats(findings)) is not None:
        found["tegrastats"] = tegrastats
    found.setdefault("machine", Machine())
    return found | find_absent_reasons(COLLECTOR_OF.keys() - found.keys(), statuses)
