"""Downgrade: what a newer version wrote and this one does not understand is kept, with a line in the log."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memwatch_monitor.notify.outbox import checksum
from support.alert_machine import AlertMachine, quick_config
from support.daemon_process import MEMWATCHD, run_program, running_daemon
from support.waiting import wait_until
from support.webhook_receiver import receiving

SAVED = Path(__file__).with_name("state-0.1.0")
NEW_ALERT = {"rule": "power.cap", "target": "gpu0", "firing": True, "since": 12.5}
NEW_SILENCE = {"id": "sil_new", "until": {"event": "end of job"}}
NEW_MESSAGE = (999, "site0", "msg_new", "digest", "digest", b"{}", 0)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The saved state, as if a newer version with further kinds of records had used it."""
    with tarfile.open(SAVED / "state.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "state"
    with closing(sqlite3.connect(folder / "outbox.sqlite")) as outbox, outbox:
        for name, key, entry in (("watches", "watches", NEW_ALERT), ("silences", "silences", NEW_SILENCE)):
            (value,) = outbox.execute("SELECT value FROM named_values WHERE name = ?", (name,)).fetchone()
            content = json.loads(value)
            content[key].append(entry)
            put_value(outbox, name, json.dumps(content).encode())
        put_value(outbox, "escalations", b"new kind of value")
        outbox.execute(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*NEW_MESSAGE, checksum(NEW_MESSAGE))
        )
    return folder


def put_value(outbox: sqlite3.Connection, name: str, value: bytes) -> None:
    outbox.execute("INSERT OR REPLACE INTO named_values VALUES (?, ?, ?)", (name, value, checksum((name, value))))


def read_value(state: Path, name: str) -> Any:
    with closing(sqlite3.connect(state / "outbox.sqlite")) as outbox:
        (value,) = outbox.execute("SELECT value FROM named_values WHERE name = ?", (name,)).fetchone()
    return value


def test_records_of_a_newer_version_are_kept(tmp_path: Path, state: Path) -> None:
    """An alert, a silence, a message and a value of new kinds stay in the file while this version uses it."""
    boots = {name: json.loads(read_value(state, name)).get("boot_id") for name in ("watches", "silences")}
    machine = AlertMachine.of(tmp_path)
    machine.fill()
    (machine.folder / "proc/sys/kernel/random/boot_id").write_text("7c1f6c0b-58b3-4d33-9d57-1de8b1b2d6a4\n")
    with receiving(200) as site:
        arguments = (*machine.arguments, f"--state-dir={state}")
        with running_daemon(tmp_path, *arguments, config=quick_config(site)) as daemon:
            wait_until(lambda: len(site.deliveries) >= 1)
            log = daemon.read_log()
            boot = daemon.snapshot()["boot_id"]

    assert "saved alerts that this version cannot read; they are kept for the one that wrote them: 1" in log
    assert "saved silences that this version cannot read; they are kept for the one that wrote them: 1" in log
    assert "1 row was skipped: damaged, or of a version that this one cannot read" in log
    written = {name: json.loads(read_value(state, name)) for name in ("watches", "silences")}
    assert written["watches"]["boot_id"] == boot != boots["watches"]
    assert written["watches"]["unread"] == [{"boot_id": boots["watches"], "entry": NEW_ALERT}]
    assert written["silences"]["unread"] == [{"boot_id": boots["silences"], "entry": NEW_SILENCE}]
    assert read_value(state, "escalations") == b"new kind of value"
    with closing(sqlite3.connect(state / "outbox.sqlite")) as outbox:
        assert outbox.execute("SELECT * FROM messages WHERE seq = 999").fetchone()[:-1] == NEW_MESSAGE


def test_unreadable_value_is_kept_and_the_other_one_is_used(tmp_path: Path, state: Path) -> None:
    """If the alerts are in another form, the silences are read nevertheless."""
    with closing(sqlite3.connect(state / "outbox.sqlite")) as outbox, outbox:
        put_value(outbox, "watches", b"\x82 not JSON any more")
    machine = AlertMachine.of(tmp_path)
    with running_daemon(tmp_path, *machine.arguments, f"--state-dir={state}", config=quick_config()) as daemon:
        log = daemon.read_log()

    assert "the saved watches cannot be read (not JSON); kept in the outbox as 'unread watches'" in log
    assert "saved silences that this version cannot read" in log
    assert read_value(state, "unread watches") == b"\x82 not JSON any more"


def test_settings_of_a_newer_version_are_named_and_not_changed(tmp_path: Path) -> None:
    """The daemon does not start with settings that it would ignore: exit code 78, and the file stays as it is."""
    config = tmp_path / "memwatchd.toml"
    text = "[sampling]\ninterval = '1s'\n\n[escalation]\nafter = '1h'\n"
    config.write_text(text)

    done = run_program(MEMWATCHD, f"--config={config}")

    assert done.returncode == 78
    assert "escalation" in done.stderr
    assert "is not a setting" in done.stderr
    assert config.read_text() == text


def test_recording_of_a_newer_version_is_named_and_not_changed(tmp_path: Path) -> None:
    """It says which version made it, and is not appended to."""
    recording = tmp_path / "newer.memwatch"
    head = {"memwatch_recording": 2, "version": "9.0.0", "host": "box"}
    recording.write_bytes(gzip.compress(json.dumps(head).encode() + b"\n"))
    before = recording.read_bytes()

    played = run_program(MEMWATCHD, f"--replay={recording}", "--once")
    recorded = run_program(MEMWATCHD, f"--record={recording}", "--listen=127.0.0.1:0")

    for done in (played, recorded):
        assert done.returncode != 0
        assert "is a recording of format 2, made by memwatchd 9.0.0; this reads format 1" in done.stderr
    assert recording.read_bytes() == before
