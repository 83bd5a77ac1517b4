"""State of alerts and silences on disk: restored unchanged and displayable, or rejected; never another error."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

from fuzz.oracle import numbers_in
from memwatch.core.clock import Moment
from memwatch.core.silences import MAX_SECONDS, by_wall_clock
from memwatch.core.wire import rfc3339
from memwatch_monitor.alerts.persistence import (
    StateDecodeError,
    decode_alert_states,
    decode_silences,
    encode_alert_states,
    encode_silences,
)

NOW = Moment(monotonic=1000.0, boottime=1060.0, wall=1.7e9)
BOOT = "5b4e1c1e"


def check(data: bytes) -> None:
    with suppress(StateDecodeError):
        alert_states = decode_alert_states(data, NOW, BOOT)
        assert all(map(isfinite, numbers_in(alert_states)))
        assert all(rfc3339(watch.started_unix) for watch in alert_states.values())
        again = decode_alert_states(encode_alert_states(alert_states, NOW, BOOT), NOW, BOOT)
        assert again.keys() <= alert_states.keys()
    with suppress(StateDecodeError):
        silences = decode_silences(data, NOW, BOOT)
        assert decode_silences(encode_silences(silences, BOOT), NOW, BOOT) == silences
        for one in silences:
            assert NOW.boottime < one.until_boottime <= NOW.boottime + MAX_SECONDS
            assert rfc3339(one.until_unix)
            assert rfc3339(by_wall_clock(one, NOW).until_unix)
            assert rfc3339(by_wall_clock(one, NOW).created_unix)
