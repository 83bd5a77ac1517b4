"""A full or hanging disk, no memory and no thread neither delay nor lose a message."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from memwatch_monitor.notify.outbox import Batch, NewMessage, Outbox
from memwatch_monitor.notify.queue import Kind
from support.paths import TESTS
from support.thread_limit import no_threads
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import ids, new_receiver, notice, put_notices, webhook_channel

LONG_DELAYS = (0.0, 60.0, 60.0, 60.0)


FULL_DISK = """
import resource, signal, sys, time
from pathlib import Path
from memwatch_monitor.notify.sqlite_store import open_outbox
from memwatch_monitor.notify.outbox import NewMessage, Outbox
from memwatch_monitor.notify.queue import Kind
from memwatch_monitor.notify.outbox import Batch
from support.webhook_samples import new_receiver, webhook_channel

opened = open_outbox(Path(sys.argv[1]), 0.0)
made = new_receiver(webhook_channel(sys.argv[2]), outbox=Outbox(opened.store, opened.stored))
made.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for number in range(20):
    new_message = NewMessage(f"msg_{number}", f"fact {number}", Kind.FACT, b"x" * 20_000)
    made.outbox.put([(made.receiver.queue, new_message)], {})
    time.sleep(0.03)
until = time.monotonic() + 60
while made.pending() and time.monotonic() < until:
    time.sleep(0.01)
print("full", made.pending(), made.outbox.durable, made.outbox.errors > 0, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
made.outbox.put((), {"after": b"space again"})
while not made.outbox.durable and time.monotonic() < until:
    time.sleep(0.01)
print("space", made.outbox.durable, flush=True)
made.close()
print(open_outbox(Path(sys.argv[1]), 0.0).stored.values["after"].decode())
"""


def test_full_disk_stops_no_message_and_is_written_again_later(tmp_path: Path) -> None:
    """While writes fail, messages are sent from memory. With space again, everything is saved."""
    with receiving(200) as site:
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(tmp_path), site.url],
            capture_output=True,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            timeout=MAX_WAIT_SECONDS,
            check=False,
        )

    assert done.stdout.splitlines() == ["full 0 False True", "space True", "space again"], done.stderr
    assert "alerts cannot be saved to disk" in done.stderr
    assert len(set(ids(site))) == 20


class SlowDisk:
    """A store that blocks every write for the first second."""

    def __init__(self) -> None:
        self.writes = 0
        self.until = time.monotonic() + 1.0

    def write(self, _batch: object) -> None:
        self.writes += 1
        time.sleep(max(0.0, self.until - time.monotonic()))

    def close(self) -> None:
        """Nothing is open."""


class OutOfMemoryDisk:
    """A store whose first write fails for lack of memory."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) == 1:
            raise MemoryError

    def close(self) -> None:
        """Nothing is open."""


def test_failed_allocation_is_followed_by_a_complete_write() -> None:
    """A transaction that ran out of memory is replaced by one with all rows."""
    disk = OutOfMemoryDisk()
    outbox = Outbox(disk)
    box = outbox.queue("ops")
    outbox.start()
    outbox.put([(box, NewMessage("msg_1", "fact 1", Kind.FACT, b"{}"))], {"last": b"1"})
    wait_until(lambda: outbox.errors == 1)

    assert outbox.flush(10.0)

    outbox.close()
    assert disk.batches[-1].everything
    assert [row and row[2] for row in disk.batches[-1].messages.values()] == ["msg_1"]
    assert set(disk.batches[-1].values) == {"last"}


def test_slow_disk_does_not_advance_a_retry() -> None:
    """A message that failed before it was saved is retried by its schedule, not when the write ends."""
    with receiving(503) as site:
        made = new_receiver(webhook_channel(site.url), LONG_DELAYS, Outbox(SlowDisk()))
        made.start()
        put_notices(made, notice())
        wait_until(lambda: site.deliveries)
        time.sleep(1.3)
        made.close()

    assert len(site.deliveries) == 1


def test_hanging_disk_delays_no_message() -> None:
    """A message is delivered while the disk completes no write, and is not sent again after it."""
    disk = BlockedDisk()
    with receiving(200) as site:
        made = new_receiver(webhook_channel(site.url), outbox=Outbox(disk))
        made.start()
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
        disk.may_answer.set()
        assert made.outbox.flush(MAX_WAIT_SECONDS)
        put_notices(made, notice(2))
        wait_until(lambda: made.counts()["delivered"] == 2)
        made.close()

    assert ids(site) == ["msg_1", "msg_2"]


class BlockedDisk:
    """A store whose writes block until `may_answer` is set."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.may_answer = threading.Event()

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.may_answer.wait(MAX_WAIT_SECONDS)

    def close(self) -> None:
        """Nothing is open."""


def test_receiver_removed_during_a_write_is_removed_on_disk() -> None:
    """A message of the removed receiver in that transaction does not stay on disk."""
    disk = BlockedDisk()
    outbox = Outbox(disk)
    box, other = outbox.queue("ops"), outbox.queue("night")
    outbox.start()
    new_messages = [(one, NewMessage(f"msg_{one.name}", "fact 1", Kind.FACT, b"{}")) for one in (box, other)]
    outbox.put(new_messages, {})
    wait_until(lambda: disk.batches)

    assert outbox.forget("ops") == 1
    disk.may_answer.set()
    assert outbox.flush(10.0)

    outbox.close()
    everything = [batch for batch in disk.batches if batch.everything]
    assert len(disk.batches[0].messages) == 2
    assert [row and row[2] for row in everything[-1].messages.values()] == ["msg_night"]
    assert outbox.forget("ops") == 0


def test_outbox_without_a_thread_writes_when_one_can_start(caplog: pytest.LogCaptureFixture) -> None:
    """No thread can start for the first receiver. The next message starts one, and both are saved."""
    disk = OutOfMemoryDisk()
    disk.batches.append(Batch())  # no write fails
    outbox = Outbox(disk)
    with no_threads():
        outbox.start()
        box = outbox.queue("ops")
        outbox.put([(box, NewMessage("msg_1", "fact 1", Kind.FACT, b"{}"))], {})
        assert not outbox.flush(0.1)
    outbox.put((), {"last": b"1"})

    assert outbox.flush(10.0)

    outbox.close()
    assert [row and row[2] for batch in disk.batches for row in batch.messages.values()] == ["msg_1"]
    assert "outbox cannot start a thread, retrying" in caplog.text
