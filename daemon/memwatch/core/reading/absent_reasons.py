"""Reasons for absent fields that a single collector provides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memwatch.core.collectors import COLLECTORS
from memwatch.core.linux.files import NOT_PERMITTED
from memwatch.core.model import Absent
from memwatch.core.snapshot import CollectorStatus

COLLECTOR_OF: Mapping[str, str] = {field: one.name for one in COLLECTORS for field in one.sole_fields}
# The collector of other systems than Linux; those above do not run there.
NOT_LINUX = "psutil_host"


def find_absent_reasons(fields: Iterable[str], statuses: Sequence[CollectorStatus]) -> dict[str, Absent]:
    """Return why each of these snapshot fields is absent, based on the state of its collector.

    "Unavailable" means that the machine does not support the value or denies access to it. A collector that fails,
    has not finished its first run or is disabled might still provide it: "not available".
    """
    by_name = {one.name: one for one in statuses}
    return {field: _reason(by_name.get(COLLECTOR_OF[field]), NOT_LINUX in by_name) for field in fields}


def _reason(status: CollectorStatus | None, elsewhere: bool) -> Absent:
    if status is None:
        return Absent.NOT_SUPPORTED if elsewhere else Absent.NOT_AVAILABLE
    if status.state != "unavailable":
        return Absent.NOT_AVAILABLE
    return Absent.NOT_PERMITTED if NOT_PERMITTED in (status.error or "") else Absent.NOT_SUPPORTED
