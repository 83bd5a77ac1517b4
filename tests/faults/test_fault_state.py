"""Test damaged state folders: the daemon starts, shows no false value and keeps the damaged files."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fault_oracle import back_in_time
from msgspec import Struct

from memwatch_monitor.history.ring_file import PARTS
from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_receiver import receiving

FLIPS = 1000
USED_BYTES = (65_048_212 - 1_000_000) * 1024
SMALL = '[history]\ndisk_size = "4MiB"\n'


class Wreck(Struct, frozen=True):
    """State of a daemon that was killed with critical memory and a queued message: 4 MiB."""

    machine: AlertMachine
    state: Path
    config: str

    def copied(self, scratch: Path) -> list[str]:
        """Return the arguments of a daemon that uses a copy of it."""
        shutil.copytree(self.state, scratch / "state")
        return [*self.machine.arguments, f"--state-dir={scratch / 'state'}"]


@pytest.fixture(scope="module")
def wreck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wreck]:
    scratch = tmp_path_factory.mktemp("wreck")
    machine, state = AlertMachine.of(scratch), scratch / "state"
    machine.fill()
    with receiving(503) as site:
        config = SMALL + quick_config(site)
        with running_daemon(scratch, *machine.arguments, f"--state-dir={state}", config=config) as daemon:
            wait_for_deliveries(site, 1)
            daemon.wait_for("/api/v1/snapshot", lambda now: now["seq"] >= 30)
            daemon.process.kill()
            daemon.process.wait(MAX_WAIT_SECONDS)
        yield Wreck(machine, state, config)


def files_of(state: Path) -> list[Path]:
    return [state / "outbox.sqlite", *sorted(state.glob("*.ring"))]


def halve(file: Path, _: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path, _: Path) -> None:
    os.truncate(file, 0)


def zero(file: Path, _: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def become_a_folder(file: Path, _: Path) -> None:
    file.unlink()
    file.mkdir()


def become_a_link(file: Path, stranger: Path) -> None:
    file.unlink()
    file.symlink_to(stranger)


@pytest.mark.parametrize("how", [halve, empty, zero, become_a_folder, become_a_link])
def test_daemon_starts_with_every_state_file_damaged(
    wreck: Wreck, how: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """Files halved, emptied, zeroed, replaced by a folder or a link: the daemon starts and logs it."""
    stranger = tmp_path / "passwd"
    stranger.write_text("root:x:0:0::/root:/bin/sh\n")
    arguments = wreck.copied(tmp_path)
    for file in files_of(tmp_path / "state"):
        for beside in ("-wal", "-shm"):
            file.with_name(file.name + beside).unlink(missing_ok=True)
        how(file, stranger)

    with back_in_time(tmp_path, *arguments, config=wreck.config) as daemon:
        assert_nothing_invented(daemon)
        metrics = daemon.get("/metrics").text
        assert "memwatch_outbox_durable 1.0" in metrics
        if how in (become_a_folder, become_a_link):
            assert "memwatch_outbox_recovered_total 1.0" in metrics
            assert f"memwatch_history_damaged_records {len(PARTS)}.0" in metrics
            damaged = list((tmp_path / "state").glob("*.ring.damaged-*"))
            assert len(damaged) == len(PARTS) + 1  # and the file of incidents
    assert stranger.read_text() == "root:x:0:0::/root:/bin/sh\n"


def assert_nothing_invented(daemon: RunningDaemon) -> None:
    """The history has the one value that the machine always had, and no other."""
    (series,) = daemon.get("/api/v1/history?series=pool.ram.used_bytes&points=2000").json["series"]
    for figure in (*series["min"], *series["avg"], *series["max"]):
        assert figure is None or abs(figure - USED_BYTES) < 8192
    for tick in daemon.get("/api/v1/ticks").json:
        assert [pool["used_bytes"] for pool in tick["pools"]] == [USED_BYTES]


@pytest.mark.long
def test_thousand_flipped_bits_show_no_wrong_value(wreck: Wreck, tmp_path: Path) -> None:
    """One bit in each of a thousand places, in ten starts: records may be missing, but none is wrong."""
    chance = random.Random(5)
    for start in range(10):
        scratch = tmp_path / str(start)
        scratch.mkdir()
        arguments = wreck.copied(scratch)
        for _ in range(FLIPS // 10):
            flip(chance.choice(files_of(scratch / "state")), chance)

        with back_in_time(scratch, *arguments, config=wreck.config) as daemon:
            assert_nothing_invented(daemon)


def flip(file: Path, chance: random.Random) -> None:
    """Choose positions within the written part: most of a new ring is empty."""
    with file.open("r+b") as opened:
        written = max(1, len(opened.read().rstrip(b"\0")))
        at = chance.randrange(written)
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << chance.randrange(8)]))


def test_state_of_a_newer_version_is_kept_unchanged(wreck: Wreck, tmp_path: Path) -> None:
    """After a downgrade the files of the newer version are kept whole under another name."""
    arguments = wreck.copied(tmp_path)
    state = tmp_path / "state"
    with closing(sqlite3.connect(state / "outbox.sqlite")) as outbox:
        outbox.execute("PRAGMA user_version = 99")
    for ring in state.glob("*.ring"):
        ring.write_bytes(ring.read_bytes().replace(b"MWR1", b"MWR2"))
    newer = {ring.name: ring.read_bytes() for ring in state.glob("*.ring") if ring.read_bytes().strip(b"\0")}

    with back_in_time(tmp_path, *arguments, config=wreck.config) as daemon:
        assert_nothing_invented(daemon)
        log = daemon.read_log()

    assert list(state.glob("outbox.sqlite.newer-*"))
    assert "flight.ring" in newer
    for name, content in newer.items():
        (aside,) = state.glob(f"{name}.*-*")
        assert aside.read_bytes() == content
        assert f"{name} was written by another version of memwatchd" in log
