"""States of the threads that deliver: one that cannot be started, and an attempt or a write that does not end."""

from __future__ import annotations

import threading
import time

import pytest

from memwatch.core.clock import SystemClock
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.worker import ThreadState
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.http_post import Poster, parse_endpoint
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Batch, NewMessage, Outbox
from memwatch_monitor.notify.queue import Kind
from memwatch_monitor.notify.receiver import Receiver
from memwatch_monitor.notify.webhook import WebhookChannel, parse_secret
from support.monitors import create_monitor
from support.sample_snapshots import critical_gb10
from support.thread_limit import no_threads
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import raw_receiver, silent
from support.webhook_samples import SECRET, webhook_channel

SHORT_SECONDS = 0.2


class HangingStore:
    """A disk that completes no write until it is released."""

    def __init__(self) -> None:
        self.may_write = threading.Event()

    def write(self, batch: Batch) -> None:  # noqa: ARG002
        self.may_write.wait(MAX_WAIT_SECONDS)

    def close(self) -> None:
        """Close nothing."""


def message(number: int) -> NewMessage:
    return NewMessage(f"msg_{number}", "pressure.critical ram", Kind.FACT, b"{}")


@pytest.mark.process
def test_attempt_that_does_not_end_is_stuck() -> None:
    """Until it ends, here by the timeout of the connection."""
    with raw_receiver(silent) as url:
        outbox = Outbox(None)
        outbox.start()
        poster = Poster(parse_endpoint(url), 1.0, True, None, time.time)
        channel = WebhookChannel("ops", parse_endpoint(url), parse_secret(SECRET), poster)
        receiver = Receiver("ops", channel, outbox.queue("ops"), max_attempt_seconds=SHORT_SECONDS)
        before = receiver.thread_state()
        receiver.start()
        wait_until(lambda: receiver.thread_state() is ThreadState.OK)
        outbox.put([(receiver.queue, message(1))], {})
        wait_until(lambda: receiver.thread_state() is ThreadState.STUCK)
        wait_until(lambda: receiver.thread_state() is ThreadState.OK)
        receiver.stop_soon()
        outbox.close()

    assert before is ThreadState.NOT_STARTED


def test_disk_that_hangs_is_reported_and_not_called_durable() -> None:
    store = HangingStore()
    outbox = Outbox(store, hang_seconds=SHORT_SECONDS)
    outbox.start()
    outbox.put([(outbox.queue("ops"), message(1))], {})
    wait_until(lambda: outbox.thread_state() is ThreadState.DISK_HANGS)
    durable = outbox.durable
    store.may_write.set()
    wait_until(lambda: outbox.thread_state() is ThreadState.OK)
    wait_until(lambda: outbox.durable)
    outbox.close()

    assert not durable


def test_reload_during_a_tick_leaves_no_receiver_without_a_thread() -> None:
    """A tick tries to start the thread of one receiver while a reload adds another one."""
    outbox = Outbox(None)
    first, second = (Receiver(name, webhook_channel("http://127.0.0.1:1/"), outbox.queue(name)) for name in "ab")
    monitor = create_monitor(Sampler([], SystemClock()), SystemClock(), MonitorRules(), Identity("host", "boot"))
    manager = NotificationManager(monitor, outbox, [first])
    start = first.start

    def start_during_reload() -> bool:
        first.start = start  # type: ignore[method-assign]
        manager.use([first, second])
        return start()

    with no_threads():
        manager.start()
        first.start = start_during_reload  # type: ignore[method-assign]
        manager.deliver(critical_gb10(), ())
    manager.deliver(critical_gb10(), ())
    wait_until(lambda: set(manager.thread_states().values()) == {ThreadState.OK})
    manager.close()
