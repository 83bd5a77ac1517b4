"""Alerts and silences as they are taken up after a restart, whatever clocks and files have done meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.alerts.persistence import (
    BadState,
    silences_from_bytes,
    silences_to_bytes,
    watches_from_bytes,
    watches_to_bytes,
)
from memwatch.alerts.silences import Silence
from memwatch.alerts.state import Key, Watch
from memwatch.clock import Moment
from memwatch.snapshot import Level, Reason

STOPPED = Moment(monotonic=1000.0, boottime=1500.0, wall=1e9)
FIRING = Watch(
    firing=True,
    before=Level.HIGH,
    fired_at=900.0,
    said_at=900.0,
    told=True,
    seen_at=999.0,
    started_unix=1e9 - 100,
    reasons=(Reason("util", "96.2% used"),),
)
PENDING = Watch(since=998.0, before=Level.MEDIUM)
WATCHES: dict[Key, Watch] = {("pressure.critical", "ram"): FIRING, ("pressure.critical", "gpu0.vram"): PENDING}


def test_alerts_go_on_where_they_were() -> None:
    """Five seconds later, after the same boot, what fires fires since then, and what is pending goes on waiting."""
    started = Moment(monotonic=1005.0, boottime=1505.0, wall=1e9 + 5)

    found = watches_from_bytes(watches_to_bytes(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")] == replace(FIRING, seen_at=1005.0)
    assert found[("pressure.critical", "gpu0.vram")] == PENDING


def test_wall_clock_and_suspend_change_nothing() -> None:
    """Set to 1970, slept for an hour: times count from boot."""
    started = Moment(monotonic=1005.0, boottime=5105.0, wall=3.0)

    found = watches_from_bytes(watches_to_bytes(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")].said_at == pytest.approx(900.0 - 3600.0)
    assert found[("pressure.critical", "gpu0.vram")].since == pytest.approx(998.0 - 3600.0)


def test_after_another_boot_what_fires_still_fires() -> None:
    """A machine that was reset tells the end of its alert; what was only about to fire begins anew."""
    started = Moment(monotonic=20.0, boottime=20.0, wall=1e9 + 60)

    found = watches_from_bytes(watches_to_bytes(WATCHES, STOPPED, "boot"), started, "another boot")

    firing = found[("pressure.critical", "ram")]
    assert (firing.firing, firing.told, firing.fired_at) == (True, True, 20.0)
    assert found[("pressure.critical", "gpu0.vram")].since is None


def test_nothing_is_remembered_of_what_was_calm() -> None:
    """A quiet machine writes the same few bytes for ever."""
    calm: dict[Key, Watch] = {("pressure.critical", "ram"): Watch(before=Level.MEDIUM)}
    later = Moment(monotonic=2000.3, boottime=2500.3001, wall=1e9)

    assert watches_to_bytes(calm, STOPPED, "b") == watches_to_bytes({}, later, "b")
    assert watches_to_bytes(WATCHES, STOPPED, "b") == watches_to_bytes(WATCHES, later, "b")


def test_silences_come_back_until_they_end() -> None:
    """A silence of an hour is an hour long, whatever was restarted meanwhile."""
    silence = Silence("sil_1", until_unix=3600.0, created_unix=0.0, target="ram", comment="loading")
    data = silences_to_bytes((silence,))

    assert silences_from_bytes(data, unix=3599.0) == (silence,)
    assert silences_from_bytes(data, unix=3600.0) == ()


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_state_or_refused(data: bytes) -> None:
    """No content whatever raises anything but BadState."""
    with suppress(BadState):
        assert watches_from_bytes(data, STOPPED, "boot") == {}
    with suppress(BadState):
        assert silences_from_bytes(data, 0.0) == ()


@given(st.sampled_from(["firing", "since", "before", "started_unix", "reasons", "rule", "told"]), ANY_JSON)
def test_any_value_in_an_alert_is_taken_or_refused(name: str, value: object) -> None:
    """One field that is anything: the alerts are read, or refused as a whole."""
    state = json.loads(watches_to_bytes(WATCHES, STOPPED, "boot"))
    state["watches"][0][name] = value

    try:
        found = watches_from_bytes(json.dumps(state).encode(), STOPPED, "boot")
    except BadState:
        return

    assert all(isinstance(watch, Watch) for watch in found.values())
