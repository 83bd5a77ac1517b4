"""One reading of this machine without a daemon, with memwatchd's collectors. Takes up to two seconds."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from memwatch.clock import SystemClock
from memwatch.collectors import list_collectors
from memwatch.collectors.base import Host
from memwatch.library.daemon_client import read_roots
from memwatch.linux.files import Roots
from memwatch.monitor.loop import Identity, Monitor, MonitorRules
from memwatch.monitor.sampler import Sampler
from memwatch.snapshot import Snapshot

FIRST_SECONDS = 2.0


def read_machine() -> Snapshot:
    with quiet():
        return _read()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the collectors' log messages, which are meant for the daemon's log."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("memwatch.")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _read() -> Snapshot:
    clock = SystemClock()
    roots = Roots(*read_roots(os.environ))
    sampler = Sampler(list_collectors(Host(roots), disabled={"processes"}), clock)
    monitor = Monitor(sampler, clock, MonitorRules(), Identity(socket.gethostname(), "unknown"))
    sampler.start()
    try:
        sampler.wait_for_first(FIRST_SECONDS)
        return monitor.tick()
    finally:
        sampler.stop()
