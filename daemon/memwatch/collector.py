"""The shape of a source of figures: what it is given, what it returns, how it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from memwatch.amd.reading import AmdReading, AmdSensors
from memwatch.amd.smi import SmiReading
from memwatch.apple.reading import AppleReading
from memwatch.drm.reading import DrmReading
from memwatch.kernel_log import KernelLog
from memwatch.model import STALLED, Absent, Device, Pool, Process, Share
from memwatch.nvml.reading import NvmlReading
from memwatch.owners import Owner
from memwatch.snapshot import Kernel, Machine, Node, ProcessScan, Squeezed, Stalls, Swap, Zram
from memwatch.tegra.reading import NvMapReading, TegraReading, TegrastatsReading

# In what `Unavailable` says: the machine has it, and this user may not read it.
NOT_PERMITTED = "not permitted"


class Unavailable(Exception):
    """This machine does not have what the collector reads. Normal, and not an error."""


class Unreadable(Exception):
    """The source is there and its answer makes no sense; says where, what was found, what was expected."""


class Roots(Struct, frozen=True):
    """Where to find the host: other folders than the usual ones in containers and in tests."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    rootfs: Path = Path("/")


class Findings(Struct, frozen=True):
    """What one collector found at one time. Empty fields mean: not this collector's business.

    `pci_gpus` counts the GPUs on the PCI bus by their maker. `rejected` counts answers of this time that
    contradicted themselves and were left out. `stale` names the readings (`READINGS`) that are too old to
    repeat: they say only what was there.
    """

    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    devices: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    process_scan: ProcessScan | None = None
    owners: tuple[Owner, ...] = ()
    container_names: Mapping[str, str] | None = None
    machine: Machine | None = None
    swap: Swap | None = None
    zram: Zram | None = None
    stalls: Stalls | None = None
    squeezed: Squeezed | None = None
    nodes: tuple[Node, ...] = ()
    kernel: Kernel | None = None
    kernel_log: KernelLog | None = None
    cgroup_oom_kills_total: int | None = None
    pci_gpus: Mapping[str, int] | None = None
    nvml: NvmlReading | None = None
    tegra: TegraReading | None = None
    nvmap: NvMapReading | None = None
    tegrastats: TegrastatsReading | None = None
    amdgpu: AmdReading | None = None
    amdgpu_sensors: Mapping[str, AmdSensors] | None = None
    amd_smi: SmiReading | None = None
    drm: DrmReading | None = None
    apple: AppleReading | None = None
    stale: frozenset[str] = frozenset()
    rejected: int = 0

    def aged(self) -> Findings:
        """The same things with every measured figure stale: sizes and identities stay, readings go."""
        readings: dict[str, Any] = {name: getattr(self, name) for name in READINGS}
        return Findings(
            machine=self.machine,
            container_names=self.container_names,
            pci_gpus=self.pci_gpus,
            pools=tuple(aged_pool(pool) for pool in self.pools),
            shares=tuple(aged_share(share) for share in self.shares),
            devices=tuple(aged_device(device) for device in self.devices),
            nodes=tuple(aged_node(node) for node in self.nodes),
            stale=frozenset(name for name, reading in readings.items() if reading is not None),
            **readings,
        )


# The fields of Findings that hold what a driver said, for `composition` to make sense of.
READINGS = ("nvml", "tegra", "nvmap", "tegrastats", "amdgpu", "amdgpu_sensors", "amd_smi", "drm", "apple")


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
    return replace(
        device,
        headroom_bytes=Absent.STALE,
        process_list=Absent.STALE,
        api_free_bytes={},
        busy_ratio=Absent.STALE,
        memory_busy_ratio=Absent.STALE,
        state=STALLED,
    )


def aged_node(node: Node) -> Node:
    """A node's size and processors stay: by them GPU memory inside MemTotal is told apart."""
    stale = Absent.STALE
    return replace(
        node,
        available_bytes=stale,
        free_bytes=stale,
        largest_free_block_bytes=stale,
        free_4mib_bytes=stale,
        contents=(),
    )


class Collector(Protocol):
    """One source. Its constructor takes what it needs and raises `Unavailable` if that is not here.

    `name` is the word in metrics and on the page. `period_seconds` is how often to ask; 0 means every tick.
    `may_block` is true for a source whose reads can wait for somebody (a process, a driver): such a
    collector gets a thread of its own and never delays a tick. `collect` raises `Unreadable` or `OSError`
    when the source fails; any other exception is a defect and is counted as one. A collector that holds a
    device also has `release(seconds)`: let go of it, so that an administrator can reset it. One that may be
    asked more often when memory is nearly full has `hurried_seconds`, the least time between two answers then. One
    that may block, and hardly ever does, can be `Prompt` as well, and one that tells System RAM a `Watcher`.
    """

    name: str
    period_seconds: float
    may_block: bool

    def collect(self) -> Findings: ...

    def close(self) -> None: ...


@runtime_checkable
class Prompt(Protocol):
    """A collector that may block, and whose answer mostly comes within a tick's time: somebody else works on it.
    Neither method raises."""

    def put(self) -> bool:
        """Put the question at once; False where that would take time, and nothing was put."""
        ...

    def has_answer(self, seconds: float) -> bool:
        """Whether `collect` would return at once, now or within so many seconds."""
        ...


@runtime_checkable
class Watcher(Protocol):
    """A collector that can see at little cost whether its figure for System RAM is still what it was."""

    def moved_bytes(self) -> int:
        """How far what is available is now from what `collect` last said. Raises what `collect` raises."""
        ...


class Enlisted(Struct, frozen=True):
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
