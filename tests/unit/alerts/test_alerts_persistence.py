"""Test how alerts and silences are restored after a restart, whatever clocks and files did meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.alerts.persistence import (
    StateDecodeError,
    decode_alert_states,
    decode_silences,
    encode_alert_states,
    encode_silences,
)
from memwatch.alerts.silences import Silence
from memwatch.alerts.state import AlertState, Key
from memwatch.clock import Moment
from memwatch.snapshot import Level, Reason

STOPPED = Moment(monotonic=1000.0, boottime=1500.0, wall=1e9)
FIRING = AlertState(
    firing=True,
    before=Level.HIGH,
    fired_at=900.0,
    notified_at=900.0,
    notified=True,
    seen_at=999.0,
    started_unix=1e9 - 100,
    reasons=(Reason("util", "96.2% used"),),
)
PENDING = AlertState(since=998.0, before=Level.MEDIUM)
WATCHES: dict[Key, AlertState] = {("pressure.critical", "ram"): FIRING, ("pressure.critical", "gpu0.vram"): PENDING}


def test_alerts_resume_after_a_restart() -> None:
    """Five seconds later in the same boot, firing alerts keep their start and pending ones keep their wait."""
    started = Moment(monotonic=1005.0, boottime=1505.0, wall=1e9 + 5)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")] == replace(FIRING, seen_at=1005.0)
    assert found[("pressure.critical", "gpu0.vram")] == PENDING


def test_wall_clock_is_ignored_and_suspend_counts_as_time() -> None:
    """The clock set to 1970 and one hour of suspend: times count from boot."""
    started = Moment(monotonic=1005.0, boottime=5105.0, wall=3.0)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")].notified_at == pytest.approx(900.0 - 3600.0)
    assert found[("pressure.critical", "gpu0.vram")].since == pytest.approx(998.0 - 3600.0)


def test_firing_alerts_survive_a_reboot() -> None:
    """After a reset the end of the alert is still sent; the wait of a pending alert starts again."""
    started = Moment(monotonic=20.0, boottime=20.0, wall=1e9 + 60)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "another boot")

    firing = found[("pressure.critical", "ram")]
    assert (firing.firing, firing.notified, firing.fired_at) == (True, True, 20.0)
    assert found[("pressure.critical", "gpu0.vram")].since is None


def test_calm_targets_are_not_written() -> None:
    """A calm machine writes the same few bytes every time."""
    calm: dict[Key, AlertState] = {("pressure.critical", "ram"): AlertState(before=Level.MEDIUM)}
    later = Moment(monotonic=2000.3, boottime=2500.3001, wall=1e9)

    assert encode_alert_states(calm, STOPPED, "b") == encode_alert_states({}, later, "b")
    assert encode_alert_states(WATCHES, STOPPED, "b") == encode_alert_states(WATCHES, later, "b")


def test_silences_are_restored_until_they_end() -> None:
    """A silence of one hour lasts one hour, across restarts."""
    silence = Silence("sil_1", until_unix=3600.0, created_unix=0.0, target="ram", comment="loading")
    data = encode_silences((silence,))

    assert decode_silences(data, unix=3599.0) == (silence,)
    assert decode_silences(data, unix=3600.0) == ()


def test_state_of_another_version_is_read() -> None:
    """New fields are ignored, missing ones get their default."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    for watch in state["watches"]:
        watch["acknowledged"] = {"by": "ada"}
        del watch["started_unix"], watch["reasons"], watch["said_at"]
    silence = Silence("sil_1", until_unix=3600.0, created_unix=0.0)
    muted = json.dumps({"silences": [{"id": "sil_1", "until_unix": 3600.0, "created_unix": 0.0, "fuzzy": True}]})

    found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")

    assert found.keys() == WATCHES.keys()
    assert found["pressure.critical", "ram"].firing
    assert found["pressure.critical", "ram"].reasons == ()
    assert decode_silences(muted.encode(), unix=0.0) == (silence,)


def test_unreadable_entry_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the number."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    state["watches"].append({"rule": "pressure.critical", "target": "swap"})
    muted = {"silences": [{"id": "sil_1", "until_unix": 3600.0, "created_unix": 0.0}, {"id": "sil_2"}, None]}

    found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")
    silences = decode_silences(json.dumps(muted).encode(), unix=0.0)

    assert found.keys() == WATCHES.keys()
    assert [silence.id for silence in silences] == ["sil_1"]
    assert [record.getMessage() for record in caplog.records] == [
        "saved alerts that cannot be read by this version and are discarded: 1",
        "saved silences that cannot be read by this version and are discarded: 2",
    ]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_bytes_are_read_or_rejected(data: bytes) -> None:
    """No content raises anything except StateDecodeError."""
    with suppress(StateDecodeError):
        assert decode_alert_states(data, STOPPED, "boot") == {}
    with suppress(StateDecodeError):
        assert decode_silences(data, 0.0) == ()


@given(st.sampled_from(["firing", "since", "before", "started_unix", "reasons", "rule", "told"]), ANY_JSON)
def test_arbitrary_field_is_read_or_rejected(name: str, value: object) -> None:
    """With an arbitrary value in one field, the alerts are read, or rejected as a whole."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    state["watches"][0][name] = value

    try:
        found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")
    except StateDecodeError:
        return

    assert all(isinstance(watch, AlertState) for watch in found.values())
