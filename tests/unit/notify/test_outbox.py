"""Test that queued notices survive restarts, full disks and damaged files, and that damaged data is never sent."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from memwatch_monitor.notify.outbox import Batch, NewMessage, Outbox, checksum, value_row
from memwatch_monitor.notify.queue import Kind
from memwatch_monitor.notify.receiver import Receiver, Subscription
from memwatch_monitor.notify.sqlite_store import FILE_NAME, open_outbox
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import QueuedReceiver, ids, new_receiver, notice, put_notices, webhook_channel

UNREACHABLE = "http://127.0.0.1:1/"
LONG_SCHEDULE = (0.0, 60.0, 60.0, 60.0)


@contextmanager
def outbox_in(folder: Path, url: str = UNREACHABLE) -> Iterator[QueuedReceiver]:
    """Yield a receiver whose outbox is on disk, from a start to the next stop."""
    opened = open_outbox(folder, 1_795_256_553.0)
    schedule = LONG_SCHEDULE if url == UNREACHABLE else (0.0, 0.05, 0.05)
    made = new_receiver(webhook_channel(url), schedule, Outbox(opened.store, opened.stored))
    made.start()
    try:
        yield made
    finally:
        made.close()


def put_facts(made: QueuedReceiver, count: int) -> list[str]:
    names = [f"msg_{number}" for number in range(count)]
    for name in names:
        new_message = NewMessage(name, f"fact {name}", Kind.FACT, name.encode() * 50)
        made.outbox.put([(made.receiver.queue, new_message)], {"last": name.encode()})
    assert made.outbox.flush(5.0)
    return names


@pytest.mark.process
def test_queued_messages_arrive_in_order_after_a_restart(tmp_path: Path) -> None:
    """The receiver was unreachable; after the restart each message arrives once, with its id and its bytes."""
    with outbox_in(tmp_path) as made:
        names = put_facts(made, 50)
    with receiving(200) as site, outbox_in(tmp_path, site.url) as again:
        wait_until(lambda: again.pending() == 0)

        assert again.outbox.values["last"] == b"msg_49"

    assert ids(site) == names
    assert [delivery.body for delivery in site.deliveries] == [name.encode() * 50 for name in names]
    with outbox_in(tmp_path) as empty:
        assert empty.pending() == 0


@pytest.mark.process
def test_restarts_do_not_count_as_attempts(tmp_path: Path) -> None:
    """Each start tries at once, and ten starts in a row do not exhaust the attempts."""
    for start in range(10):
        with outbox_in(tmp_path) as made:
            if start == 0:
                put_facts(made, 1)
            wait_until(lambda: made.counts()["retry"] == 1)

    opened = open_outbox(tmp_path, 0.0)
    assert opened.store is not None
    opened.store.close()
    assert [message.attempts for message in opened.stored.messages["ops"]] == [1]


@pytest.mark.process
def test_delivered_alerts_are_known_after_a_restart(tmp_path: Path) -> None:
    """The end of an alert is delivered after a restart, also of one whose firing may not have arrived."""
    with receiving(200) as site:
        with outbox_in(tmp_path, site.url) as made:
            put_notices(made, notice(1))
            wait_until(lambda: made.counts()["delivered"] == 1)
        with outbox_in(tmp_path, site.url) as made:
            put_notices(made, notice(2, firing=False))
            wait_until(lambda: made.counts()["delivered"] == 1)
    with outbox_in(tmp_path) as made:
        put_notices(made, notice(3))
        wait_until(lambda: made.counts()["retry"] == 1)
    with outbox_in(tmp_path) as made:
        put_notices(made, notice(4, firing=False))
        wait_until(lambda: made.counts()["superseded"] == 1)
    with receiving(200) as other, outbox_in(tmp_path, other.url) as made:
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert (ids(site), ids(other)) == (["msg_1", "msg_2"], ["msg_4"])


def written(folder: Path, count: int = 30) -> Path:
    with outbox_in(folder) as made:
        put_facts(made, count)
    return folder / FILE_NAME


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def scribble(file: Path) -> None:
    file.write_text("not a database\n" * 1000)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def link(file: Path) -> None:
    target = file.with_name("precious")
    target.write_text("precious")
    file.unlink()
    file.symlink_to(target)


@pytest.mark.process
@pytest.mark.parametrize("damage", [halve, zero, scribble, make_folder, link])
def test_damaged_file_is_quarantined(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """After any damage there is a working outbox, the old file is kept beside it, and links are not followed."""
    file = written(tmp_path)
    damage(file)

    opened = open_outbox(tmp_path, 1_795_256_553.0)

    assert opened.store is not None
    opened.store.close()
    assert opened.recovered
    assert "renamed to outbox.sqlite.corrupt-1795256553, starting with an empty outbox" in opened.complaints[0]
    assert os.path.lexists(tmp_path / "outbox.sqlite.corrupt-1795256553")
    assert file.is_file()
    assert not file.is_symlink()
    assert (tmp_path / "precious").exists() is (damage is link)
    if damage is link:
        assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.process
def test_at_most_two_damaged_files_are_kept(tmp_path: Path) -> None:
    """A disk that damages files repeatedly is not filled with their copies."""
    for moment in range(5):
        scribble(written(tmp_path))
        opened = open_outbox(tmp_path, 100.0 + moment)
        assert opened.store is not None
        opened.store.close()

    assert sorted(path.name for path in tmp_path.glob("*.corrupt-*")) == [
        "outbox.sqlite.corrupt-103",
        "outbox.sqlite.corrupt-104",
    ]


@pytest.mark.process
def test_empty_file_is_an_empty_outbox(tmp_path: Path) -> None:
    """A file without a byte has lost nothing."""
    file = written(tmp_path)
    empty(file)

    opened = open_outbox(tmp_path, 0.0)

    assert opened.store is not None
    opened.store.close()
    assert opened.stored.messages == {}


@pytest.mark.process
def test_file_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    """After a downgrade the messages of the newer version are kept under another name."""
    file = written(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = file.read_bytes()

    opened = open_outbox(tmp_path, 7.0)

    assert opened.store is not None
    opened.store.close()
    assert "has version 99, but this memwatchd supports version 1" in opened.complaints[0]
    assert (tmp_path / "outbox.sqlite.newer-7").read_bytes() == before


@pytest.mark.process
def test_flipped_bits_never_change_a_message(tmp_path: Path) -> None:
    """One bit flipped anywhere, three hundred times: every message read equals a written one."""
    (tmp_path / "original").mkdir()
    file = written(tmp_path / "original")
    original = file.read_bytes()
    expected = {f"msg_{number}": f"msg_{number}".encode() * 50 for number in range(30)}
    chance = random.Random(8)

    for number in range(300):
        flipped = bytearray(original)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(flipped)
        opened = open_outbox(folder, 0.0)
        if opened.store is not None:
            opened.store.close()
        found = [message for messages in opened.stored.messages.values() for message in messages]
        for message in found:
            assert expected[message.id] == message.body
            assert (message.kind, message.alert) == (Kind.FACT, f"fact {message.id}")
        assert len(found) == 30 or opened.recovered or not opened.store, "the loss was not reported"


@pytest.mark.process
def test_row_of_an_unknown_kind_is_skipped(tmp_path: Path) -> None:
    """A newer version may write other kinds: such a row is counted, and the others are sent."""
    file = written(tmp_path, 3)
    with closing(sqlite3.connect(file)) as connection, connection:
        (row,) = connection.execute("SELECT * FROM messages WHERE id = 'msg_1'").fetchall()
        changed = (*row[:4], "future kind", *row[5:-1])
        connection.execute(
            "UPDATE messages SET kind = ?, crc = ? WHERE seq = ?", (changed[4], checksum(changed), row[0])
        )

    opened = open_outbox(tmp_path, 0.0)

    assert opened.store is not None
    opened.store.close()
    assert opened.complaints == (f"{file}: 1 row was skipped: damaged, or of a version that this one cannot read",)
    assert [message.id for message in opened.stored.messages["ops"]] == ["msg_0", "msg_2"]


def test_full_queue_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The receiver accepts nothing, and 1,010 one-off events are queued: ten are counted as given up."""
    made = new_receiver(webhook_channel(UNREACHABLE), LONG_SCHEDULE)
    made.receiver.stop_soon()

    for number in range(1010):
        made.outbox.put(
            [(made.receiver.queue, NewMessage(f"msg_{number}", f"fact {number}", Kind.FACT, b"{}"))], {}
        )

    assert made.counts()["gave_up"] == 10
    assert [record.getMessage() for record in caplog.records] == [
        "receiver ops: notifications are dropped: 1000 are queued and it accepts none; repair it or remove it from "
        "the configuration. Tests and one-off events are dropped first, the newest notification of an alert never"
    ]


def test_unwritable_folder_leaves_an_outbox_in_memory(tmp_path: Path) -> None:
    """If no file can be created, the outbox is kept in memory and the log gives the reason."""
    opened = open_outbox(tmp_path / "missing", 0.0)

    assert opened.store is None
    assert "cannot be used" in opened.complaints[0]
    assert opened.complaints[0].endswith("alerts are kept in memory only")


@pytest.mark.process
def test_messages_outside_the_subscription_are_dropped(tmp_path: Path) -> None:
    """After a change of settings, queued messages and firing alerts outside the subscription are dropped."""
    with receiving(200) as site, outbox_in(tmp_path, site.url) as made:
        put_notices(made, notice(1), notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 2)
    with outbox_in(tmp_path) as made:
        put_notices(made, notice(3, target="vram1"), notice(4, target="vram0", firing=False))
        wait_until(lambda: made.counts()["retry"] == 2)

    opened = open_outbox(tmp_path, 0.0)
    outbox = Outbox(opened.store, opened.stored)
    Receiver("ops", webhook_channel(UNREACHABLE), outbox.queue("ops"), Subscription(targets=frozenset({"ram"})))
    outbox.start()
    outbox.close()

    again = open_outbox(tmp_path, 0.0)
    assert again.store is not None
    again.store.close()
    assert again.stored.messages == {}
    assert [alert for alert, _ in again.stored.delivered["ops"]] == ["pressure.critical ram"]


@pytest.mark.process
def test_messages_of_a_removed_receiver_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver removed from the settings leaves nothing behind, and the log reports it."""
    written(tmp_path, 3)
    opened = open_outbox(tmp_path, 0.0)
    outbox = Outbox(opened.store, opened.stored)
    outbox.start()
    outbox.put((), {}, urgent=True)

    assert outbox.flush(5.0)

    outbox.close()
    assert "receivers removed: ops; notifications dropped: 3" in caplog.text
    again = open_outbox(tmp_path, 0.0)
    assert again.store is not None
    again.store.close()
    assert again.stored.messages == {}


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal", "-shm"])
@pytest.mark.parametrize("place", [os.symlink, os.link], ids=["link", "hard link"])
def test_prepared_link_is_renamed_and_its_target_unchanged(
    tmp_path: Path, suffix: str, place: Callable[[Path, Path], None]
) -> None:
    """SQLite follows links and writes to the files beside the database."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place(victim, tmp_path / f"{FILE_NAME}{suffix}")

    opened = open_outbox(tmp_path, 7.0)

    assert opened.store is not None
    opened.store.close()
    assert victim.read_text() == "precious"
    assert f"renamed to {FILE_NAME}.corrupt-7, starting with an empty outbox" in opened.complaints[0]
    assert os.path.lexists(tmp_path / f"{FILE_NAME}.corrupt-7{suffix}")


@pytest.mark.process
def test_aside_does_not_replace_a_file_beside_its_name(tmp_path: Path) -> None:
    """Only the name with -wal exists. The next free time is used."""
    scribble(written(tmp_path))
    beside = tmp_path / f"{FILE_NAME}.corrupt-7-wal"
    beside.write_text("precious")
    (tmp_path / f"{FILE_NAME}-wal").write_text("")

    opened = open_outbox(tmp_path, 7.0)

    assert opened.store is not None
    opened.store.close()
    assert beside.read_text() == "precious"
    assert (tmp_path / f"{FILE_NAME}.corrupt-8").exists()


@pytest.mark.process
def test_rows_that_cannot_be_read_survive_every_write(tmp_path: Path) -> None:
    """Also one that rewrites everything. A new message does not take the number of such a row."""
    file = written(tmp_path, 3)
    newer = (99, "ops", "msg_new", "digest", "future kind", b"{}", 0)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*newer, checksum(newer)))
        connection.execute("INSERT INTO named_values VALUES ('damaged', x'00', 1)")
    opened = open_outbox(tmp_path, 0.0)
    assert opened.store is not None
    assert opened.stored.last_seq == 99

    opened.store.write(Batch(values={"new": value_row("new", b"1")}, everything=True))
    opened.store.close()

    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT seq, id FROM messages").fetchall() == [(99, "msg_new")]
        assert connection.execute("SELECT name FROM named_values").fetchall() == [("damaged",), ("new",)]
