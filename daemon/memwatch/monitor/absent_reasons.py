"""Why a figure is not there that one collector alone could have had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memwatch.collectors import COLLECTORS
from memwatch.linux.files import NOT_PERMITTED
from memwatch.model import Absent
from memwatch.snapshot import CollectorStatus

COLLECTOR_OF: Mapping[str, str] = {field: kind.name for kind in COLLECTORS for field in kind.sole_fields}
# The collector of systems that are not Linux, where none of those above is.
NOT_LINUX = "psutil_host"


def find_absent_reasons(fields: Iterable[str], statuses: Sequence[CollectorStatus]) -> dict[str, Absent]:
    """Why each of these fields of a snapshot has no figure, by how its collector does.

    A machine that does not have what a collector reads has no such figure. One that fails, has not answered yet or
    is switched off might have one.
    """
    by_name = {one.name: one for one in statuses}
    return {field: _reason(by_name.get(COLLECTOR_OF[field]), NOT_LINUX in by_name) for field in fields}


def _reason(status: CollectorStatus | None, elsewhere: bool) -> Absent:
    if status is None:
        return Absent.NOT_SUPPORTED if elsewhere else Absent.NOT_AVAILABLE
    if status.state != "unavailable":
        return Absent.NOT_AVAILABLE
    return Absent.NOT_PERMITTED if NOT_PERMITTED in (status.error or "") else Absent.NOT_SUPPORTED
