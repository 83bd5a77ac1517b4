"""State of alerts and silences on disk: restored unchanged and displayable, or rejected; never another error."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

from fuzz.oracle import numbers_in
from memwatch.alerts.persistence import (
    StateDecodeError,
    decode_alert_states,
    decode_silences,
    encode_alert_states,
    encode_silences,
)
from memwatch.clock import Moment
from memwatch.render.json import rfc3339

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
        silences = decode_silences(data, NOW.wall)
        assert decode_silences(encode_silences(silences), NOW.wall) == silences
        assert all(rfc3339(one.until_unix) and one.until_unix > NOW.wall for one in silences)
