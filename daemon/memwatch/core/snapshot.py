"""The snapshot of one tick: immutable, validated when it is built, and the only input of every output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Literal, get_args

from msgspec import Struct, field

from memwatch.core.doc import Doc
from memwatch.core.engines.records import Engine
from memwatch.core.kernel_log import KernelLog
from memwatch.core.leases import Lease
from memwatch.core.model import (
    Absent,
    AllocatorReport,
    Bytes,
    Content,
    Device,
    InvalidRecordError,
    Pool,
    Process,
    ProcessList,
    Quality,
    Share,
    ShareKind,
    Thresholds,
    Words,
    name_accelerators,
    refuse_negative,
    sum_figures,
)
from memwatch.core.owners import KernelHeld, Owner, ProcessSearch
from memwatch.core.silences import Silence

NeighbourState = Literal["starting", "up", "stopped", "silent", "unreachable", "refused"]


class NeighbourStatus(Struct, frozen=True):
    """A machine that this memwatchd follows, as one tick saw it. Only `up` sends ticks.

    `stopped`: its memwatchd ended the stream in order, less than a day ago. `silent`: it sends nothing, and no
    other machine reports that it receives it. `unreachable`: another machine reports so. `refused`: it answers, but
    not with a usable stream. `text` is the reason. `last_tick_unix` is a time of its clock; `age_seconds`, by the
    clock of this machine, is from the last tick, or from the start. `run` identifies the process that sent the last
    tick, "" before the first. `notifies`: this machine notifies about its silence.
    `late`: no tick for some seconds: it is no evidence for other machines that the neighbour still sends.
    """

    name: str
    state: NeighbourState
    text: str
    age_seconds: float
    last_tick_unix: float | Absent = Absent.NOT_AVAILABLE
    run: str = ""
    notifies: bool = False
    late: bool = False

    @property
    def seen_as(self) -> str:
        """Return the state that is sent to others. `late`: up, but no tick for some seconds."""
        return "late" if self.state == "up" and self.late else self.state


CollectorState = Literal["ok", "starting", "failing", "stalled", "unavailable"]


# Values in JSON, labels and the configuration, in the order of the levels.
LevelWord = Literal["low", "medium", "high", "critical"]
LevelOrUnknown = Literal[LevelWord, "unknown"]


class Level(IntEnum):
    """Pressure level of a pool or a limit."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def word(self) -> LevelWord:
        """Return the value of programs; `label` is for people."""
        return LEVEL_WORDS[self]

    @property
    def label(self) -> str:
        """Return the word for people: "OK" for `low`, which beside "System RAM" reads as "RAM is low"."""
        return "OK" if self is Level.LOW else self.word


LEVEL_WORDS: tuple[LevelWord, ...] = get_args(LevelWord)


class Reason(Struct, frozen=True):
    """Reason for a level: the code of the signal (`util`, `psi`, …) and a sentence."""

    signal: str
    text: str
    level: Annotated[
        Level | None, Doc("The level that the reason asks for; null or absent if that is not known.")
    ] = None


class Pressure(Struct, frozen=True):
    """The level of one target (a pool or a limited share). `ratio` is used ÷ judged size, 0 to 1.

    `base_level` follows from `ratio` and the thresholds alone. `level` adds hysteresis and every other signal; each
    one is in `reasons` (`util` is use).
    """

    target: str
    level: Level
    base_level: Level
    ratio: Annotated[
        float, Doc("Used fraction of the judged memory without resident memory; above 1 if over budget.")
    ]
    reasons: tuple[Reason, ...] = ()
    seconds_to_full: Annotated[
        float | Absent, Doc("Time to full at the current rate; null without a trend, or if over budget.")
    ] = Absent.NOT_AVAILABLE
    kind: Annotated[str, Doc("Kind of the pool or share.")] = ""
    size_bytes: Annotated[Bytes, Doc("Judged size: the pool without reserved memory, or a budget.")] = (
        Absent.NOT_AVAILABLE
    )
    available_bytes: Annotated[Bytes, Doc("Available part of it; negative if over budget.")] = Absent.NOT_AVAILABLE
    resident_bytes: Annotated[int, Doc("Resident memory; excluded from the ratio.")] = 0
    thresholds: Annotated[Thresholds | Absent, Doc("Fractions of the ratio at which the levels begin.")] = (
        Absent.NOT_AVAILABLE
    )
    clear_margin: Annotated[
        float | Absent,
        Doc("How far below its threshold the ratio has to fall for a level to end; null if not known."),
    ] = Absent.NOT_AVAILABLE
    clears_in_seconds: Annotated[
        float | Absent,
        Doc("Time until the level falls if use and signals stay as they are; null if it does not fall then."),
    ] = Absent.NOT_AVAILABLE
    clears_to: Annotated[Level | Absent, Doc("The level that it falls to then; null if it does not fall.")] = (
        Absent.NOT_AVAILABLE
    )

    @property
    def used_ratio(self) -> Annotated[float, Doc("The same, including resident memory.")]:
        """Used fraction including resident memory, 0 to 1; above 1 if a budget is exceeded."""
        size, available = self.size_bytes, self.available_bytes
        if isinstance(size, Absent) or isinstance(available, Absent) or not size:
            return self.ratio
        return max(0.0, 1.0 - available / size)

    @property
    def corroborated(self) -> Annotated[bool, Doc("True if any signal other than use supports the level.")]:
        """True if a signal other than use supports the level."""
        return any(reason.signal != "util" for reason in self.reasons)


# Detail of a machine whose memory.stat has a `gpu` line.
GPU_CHARGING, CHARGED = "gpu_memory_in_cgroups", "charged"


class Machine(Struct, frozen=True):
    """Identity of this machine. `architecture` is that of its devices, or `mixed`, `cpu_only` or `unknown`.

    `details`: facts as text.
    """

    name: Words = Absent.NOT_AVAILABLE
    architecture: Annotated[
        str,
        Doc(
            examples=(
                "unified",
                "discrete",
                "mixed",
                "cpu_only",
                "unknown",
            )
        ),
    ] = "unknown"
    explanation: str = ""
    in_container: bool = False
    sees_all_processes: Annotated[bool, Doc("False if processes outside a container are hidden.")] = True
    details: Annotated[Mapping[str, str], Doc(examples=({"soc": "tegra234"},))] = field(default_factory=dict)

    @property
    def charges_gpu_memory(self) -> bool:
        """True if the kernel charges GPU memory in System RAM to cgroups: memory.current contains it."""
        return self.details.get(GPU_CHARGING) == CHARGED


class Swap(Struct, frozen=True):
    """Swap space; never capacity. `zswap_memory_bytes` of System RAM hold `zswap_stored_bytes` of pages."""

    size_bytes: Annotated[int, Doc("Size of swap in bytes; never counted as memory for a GPU.")]
    used_bytes: Annotated[int, Doc("Used swap in bytes.")]
    zswap_stored_bytes: Annotated[Bytes, Doc("Size of the pages in zswap before compression, in bytes.")] = (
        Absent.NOT_SUPPORTED
    )
    zswap_memory_bytes: Annotated[
        Bytes, Doc("Memory that zswap uses, in bytes. Part of the kernel's memory in System RAM.")
    ] = Absent.NOT_SUPPORTED

    def __post_init__(self) -> None:
        refuse_negative(self, ("size_bytes", "used_bytes"), "swap")


class Zram(Struct, frozen=True):
    """Compressed block devices, mostly used as swap: `memory_bytes` of System RAM hold `stored_bytes`."""

    stored_bytes: Annotated[Bytes, Doc("Size of the data in zram devices before compression, in bytes.")]
    memory_bytes: Annotated[
        Bytes, Doc("Memory that zram devices use, in bytes. Part of the kernel's memory in System RAM.")
    ]

    def __post_init__(self) -> None:
        refuse_negative(self, ("stored_bytes", "memory_bytes"), "zram")


class ZfsCache(Struct, frozen=True):
    """ZFS's cache (ARC)."""

    size_bytes: Annotated[
        int, Doc("Size of ZFS's cache (ARC) in bytes. The part above its minimum counts as available.")
    ]
    minimum_bytes: Annotated[int, Doc("Size below which ZFS does not shrink its cache, in bytes.")]

    def __post_init__(self) -> None:
        refuse_negative(self, ("size_bytes", "minimum_bytes"), "ZFS cache")


class PsiLine(Struct, frozen=True):
    """One line of pressure stall information (PSI): fraction of each window, 0 to 1, in which tasks stalled."""

    ratio_10s: float
    ratio_60s: float
    ratio_300s: float
    total_seconds: float


class MemoryPsi(Struct, frozen=True):
    """PSI for memory. `some`: at least one task stalled. `full`: all non-idle tasks stalled at the same time."""

    some: PsiLine
    full: PsiLine | Absent


class CgroupPressure(Struct, frozen=True):
    """A cgroup that stalls on memory while the machine has enough; `some_ratio`: its PSI `some` (0 to 1)."""

    cgroup: str
    some_ratio: float


class Node(Struct, frozen=True):
    """A NUMA node. `available_bytes` is free memory, file cache and reclaimable slab: nodes have no MemAvailable.

    `contents` is from the kernel; the parts need not add up to the used memory.
    """

    id: int
    size_bytes: Bytes = Absent.NOT_AVAILABLE
    available_bytes: Bytes = Absent.NOT_AVAILABLE
    free_bytes: Bytes = Absent.NOT_AVAILABLE
    has_cpus: bool | Absent = Absent.NOT_AVAILABLE
    largest_free_block_bytes: Annotated[
        Bytes, Doc("Largest free block of physical memory on a NUMA node in bytes; falls with fragmentation.")
    ] = Absent.NOT_AVAILABLE
    free_large_blocks_bytes: Annotated[
        Bytes, Doc("Free memory of a NUMA node in blocks of at least 4 MiB, in bytes.")
    ] = Absent.NOT_AVAILABLE
    contents: Annotated[tuple[Content, ...], Doc("Breakdown of used memory, for a node without CPUs.")] = ()
    quality: Annotated[
        Quality | Absent, Doc("Of available_bytes: estimated if a line was left out that the others refute.")
    ] = Absent.NOT_AVAILABLE


def merge_nodes(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Merge nodes with the same id: an absent field is filled from the next collector that has it."""
    by_id: dict[int, Node] = {}
    for node in nodes:
        other = by_id.get(node.id)
        by_id[node.id] = node if other is None else _merged_node(other, node)
    return tuple(by_id[key] for key in sorted(by_id))


def _merged_node(one: Node, other: Node) -> Node:
    known = {name: getattr(other, name) for name in Node.__struct_fields__}
    for name in known:
        value = getattr(one, name)
        if not isinstance(value, Absent) and value != ():
            known[name] = value
    return Node(**known)


class Tegrastats(Struct, frozen=True):
    """Number and size of a Jetson's largest free blocks; only tegrastats reports them.

    Fewer blocks mean less free memory, smaller blocks fragmentation.
    """

    largest_free_blocks: Annotated[
        int, Doc("Number of free blocks of the largest size, as reported by tegrastats.")
    ]
    largest_free_block_bytes: Annotated[
        int,
        Doc("Largest free block reported by tegrastats in bytes, at most 4 MiB; falls with fragmentation."),
    ]

    def __post_init__(self) -> None:
        refuse_negative(self, ("largest_free_blocks", "largest_free_block_bytes"), "tegrastats")


# System RAM is short from this fraction of use on. Below it, stalls and kills without a name may be of a cgroup.
SHORT_USED = 0.80


class Kernel(Struct, frozen=True):
    """Counters since boot, with the names of /proc/vmstat, and memory that the kernel cannot reclaim.

    A cgroup at its own limit does not count in those of direct reclaim.
    """

    oom_kills_total: int | Absent = Absent.NOT_AVAILABLE
    compact_fail_total: Annotated[int | Absent, Doc("Compactions that made no free block.")] = Absent.NOT_AVAILABLE
    compact_stall_total: Annotated[int | Absent, Doc("Allocations that compacted memory themselves.")] = (
        Absent.NOT_AVAILABLE
    )
    allocstall_total: Annotated[int | Absent, Doc("Allocations that freed memory themselves (direct reclaim).")] = (
        Absent.NOT_AVAILABLE
    )
    pgscan_direct_total: Annotated[int | Absent, Doc("Pages scanned by direct reclaim.")] = Absent.NOT_AVAILABLE
    pgsteal_direct_total: Annotated[int | Absent, Doc("Pages freed by direct reclaim.")] = Absent.NOT_AVAILABLE
    workingset_refault_file_total: Annotated[int | Absent, Doc("Pages of files read again soon after a drop.")] = (
        Absent.NOT_AVAILABLE
    )
    pswpin_total: Annotated[int | Absent, Doc("Pages read from swap.")] = Absent.NOT_AVAILABLE
    pswpout_total: Annotated[int | Absent, Doc("Pages written to swap.")] = Absent.NOT_AVAILABLE
    mlocked_bytes: Annotated[Bytes, Doc("Memory that programs locked with mlock, in bytes (Mlocked).")] = (
        Absent.NOT_AVAILABLE
    )
    unevictable_bytes: Annotated[
        Bytes,
        Doc("Memory that the kernel cannot reclaim, locked memory included, in bytes (Unevictable)."),
    ] = Absent.NOT_AVAILABLE


class ProcessScan(Struct, frozen=True):
    """Coverage of the process list.

    `unreadable` counts processes that were listed but could not be read, mostly because they ended.
    """

    seen: int
    unreadable: int
    process_list: ProcessList = "complete"
    note: Annotated[str | None, Doc("Why the list is partial; null if it is complete.")] = None


class EndedProcess(Struct, frozen=True):
    """A process that ended while it held memory of a device."""

    pid: int
    name: str
    held_bytes: Annotated[int, Doc("Memory of the pool that it held last.")]
    unit: Annotated[Words | None, Doc("Systemd unit; null without one.")] = None
    container: Annotated[Words | None, Doc("Container id; null without one.")] = None


class NotReturned(Struct, frozen=True):
    """Memory of a pool that is still used 30 s after the processes ended that held it, and since when."""

    pool: str
    held_bytes: int
    since_unix: Annotated[float, Doc("Time when the first of the processes ended.")]
    processes: tuple[EndedProcess, ...]
    text: str


class CollectorStatus(Struct, frozen=True):
    """The state of one collector. Ages and durations are seconds; `errors` counts by reason."""

    name: str
    state: CollectorState
    age_seconds: float | Absent = Absent.NOT_AVAILABLE
    duration_seconds: float | Absent = Absent.NOT_AVAILABLE
    last_success_unix: float | Absent = Absent.NOT_AVAILABLE
    error: Annotated[str | None, Doc("Why it failed last; null if it did not fail.")] = None
    errors: Mapping[str, int] = field(default_factory=dict)


class SelfUsage(Struct, frozen=True):
    """Cost of memwatchd: resident memory, CPU time since start, lateness and duration of the tick."""

    rss_bytes: Bytes
    cpu_seconds: float
    tick_lag_seconds: float
    tick_duration_seconds: float
    memory_locked: bool


class Total(Struct, frozen=True):
    """Sum over all pools: the only sum that is allowed. Absent if no pool is known."""

    size_bytes: Bytes
    used_bytes: Bytes
    available_bytes: Bytes


# In place of a boot id, where the system has none.
UNKNOWN_BOOT = "unknown"


class Snapshot(Struct, frozen=True, dict=True):
    """State of the machine at one tick. `seq` counts ticks; `unix` is wall clock time, `monotonic` is not."""

    seq: int
    unix: float
    monotonic: float
    boot_id: str
    host: str
    interval_seconds: float
    simulated: bool
    machine: Machine
    self_usage: SelfUsage = field(name="self")
    pools: tuple[Pool, ...] = ()
    shares: tuple[Share, ...] = ()
    devices: tuple[Device, ...] = ()
    processes: tuple[Process, ...] = ()
    process_scan: ProcessScan | Absent = Absent.NOT_AVAILABLE
    unlisted: ProcessSearch | None = None
    engines: tuple[Engine, ...] = ()
    engines_not_followed: Annotated[int, Doc("Model servers beyond the limit of those that are followed.")] = 0
    owners: tuple[Owner, ...] = ()
    kernel_held: tuple[KernelHeld, ...] = ()
    container_names: Mapping[str, str] = field(default_factory=dict)
    pod_names: Mapping[str, str] = field(default_factory=dict)
    swap: Swap | Absent = Absent.NOT_AVAILABLE
    zram: Zram | Absent = Absent.NOT_AVAILABLE
    zfs_cache: ZfsCache | Absent = Absent.NOT_SUPPORTED
    psi: MemoryPsi | Absent = Absent.NOT_AVAILABLE
    cgroup_pressure: CgroupPressure | Absent = Absent.NOT_AVAILABLE
    nodes: tuple[Node, ...] = ()
    tegrastats: Tegrastats | Absent = Absent.NOT_AVAILABLE
    kernel: Kernel = Kernel()
    kernel_log: KernelLog | Absent = Absent.NOT_AVAILABLE
    pressure: tuple[Pressure, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    claims: tuple[AllocatorReport, ...] = ()
    not_returned: tuple[NotReturned, ...] = ()
    leases: tuple[Lease, ...] = ()
    silences: tuple[Silence, ...] = ()
    neighbours: tuple[NeighbourStatus, ...] = ()
    left_out: Annotated[Mapping[str, int], Doc("Entries beyond the maximum, by list.")] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.pools) + len(self.shares):
            raise InvalidRecordError("two pools or shares have the same id")
        parents = {share.id: share.within for share in self.shares}
        for share in self.shares:
            self._refuse_lost(share, parents)
        for device in self.devices:
            for place in device.allocates_from:
                if place not in self.labels:
                    raise InvalidRecordError(f"device {device.id}: allocates from {place}, which does not exist")

    def _refuse_lost(self, share: Share, parents: Mapping[str, str]) -> None:
        """Follow a share's parents; they must end in a pool."""
        place, steps = share.within, 0
        while place in parents:
            place, steps = parents[place], steps + 1
            if steps > len(parents):
                raise InvalidRecordError(f"share {share.id}: is within itself by way of {share.within}")
        if place not in self.labels and place not in self._bare_devices:
            raise InvalidRecordError(f"share {share.id}: is within {place}, which does not exist")

    @property
    def places(self) -> tuple[Pool | Share, ...]:
        """Return all pools and shares. They must not be added up."""
        return (*self.pools, *self.shares)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Label by id of every pool and share."""
        return {place.id: place.label for place in self.places}

    @property
    def accelerators(self) -> str:
        """Return the kinds of devices with memory: "GPU", "NPU" or "GPU/NPU"."""
        npus = [one.id for one in self.shares if one.kind is ShareKind.NPU_BUFFERS]
        return name_accelerators([*(device.id for device in self.devices), *npus])

    def relation(self, share: Share) -> str:
        """Format the relation of a share to its parent: "CUDA Pool ⊂ System RAM"."""
        parent = self.labels.get(share.within) or self._bare_devices[share.within]
        return f"{share.label} ⊂ {parent}"

    @cached_property
    def _bare_devices(self) -> Mapping[str, str]:
        """Name by id of the devices without a pool: the size of their memory is unknown."""
        return {device.id: device.name for device in self.devices if device.id not in self.labels}

    @cached_property
    def total(self) -> Total:
        if not self.pools:
            return Total(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
        return Total(
            sum(pool.size_bytes for pool in self.pools),
            sum_figures([pool.used_bytes for pool in self.pools]),
            sum_figures([pool.available_bytes for pool in self.pools]),
        )

    @property
    def worst_level(self) -> Level | None:
        return max((pressure.level for pressure in self.pressure), default=None)
