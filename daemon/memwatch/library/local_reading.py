"""Readings of this machine without a daemon, with memwatchd's collectors. The first takes up to two seconds."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing

from memwatch.core.clock import SystemClock
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Host
from memwatch.core.linux.files import Roots
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.machine import MemoryReader
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots

# Collectors without part in the memory of pools, limits and GPUs. Most have a thread, and some a helper process or
# connections to servers.
NOT_NEEDED = frozenset(
    {
        "processes",
        "psi",
        "vmstat",
        "kmsg",
        "journal",
        "containers",
        "cgroup_kills",
        "cgroup_pressure",
        "kubernetes",
        "tegrastats",
        "amdgpu_sensors",
        "amdsmi",
        "amd_cli",
        "hwmon",
        "engines",
    }
)


class LocalReader:
    """Reader of this machine. Not thread-safe.

    NVIDIA's driver is opened in a helper process, because it may hang or crash, and stays open until `close`.
    Intel's and AMD's GPUs are read from sysfs.
    """

    def __init__(self) -> None:
        roots, clock = Roots(*read_roots(os.environ)), SystemClock()
        collectors = list_collectors(Host(roots), NOT_NEEDED, for_this_hardware=True)
        self._reader = MemoryReader(Sampler(collectors, clock), clock, read_identity(roots))

    def read(self) -> Snapshot:
        """Read the machine. The first reading waits up to two seconds for drivers."""
        with quiet:
            return self._reader.read()

    def close(self) -> None:
        """End the threads and the helper process, and close all files."""
        self._reader.close()


def read_machine() -> Snapshot:
    """Read the machine once."""
    with quiet, closing(LocalReader()) as reader:
        return reader.read()


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
