"""Readings of this machine without a daemon, with memwatchd's collectors. The first takes up to two seconds."""

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
from memwatch.monitor.identity import Identity
from memwatch.monitor.loop import Monitor
from memwatch.monitor.rules import MonitorRules
from memwatch.monitor.sampler import Sampler
from memwatch.snapshot import Snapshot

FIRST_SECONDS = 2.0
# Collectors without part in the memory of pools, limits and GPUs. Each has a thread, and some a helper process.
NOT_NEEDED = frozenset(
    {
        "processes",
        "kmsg",
        "cgroup_pressure",
        "kubernetes",
        "tegrastats",
        "amdgpu_sensors",
        "amdsmi",
        "amd_cli",
        "hwmon",
    }
)


class LocalReader:
    """Reader of this machine. Not thread-safe.

    NVIDIA's driver is opened in a helper process, because it may hang or crash, and stays open until `close`.
    Intel's and AMD's GPUs are read from sysfs.
    """

    def __init__(self) -> None:
        clock = SystemClock()
        roots = Roots(*read_roots(os.environ))
        self._sampler = Sampler(list_collectors(Host(roots), disabled=NOT_NEEDED), clock)
        identity = Identity(socket.gethostname(), "unknown")
        self._monitor = Monitor(self._sampler, clock, MonitorRules(), identity)
        self._is_started = False

    def read(self) -> Snapshot:
        """Read the machine. The first reading waits up to two seconds for drivers."""
        with quiet():
            if not self._is_started:
                self._is_started = True
                self._sampler.start()
                self._sampler.wait_for_first(FIRST_SECONDS)
            return self._monitor.tick()

    def close(self) -> None:
        """End the threads and the helper process, and close all files."""
        self._sampler.stop()
        for runner in self._sampler.runners:
            if not runner.entry.may_block:  # the others are closed by their threads
                runner.close()
        self._monitor.self_usage.close()


def read_machine() -> Snapshot:
    """Read the machine once."""
    reader = LocalReader()
    try:
        return reader.read()
    finally:
        reader.close()


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
