"""Upgrade: the state folder and a recording that version 0.1.0 wrote are read completely."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path

import pytest

from memwatch.core.clock import Moment
from memwatch_monitor.alerts.persistence import decode_silences
from memwatch_monitor.notify.sqlite_store import open_outbox
from memwatchd.recording.player import open_recording, read_frames
from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import running_daemon
from support.libc_faults import LibcFaults
from support.webhook_receiver import receiving

SAVED = Path(__file__).with_name("state-0.1.0")
# Begin and end of the saved run, and the use of its 62 GiB, at first and then with 1 GB available.
BEGAN, ENDED = 1_795_600_370, 1_795_600_400
ROOMY_BYTES = 36_241_006_592
FULL_BYTES = 66_609_369_088 - 1_000_000 * 1024


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with tarfile.open(SAVED / "state.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "state"


def test_history_events_alert_and_notification_survive_the_upgrade(tmp_path: Path, state: Path) -> None:
    """All rows, ticks and events are served, the alert keeps firing, and the queued notification is delivered.

    The upgrade takes a minute with a reboot 30 s ago: rows of one second are kept for an hour, and rows of an
    earlier boot end before this one began.
    """
    machine = AlertMachine.of(tmp_path)
    machine.fill()
    (machine.folder / "proc/sys/kernel/random/boot_id").write_text("7c1f6c0b-58b3-4d33-9d57-1de8b1b2d6a4\n")
    clocks = LibcFaults.of(tmp_path)
    clocks.boot_seconds = 30 - int(time.clock_gettime(time.CLOCK_BOOTTIME))
    clocks.set_wall_clock(ENDED + 60 - int(time.time()))
    with receiving(200) as site:
        arguments = (*machine.arguments, f"--state-dir={state}")
        with running_daemon(
            tmp_path, *arguments, config=quick_config(site), environ=clocks.environ, installed=True
        ) as daemon:
            window = f"from={BEGAN}&to={ENDED}"
            (series,) = daemon.get(f"/api/v1/history?series=pool.ram.used_bytes&{window}").json["series"]
            ticks = daemon.get(f"/api/v1/ticks?{window}").json
            events = daemon.get("/api/v1/events?limit=1000").json
            (alert,) = daemon.get("/api/v1/alerts").json
            (queued, *_) = wait_for_deliveries(site, 1)
            metrics, log = daemon.get("/metrics").text, daemon.read_log()

    used = [value for value in series["max"] if value is not None]
    assert len(used) >= 20
    assert max(used) == pytest.approx(FULL_BYTES, abs=8192)
    assert min(used) == pytest.approx(ROOMY_BYTES, abs=8192)
    assert ticks[0]["pressure"][0]["level"] == "critical"
    assert ticks[0]["processes"][0]["name"] == "python3"
    old = [(event["seq"], event["kind"]) for event in events if event["unix"] < ENDED]
    assert old == [(4, "alert"), (3, "level"), (2, "mark"), (1, "started")]
    assert sorted(event["seq"] for event in events) == list(range(1, len(events) + 1))
    assert (alert["rule"], alert["state"]) == ("pressure.critical", "firing")
    assert BEGAN < alert["since_unix"] < ENDED
    assert json.loads(queued.body)["event"] == "pressure.critical"
    assert BEGAN < json.loads(queued.body)["unix"] < ENDED
    assert "memwatch_history_damaged_records 0.0" in metrics
    assert "cannot be read" not in log


def test_silence_and_queued_rows_survive_the_upgrade(state: Path) -> None:
    """The silence ends 23 days after it was made, so it is read as of then."""
    opened = open_outbox(state, ENDED)

    (silence,) = decode_silences(
        opened.stored.values["silences"], Moment(monotonic=100.0, boottime=100.0, wall=ENDED), "another boot"
    )

    assert opened.complaints == ()
    assert (silence.event, silence.comment) == ("kernel.oom_kill", "kept")
    assert [message.alert for message in opened.stored.messages["site0"]] == ["pressure.critical ram"]
    assert opened.store is not None
    opened.store.close()


def test_recording_of_the_previous_version_is_played() -> None:
    """Every snapshot, with the values that it showed."""
    contents = open_recording(SAVED / "recording.mwr", salvage=False)

    frames = list(read_frames(SAVED / "recording.mwr"))

    assert len(frames) == contents.count > 30
    assert frames[-1].pools[0].used_bytes == FULL_BYTES
    assert frames[-1].processes
    assert frames[-1].self_usage.cpu_seconds > 0
    assert {status.name for status in frames[-1].collectors} >= {"meminfo", "cgroup_pressure"}
    assert not contents.damage
