"""Readings of this machine without a daemon, with memwatchd's collectors. The first takes up to two seconds."""

from __future__ import annotations

import logging
import os
import socket
import threading

from memwatch.core.clock import SystemClock
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots
from memwatch.monitor.loop import Monitor
from memwatch.monitor.rules import MonitorRules

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
        with quiet:
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


class Quiet:
    """Suppresses the collectors' log messages, which are meant for the daemon's log, while any thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings = 0
        self._levels: dict[logging.Logger, int] = {}

    def __enter__(self) -> None:
        with self._lock:
            self._readings += 1
            names = list(logging.root.manager.loggerDict)  # a copy: the program may import modules meanwhile
            for logger in [logging.getLogger(name) for name in names if name.startswith("memwatch.")]:
                self._levels.setdefault(logger, logger.level)
                logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._readings = max(0, self._readings - 1)  # 0 already in the child of a fork during a reading
            if not self._readings:
                self._restore()

    def after_fork(self) -> None:
        """Reset in the child, where no thread of the parent reads. The lock may have been held."""
        self._lock, self._readings = threading.Lock(), 0
        self._restore()

    def _restore(self) -> None:
        for logger, level in self._levels.items():
            logger.setLevel(level)
        self._levels.clear()


quiet: Quiet = Quiet()
os.register_at_fork(after_in_child=quiet.after_fork)
