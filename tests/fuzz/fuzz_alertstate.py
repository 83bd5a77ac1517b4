"""State of alerts and silences on disk: restored unchanged and displayable, or rejected; never another error."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

from fuzz.oracle import numbers_in
from memwatch.alerts.persistence import (
    BadState,
    silences_from_bytes,
    silences_to_bytes,
    watches_from_bytes,
    watches_to_bytes,
)
from memwatch.clock import Moment
from memwatch.render.json import rfc3339

NOW = Moment(monotonic=1000.0, boottime=1060.0, wall=1.7e9)
BOOT = "5b4e1c1e"


def check(data: bytes) -> None:
    with suppress(BadState):
        watches = watches_from_bytes(data, NOW, BOOT)
        assert all(map(isfinite, numbers_in(watches)))
        assert all(rfc3339(watch.started_unix) for watch in watches.values())
        again = watches_from_bytes(watches_to_bytes(watches, NOW, BOOT), NOW, BOOT)
        assert again.keys() <= watches.keys()
    with suppress(BadState):
        silences = silences_from_bytes(data, NOW.wall)
        assert silences_from_bytes(silences_to_bytes(silences), NOW.wall) == silences
        assert all(rfc3339(one.until_unix) and one.until_unix > NOW.wall for one in silences)
