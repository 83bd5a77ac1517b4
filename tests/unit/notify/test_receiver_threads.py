"""Test receivers whose threads cannot be started at first."""

from __future__ import annotations

from memwatch.core.clock import SystemClock
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.worker import ThreadState
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Outbox
from memwatch_monitor.notify.receiver import Receiver
from support.monitors import create_monitor
from support.sample_snapshots import critical_gb10
from support.thread_limit import no_threads
from support.waiting import wait_until
from support.webhook_samples import webhook_channel


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
