"""The shape of a source of figures: what it is given, what it returns, how it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from memwatch.attribution import with_zram
from memwatch.model import Absent, Device, Pool, Process, Share
from memwatch.snapshot import Kernel, Machine, Node, ProcessScan, Stalls, Swap, Zram, merge_nodes

T = TypeVar("T")


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
    """What one collector found at one time. Empty fields mean: not this collector's business."""

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

    def aged(self) -> Findings:
        """The same things with every measured figure stale: sizes and identities stay, readings go."""
        stale = Absent.STALE
        return Findings(
            pools=tuple(
                replace(
                    pool,
                    used_bytes=stale,
                    available_bytes=stale,
                    free_bytes=stale,
                    unattributed_bytes=stale,
                    set_aside_free_bytes=stale if pool.set_aside_bytes else 0,
                    contents=(),
                )
                for pool in self.pools
            ),
            shares=tuple(replace(share, used_bytes=stale) for share in self.shares),
            devices=tuple(replace(device, headroom_bytes=stale) for device in self.devices),
            machine=self.machine,
        )


class Collector(Protocol):
    """One source. Its constructor takes what it needs and raises `Unavailable` if that is not here.

    `name` is the word in metrics and on the page. `period_seconds` is how often to ask; 0 means every tick.
    `may_block` is true for a source whose reads can wait for somebody (a process, a driver): such a
    collector gets a thread of its own and never delays a tick. `collect` raises `Unreadable` or `OSError`
    when the source fails; any other exception is a defect and is counted as one.
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


def merged(findings: Sequence[Findings]) -> Findings:
    """Everybody's findings as one. A share whose pool nobody found is left out with its pool."""
    zram = _first([found.zram for found in findings])
    pools = tuple(with_zram(pool, zram) for found in findings for pool in found.pools)
    shares = tuple(share for found in findings for share in found.shares)
    return Findings(
        pools=pools,
        shares=without_lost(shares, {pool.id for pool in pools}) if shares else (),
        devices=tuple(device for found in findings for device in found.devices),
        processes=tuple(process for found in findings for process in found.processes),
        process_scan=_first([found.process_scan for found in findings]),
        machine=_first([found.machine for found in findings]),
        swap=_first([found.swap for found in findings]),
        zram=zram,
        stalls=_first([found.stalls for found in findings]),
        nodes=merge_nodes([node for found in findings for node in found.nodes]),
        kernel=_first([found.kernel for found in findings]),
    )


def _first(found: Sequence[T | None]) -> T | None:
    return next((one for one in found if one is not None), None)


def without_lost(shares: tuple[Share, ...], pool_ids: set[str]) -> tuple[Share, ...]:
    """The shares that lie, by whatever way, within one of these pools."""
    places = set(pool_ids)
    while True:
        inside = {share.id for share in shares if share.within in places} - places
        if not inside:
            return tuple(share for share in shares if share.id in places)
        places |= inside


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
