"""The shape of a source of figures: what it is given, what it returns, how it fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from memwatch.model import Absent, Device, Pool, Process, Share
from memwatch.nvml.reading import NvmlReading
from memwatch.snapshot import Kernel, Machine, Node, ProcessScan, Stalls, Swap, Zram
from memwatch.tegra.reading import NvMapReading, TegraReading, TegrastatsReading


class Unavailable(Exception):
    """This machine does not have what the collector reads. Normal, and not an error."""


class Unreadable(Exception):
    """The source is there and its answer makes no sense; says where, what was found, what was expected."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where to find the host: other folders than the usual ones in containers and in tests."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    rootfs: Path = Path("/")


@dataclass(frozen=True, slots=True)
class Findings:
    """What one collector found at one time. Empty fields mean: not this collector's business.

    `rejected` counts answers of this time that contradicted themselves and were left out.
    """

    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    devices: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    process_scan: ProcessScan | None = None
    machine: Machine | None = None
    swap: Swap | None = None
    zram: Zram | None = None
    stalls: Stalls | None = None
    nodes: tuple[Node, ...] = ()
    kernel: Kernel | None = None
    nvml: NvmlReading | None = None
    tegra: TegraReading | None = None
    nvmap: NvMapReading | None = None
    tegrastats: TegrastatsReading | None = None
    nvml_is_stale: bool = False
    rejected: int = 0

    def aged(self) -> Findings:
        """The same things with every measured figure stale: sizes and identities stay, readings go."""
        return Findings(
            pools=tuple(aged_pool(pool) for pool in self.pools),
            shares=tuple(aged_share(share) for share in self.shares),
            devices=tuple(aged_device(device) for device in self.devices),
            machine=self.machine,
            nvml=self.nvml,
            nvml_is_stale=self.nvml is not None,
        )


def aged_pool(pool: Pool) -> Pool:
    stale = Absent.STALE
    return replace(
        pool,
        used_bytes=stale,
        available_bytes=stale,
        free_bytes=stale,
        unattributed_bytes=stale,
        set_aside_free_bytes=stale if pool.set_aside_bytes else 0,
        contents=(),
    )


def aged_share(share: Share) -> Share:
    return replace(share, used_bytes=Absent.STALE)


def aged_device(device: Device) -> Device:
    return replace(device, headroom_bytes=Absent.STALE, state="stalled")


class Collector(Protocol):
    """One source. Its constructor takes what it needs and raises `Unavailable` if that is not here.

    `name` is the word in metrics and on the page. `period_seconds` is how often to ask; 0 means every tick.
    `may_block` is true for a source whose reads can wait for somebody (a process, a driver): such a
    collector gets a thread of its own and never delays a tick. `collect` raises `Unreadable` or `OSError`
    when the source fails; any other exception is a defect and is counted as one. A collector that holds a
    device also has `release(seconds)`: let go of it, so that an administrator can reset it.
    """

    name: str
    period_seconds: float
    may_block: bool

    def collect(self) -> Findings: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Enlisted:
    """A line of the list of collectors: `make` builds it where its source exists, else raises `Unavailable`."""

    name: str
    make: Callable[[], Collector]
    may_block: bool


class KeptFile:
    """A file of procfs or sysfs that stays open: each `read` is one system call and returns all of it.

    Opening raises OSError. A file that vanished and came back (hot-plug, module reload) is opened again.
    """

    def __init__(self, path: Path, size_hint: int = 8192) -> None:
        self.path = path
        self._size = size_hint
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        try:
            data = os.pread(self._fd, self._size, 0)
        except OSError:
            self.close()
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._fd, self._size, 0)
        if len(data) < self._size:
            return data
        self._size *= 4
        return self.read()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def kept_file(path: Path, size_hint: int = 8192) -> KeptFile:
    """A kept file that has been read once. `Unavailable` where it is not there or refuses to be read."""
    try:
        file = KeptFile(path, size_hint)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    try:
        file.read()
    except OSError as error:
        file.close()
        raise Unavailable(f"{path}: {error.strerror}") from error
    return file


def read_once(path: Path) -> bytes | None:
    """The whole of a small file, or None where it does not exist or may not be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None
