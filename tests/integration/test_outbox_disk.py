"""A disk that is full or hangs, no memory for it, no thread: no message waits for it, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from memwatch.notify.outbox.outbox import NewMessage, Outbox
from memwatch.notify.outbox.queue import Kind
from memwatch.notify.outbox.rows import Batch
from support.paths import TESTS
from support.thread_limit import no_threads
from support.waiting import Stopwatch, wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import ids, new_receiver, notice, put_notices, webhook_channel

PATIENT = (0.0, 60.0, 60.0, 60.0)


FULL_DISK = """
import resource, signal, sys, time
from pathlib import Path
from memwatch.notify.outbox.open import open_outbox
from memwatch.notify.outbox.outbox import NewMessage, Outbox
from memwatch.notify.outbox.queue import Kind
from memwatch.notify.outbox.rows import Batch
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


def test_full_disk_stops_no_message_and_is_written_to_again(tmp_path: Path) -> None:
    """While the disk takes nothing, messages leave from memory; when there is space again, all is on disk again."""
    with receiving(200) as site:
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(tmp_path), site.url],
            capture_output=True,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            timeout=60,
            check=False,
        )

    assert done.stdout.splitlines() == ["full 0 False True", "space True", "space again"], done.stderr
    assert "alerts cannot be saved to disk" in done.stderr
    assert len(set(ids(site))) == 20


class Stuck:
    """A disk that does not answer until it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.until = time.monotonic() + 1.0

    def write(self, _batch: object) -> None:
        self.asked += 1
        time.sleep(max(0.0, self.until - time.monotonic()))

    def close(self) -> None:
        """Nothing is open."""


class Starved:
    """A disk for which there is no memory, at first."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) == 1:
            raise MemoryError

    def close(self) -> None:
        """Nothing is open."""


def test_without_memory_the_outbox_goes_on_and_writes_everything_later() -> None:
    """A transaction that there was no memory for is made up for by one that has everything."""
    disk = Starved()
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


def test_slow_disk_brings_no_attempt_forward() -> None:
    """A message that failed before the disk had it is tried again by its schedule, not when the disk answers."""
    with receiving(503) as site:
        made = new_receiver(webhook_channel(site.url), PATIENT, Outbox(Stuck()))
        made.start()
        put_notices(made, notice())
        time.sleep(1.3)
        made.close()

    assert len(site.deliveries) == 1


def test_disk_that_hangs_holds_no_message_up() -> None:
    """A message does not wait for a disk that takes a second; and it is not sent twice when the disk is back."""
    with receiving(200) as site:
        made = new_receiver(webhook_channel(site.url), outbox=Outbox(Stuck()))
        made.start()
        watch = Stopwatch()
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
        took = watch.seconds
        time.sleep(1.0)
        made.close()

    assert took < 0.6
    assert ids(site) == ["msg_1"]


class Held:
    """A disk that keeps a transaction until it is let go."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.may_answer = threading.Event()

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.may_answer.wait(60.0)

    def close(self) -> None:
        """Nothing is open."""


def test_who_is_forgotten_while_the_disk_writes_is_forgotten_on_disk() -> None:
    """A message on its way there belongs to somebody who is taken out of the settings: it does not stay."""
    disk = Held()
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


def test_an_outbox_without_a_thread_writes_when_it_has_one(caplog: pytest.LogCaptureFixture) -> None:
    """The system has no thread to give when the first receiver comes: what is put later brings both to the disk."""
    disk = Starved()
    disk.batches.append(Batch())  # there is memory
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
