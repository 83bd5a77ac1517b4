"""Test how alerts and silences are restored after a restart, whatever clocks and files did meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from memwatch.core.clock import Moment
from memwatch.core.silences import MAX_SECONDS, Silence, by_wall_clock
from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.alerts.notification import Key
from memwatch_monitor.alerts.persistence import (
    MAX_UNREAD,
    UNREAD,
    StateDecodeError,
    decode_alert_states,
    decode_silences,
    encode_alert_states,
    encode_silences,
)
from memwatch_monitor.alerts.rules import AlertRules, evaluate_rules
from memwatch_monitor.alerts.state import AlertState, step
from support.sample_snapshots import calm_workstation

STOPPED = Moment(monotonic=1000.0, boottime=1500.0, wall=1e9)
FIRING = AlertState(
    firing=True,
    before=Level.HIGH,
    fired_at=900.0,
    notified_at=900.0,
    notified=True,
    seen_at=999.0,
    started_unix=1e9 - 100,
    reasons=(Reason("util", "96.2% used", Level.CRITICAL), Reason("psi", "some tasks wait")),
    said={"util": Level.CRITICAL},
    news=(Reason("floor", "the last 200 MiB", Level.CRITICAL),),
    news_at={"floor": 950.0},
    ended_at=880.0,
    returned=True,
    source="meminfo",
)
# Of one alert in the saved state.
FIELDS = (
    *("firing", "since", "before", "started_unix", "reasons", "rule", "told", "levels", "said", "news"),
    "news_at",
    *("news_levels", "ended_at", "returned", "source", "wait", "left_out"),
)
PENDING = AlertState(since=998.0, before=Level.MEDIUM, source="nvml", wait_seconds=60.0)
WATCHES: dict[Key, AlertState] = {("pressure.critical", "ram"): FIRING, ("pressure.critical", "gpu0.vram"): PENDING}


def test_alerts_resume_after_a_restart() -> None:
    """Five seconds later in the same boot, firing alerts keep their start and pending ones keep their wait."""
    started = Moment(monotonic=1005.0, boottime=1505.0, wall=1e9 + 5)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")] == replace(FIRING, seen_at=1005.0)
    assert found[("pressure.critical", "gpu0.vram")] == replace(PENDING, seen_at=1005.0)


def test_wall_clock_is_ignored_and_suspend_counts_as_time() -> None:
    """The clock set to 1970 and one hour of suspend: times count from boot."""
    started = Moment(monotonic=1005.0, boottime=5105.0, wall=3.0)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "boot")

    assert found[("pressure.critical", "ram")].notified_at == pytest.approx(900.0 - 3600.0)
    assert found[("pressure.critical", "ram")].news_at == {"floor": pytest.approx(950.0 - 3600.0)}
    assert found[("pressure.critical", "gpu0.vram")].since == pytest.approx(998.0 - 3600.0)


def test_firing_alerts_survive_a_reboot() -> None:
    """After a reset the end of the alert is still sent; the wait of a pending alert starts again."""
    started = Moment(monotonic=20.0, boottime=20.0, wall=1e9 + 60)

    found = decode_alert_states(encode_alert_states(WATCHES, STOPPED, "boot"), started, "another boot")

    firing = found[("pressure.critical", "ram")]
    assert (firing.firing, firing.notified, firing.fired_at) == (True, True, 20.0)
    assert found[("pressure.critical", "gpu0.vram")].since is None


def test_event_that_waits_is_sent_after_a_reboot() -> None:
    """A power failure within five minutes after the notification of an earlier kill loses no later kill."""
    kills: dict[Key, AlertState] = {
        ("kernel.oom_kill", "kernel"): AlertState(
            since=990.0, notified_at=900.0, reasons=(Reason("oom_kill", "killed python3"),), left_out=7
        )
    }
    started = Moment(monotonic=20.0, boottime=20.0, wall=1e9 + 60)
    states = decode_alert_states(encode_alert_states(kills, STOPPED, "boot"), started, "another boot")

    conditions = evaluate_rules(calm_workstation(), (), AlertRules(events=frozenset({"kernel.oom_kill"})))
    _, (found,) = step(states, conditions, 21.0, 1e9, AlertRules(), lambda: "msg_1")

    assert [why.text for why in found.reasons] == ["7 earlier events are left out", "killed python3"]


def test_high_memory_of_a_collector_is_remembered_within_a_boot() -> None:
    """memwatchd is killed, and the driver hangs when it starts again. After a reboot the memory is empty."""
    remembered: dict[Key, AlertState] = {
        ("collector.failed", "nvml"): AlertState(before=Level.HIGH),
        ("collector.failed", "meminfo"): AlertState(before=Level.MEDIUM),
    }
    data = encode_alert_states(remembered, STOPPED, "boot")
    started = Moment(monotonic=1005.0, boottime=1505.0, wall=1e9 + 5)

    assert decode_alert_states(data, started, "boot") == {
        ("collector.failed", "nvml"): AlertState(before=Level.HIGH)
    }
    assert decode_alert_states(data, started, "another boot") == {("collector.failed", "nvml"): AlertState()}


def test_calm_targets_are_not_written() -> None:
    """A calm machine writes the same few bytes every time."""
    calm: dict[Key, AlertState] = {("pressure.critical", "ram"): AlertState(before=Level.MEDIUM)}
    later = Moment(monotonic=2000.3, boottime=2500.3001, wall=1e9)

    assert encode_alert_states(calm, STOPPED, "b") == encode_alert_states({}, later, "b")
    assert encode_alert_states(WATCHES, STOPPED, "b") == encode_alert_states(WATCHES, later, "b")


HOUR, DAY = 3600.0, 86_400.0
SILENCE = Silence(
    "sil_1", STOPPED.wall + HOUR, STOPPED.wall, STOPPED.boottime + HOUR, target="ram", comment="loading"
)


def after(seconds: float, wall_set_by: float = 0.0) -> Moment:
    """Return the time in the same boot, with a wall clock that was set meanwhile."""
    wall = STOPPED.wall + seconds + wall_set_by
    return Moment(monotonic=STOPPED.monotonic + seconds, boottime=STOPPED.boottime + seconds, wall=wall)


@pytest.mark.parametrize("wall_set_by", [0.0, -2 * DAY, 2 * DAY, -STOPPED.wall])
def test_silence_ends_on_time_whatever_the_wall_clock_is_set_to(wall_set_by: float) -> None:
    """A silence of one hour lasts one hour, across restarts of the daemon in the same boot."""
    data = encode_silences((SILENCE,), "boot")

    assert decode_silences(data, after(HOUR - 1, wall_set_by), "boot") == (SILENCE,)
    assert decode_silences(data, after(HOUR, wall_set_by), "boot") == ()


@pytest.mark.parametrize(
    ("wall", "seconds_left"),
    [(STOPPED.wall + 600, HOUR - 600), (STOPPED.wall - 2 * DAY, HOUR), (STOPPED.wall + HOUR, None)],
)
@pytest.mark.parametrize("boots", [("boot", "another boot"), ("unknown", "unknown")])
def test_silence_lasts_by_the_wall_clock_after_a_reboot(
    boots: tuple[str, str], wall: float, seconds_left: float | None
) -> None:
    """A wall clock that is behind extends no silence beyond its whole duration."""
    booted = Moment(monotonic=20.0, boottime=20.0, wall=wall)

    found = decode_silences(encode_silences((SILENCE,), boots[0]), booted, boots[1])

    assert [one.until_boottime - 20.0 for one in found] == ([] if seconds_left is None else [seconds_left])


def test_silence_of_an_earlier_version_is_restored() -> None:
    """It has no boot time, so the wall clock counts."""
    state = {"silences": [{name: value for name, value in asdict(SILENCE).items() if name != "until_boottime"}]}

    (found,) = decode_silences(json.dumps(state).encode(), after(600.0), "boot")

    assert found == SILENCE


def test_displayed_end_of_a_silence_follows_the_wall_clock() -> None:
    """The times are those stored until the clock is set, then they move along."""
    behind = by_wall_clock(SILENCE, after(600.0, wall_set_by=-DAY))

    assert by_wall_clock(SILENCE, after(600.0, wall_set_by=0.2)) is SILENCE
    assert behind == replace(SILENCE, until_unix=SILENCE.until_unix - DAY, created_unix=SILENCE.created_unix - DAY)


def test_state_of_another_version_is_read() -> None:
    """New fields are ignored, missing ones get their default."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    for watch in state["watches"]:
        watch["acknowledged"] = {"by": "ada"}
        del watch["started_unix"], watch["reasons"], watch["said_at"]
    times = {"until_unix": STOPPED.wall + HOUR, "created_unix": STOPPED.wall}
    muted = json.dumps({"silences": [{"id": "sil_1", **times, "fuzzy": True}]})

    found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")

    assert found.keys() == WATCHES.keys()
    assert found["pressure.critical", "ram"].firing
    assert found["pressure.critical", "ram"].reasons == ()
    assert decode_silences(muted.encode(), STOPPED, "boot") == (
        Silence("sil_1", STOPPED.wall + HOUR, STOPPED.wall, STOPPED.boottime + HOUR),
    )


def test_unreadable_entry_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the number."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    state["watches"].append({"rule": "pressure.critical", "target": "swap"})
    times = {"until_unix": STOPPED.wall + HOUR, "created_unix": STOPPED.wall}
    muted = {"silences": [{"id": "sil_1", **times}, {"id": "sil_2"}, None]}

    found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")
    silences = decode_silences(json.dumps(muted).encode(), STOPPED, "boot")

    assert found.keys() == WATCHES.keys()
    assert [silence.id for silence in silences] == ["sil_1"]
    assert [record.getMessage() for record in caplog.records] == [
        "saved alerts that this version cannot read; they are kept for the one that wrote them: 1",
        "saved silences that this version cannot read; they are kept for the one that wrote them: 2",
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
        assert decode_silences(data, STOPPED, "boot") == ()


@given(st.sampled_from(FIELDS), ANY_JSON)
def test_arbitrary_field_is_read_or_rejected(name: str, value: object) -> None:
    """With an arbitrary value in one field, the alerts are read, or rejected as a whole."""
    state = json.loads(encode_alert_states(WATCHES, STOPPED, "boot"))
    state["watches"][0][name] = value

    try:
        found = decode_alert_states(json.dumps(state).encode(), STOPPED, "boot")
    except StateDecodeError:
        return

    assert all(isinstance(watch, AlertState) for watch in found.values())


def test_unreadable_entries_return_to_the_version_that_wrote_them() -> None:
    """After a downgrade and an upgrade, with a reboot between: the entries and the boot of their times."""
    times = {"until_unix": STOPPED.wall + HOUR, "created_unix": STOPPED.wall}
    newer = {"id": "sil_2", "until": {"event": "end of job"}}
    written = json.dumps({"boot_id": "old", "silences": [{"id": "sil_1", **times}, newer]}).encode()
    alert = {"rule": "power.cap", "target": "gpu0", "firing": True}
    alerts = json.dumps({"boot_id": "old", "watches": [alert]}).encode()

    unread: list[dict[str, object]] = []
    silences = decode_silences(written, STOPPED, "boot", unread)
    states: list[dict[str, object]] = []
    assert decode_alert_states(alerts, STOPPED, "boot", states) == {}
    encoded = encode_silences(silences, "boot", unread), encode_alert_states({}, STOPPED, "boot", states)

    assert unread == [{"boot_id": "old", "entry": newer}]
    assert states == [{"boot_id": "old", "entry": alert}]
    for data, decode, kept in ((encoded[0], decode_silences, unread), (encoded[1], decode_alert_states, states)):
        again: list[dict[str, object]] = []
        decode(data, STOPPED, "third boot", again)
        assert again == kept
    readable = {"boot_id": "old", "entry": {"id": "sil_2", **times}}
    both = decode_silences(encode_silences(silences, "boot", [readable]), STOPPED, "boot")
    assert [one.id for one in both] == ["sil_1", "sil_2"]


@pytest.mark.parametrize(
    ("until", "seconds_left"), [(HOUR - 1, HOUR - 1), (HOUR, HOUR), (2 * HOUR, HOUR), (9e9, HOUR)]
)
def test_silence_of_a_changed_file_ends_after_its_duration_at_the_latest(until: float, seconds_left: float) -> None:
    """A damaged or edited boot time cannot mute an alert for longer than the silence was made for."""
    times = {"until_unix": STOPPED.wall + HOUR, "created_unix": STOPPED.wall}
    one = {"id": "sil_1", **times, "until_boottime": STOPPED.boottime + until}
    state = {"boot_id": "boot", "silences": [one]}

    (found,) = decode_silences(json.dumps(state).encode(), STOPPED, "boot")

    assert found.until_boottime - STOPPED.boottime == pytest.approx(seconds_left)


@pytest.mark.parametrize("boot", ["boot", "another boot"])
def test_silence_of_a_changed_file_ends_after_the_longest_duration(boot: str) -> None:
    """A silence cannot be made for longer, in the same boot or after a reboot."""
    times = {"until_unix": STOPPED.wall + 2 * MAX_SECONDS, "created_unix": STOPPED.wall}
    one = {"id": "sil_1", **times, "until_boottime": STOPPED.boottime + 2 * MAX_SECONDS}
    state = {"boot_id": "boot", "silences": [one]}

    (found,) = decode_silences(json.dumps(state).encode(), STOPPED, boot)

    assert found.until_boottime - STOPPED.boottime == MAX_SECONDS


DECODERS: dict[str, Callable[[bytes, Moment, str, list[dict[str, object]]], object]] = {
    "watches": decode_alert_states,
    "silences": decode_silences,
}


@pytest.mark.parametrize("count", [2, MAX_UNREAD - 1, MAX_UNREAD, MAX_UNREAD + 1])
@pytest.mark.parametrize("name", ["watches", "silences"])
def test_all_unread_entries_up_to_the_limit_return_in_their_order(name: str, count: int) -> None:
    """Entries of a newer version are lost only above the limit, the last ones first."""
    entries = [{"id": f"new_{number}", "power": number} for number in range(count)]
    decode, unread, again = DECODERS[name], list[dict[str, object]](), list[dict[str, object]]()

    decode(json.dumps({"boot_id": "old", name: entries}).encode(), STOPPED, "boot", unread)
    encoded = json.dumps({"boot_id": "boot", name: [], UNREAD: unread}).encode()
    decode(encoded, STOPPED, "boot", again)

    assert again == unread == [{"boot_id": "old", "entry": entry} for entry in entries[:MAX_UNREAD]]
