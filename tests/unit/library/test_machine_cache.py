"""Test the cache of the machine when several threads of a program use it."""

from __future__ import annotations

import sys
import threading

from memwatch.library.daemon_client import Daemon
from memwatch.library.machine import MachineCache
from memwatch.library.machine_record import Machine, from_snapshot
from support.sample_snapshots import critical_gb10
from support.thread_limit import no_threads
from support.waiting import MAX_WAIT_SECONDS, wait_until

CALLERS, CACHES = 4, 100
MACHINE = from_snapshot(critical_gb10())


class Cache(MachineCache):
    """Cache with a machine that needs no reading, and the number of its threads."""

    def __init__(self) -> None:
        super().__init__(Daemon("http://127.0.0.1:9"))
        self.threads = 0
        self.end = threading.Event()

    def _look(self, keeps_reader: bool = False) -> Machine:  # noqa: ARG002
        return MACHINE

    def _follow(self) -> None:
        self.threads += 1
        self.end.wait(MAX_WAIT_SECONDS)


def test_first_calls_of_several_threads_start_one_thread() -> None:
    """Each thread of a program asks for the machine as soon as the others do."""
    usual = sys.getswitchinterval()
    caches = [Cache() for _ in range(CACHES)]
    gate = threading.Barrier(CALLERS)

    def ask() -> None:
        for cache in caches:
            gate.wait(MAX_WAIT_SECONDS)
            cache.fresh()

    callers = [threading.Thread(target=ask) for _ in range(CALLERS)]
    sys.setswitchinterval(1e-6)
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        sys.setswitchinterval(usual)
    wait_until(lambda: all(cache.threads for cache in caches))
    for cache in caches:
        cache.end.set()

    assert [cache.threads for cache in caches] == [1] * CACHES


def test_program_at_its_limit_of_threads_gets_the_machine() -> None:
    """The thread is started by a later call."""
    cache = Cache()
    with no_threads():
        found = cache.fresh()
        started_at_the_limit = cache.threads
    cache.fresh()
    wait_until(lambda: cache.threads == 1)
    cache.end.set()

    assert found is MACHINE
    assert started_at_the_limit == 0
