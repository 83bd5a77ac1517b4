"""Records of a machine's memory: pools, which may be summed, and shares, which may not.

Sizes are integers in bytes. An unknown figure is an `Absent` reason, never 0 and never None, so each output has to
decide how to show "unknown".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.doc import Doc


class Absent(Enum):
    """Reason for a missing figure."""

    NOT_SUPPORTED = "not_supported"  # this machine, kernel or driver does not have the figure
    NOT_PERMITTED = "not_permitted"  # it exists, but this user may not read it
    NOT_AVAILABLE = "not_available"  # expected, but not available (yet)
    NOT_READ = "not_read"  # memwatchd does not read the figure on such hardware
    SUSPENDED = "suspended"  # the device is suspended or about to be, and reading the figure would keep it awake
    STALE = "stale"  # the collector stopped answering, and the last figure is too old to show
    INCONSISTENT = "inconsistent"  # the driver or kernel contradicts itself; the figure was rejected


Bytes = int | Absent
# Id and label of the pool of System RAM.
RAM, RAM_LABEL = "ram", "System RAM"
# No machine has an exbibyte of memory: a larger figure is an error of its source.
MAX_BYTES = 1 << 60
Words = str | Absent
# `complete` if all processes that hold the memory are visible.
ProcessList = Literal["complete", "partial"]


T = TypeVar("T")
D = TypeVar("D")


def known_or(value: T | Absent, default: D) -> T | D:
    """Return a value, the default if it is absent."""
    return default if isinstance(value, Absent) else value


def sum_figures(figures: Iterable[Bytes] | Absent) -> Bytes:
    """Sum the figures. If one of them, or the whole list, is absent, return that reason."""
    if isinstance(figures, Absent):
        return figures
    total = 0
    for figure in figures:
        if isinstance(figure, Absent):
            return figure
        total += figure
    return total


class Quality(str, Enum):
    """Accuracy of a figure."""

    MEASURED = "measured"  # read directly
    DERIVED = "derived"  # exact arithmetic on measured figures
    ESTIMATED = "estimated"  # approximate, not exact to the byte


class PoolKind(str, Enum):
    """Kinds of physical memory with its own capacity."""

    SYSTEM_RAM = "system_ram"
    VRAM = "vram"
    HBM = "hbm"
    CARVEOUT = "carveout"


class ShareKind(str, Enum):
    """Kinds of bytes inside a pool that a device, a driver or a cgroup holds."""

    CUDA_POOL = "cuda_pool"
    GTT = "gtt"
    GPU_BUFFERS = "gpu_buffers"
    NPU_BUFFERS = "npu_buffers"
    METAL_WORKING_SET = "metal_working_set"
    MIG_INSTANCE = "mig_instance"
    NVML_USED = "nvml_used"
    CGROUP = "cgroup"
    GPU_LIMIT = "gpu_limit"


# Buffers of a process's own pages (userptr) may count both here and in its resident set.
PERHAPS_IN_RSS = frozenset({ShareKind.GTT, ShareKind.GPU_BUFFERS, ShareKind.NPU_BUFFERS})
# Shares of devices that are contents of their pool. The others are limits.
HELD_BY_DEVICES = frozenset(
    {
        ShareKind.CUDA_POOL,
        ShareKind.GTT,
        ShareKind.GPU_BUFFERS,
        ShareKind.NPU_BUFFERS,
        ShareKind.METAL_WORKING_SET,
        ShareKind.NVML_USED,
    }
)
# Ids of NPUs and of their places begin with it.
NPU = "npu"


def name_accelerators(places: Iterable[str]) -> str:
    """Return the kinds of devices with these ids, or ids of their places: "GPU", "NPU", or "GPU/NPU" for both."""
    kinds = {"NPU" if place.startswith(NPU) else "GPU" for place in places}
    return "/".join(sorted(kinds)) or "GPU"


# Those in the contents "devices" of System RAM. Buffers of an NPU are in memory of processes, or shared memory.
COUNTED_AS_DEVICES = HELD_BY_DEVICES - {ShareKind.NPU_BUFFERS}


class Architecture(str, Enum):
    """Relation of a device's memory to the machine's memory."""

    DISCRETE = "discrete"
    UNIFIED = "unified"
    CARVEOUT = "carveout"
    COHERENT = "coherent"
    UNKNOWN = "unknown"


class InvalidRecordError(ValueError):
    """An impossible figure, rejected when the record is built."""


def refuse_negative(owner: object, names: tuple[str, ...], what: str, its_id: object = "") -> None:
    """Raise `InvalidRecordError` if one of these fields is a number below 0.

    Runs on every tick, so the message is built only on failure.
    """
    for name in names:
        value = getattr(owner, name)
        if value.__class__ is int and value < 0:
            raise InvalidRecordError(f"{what} {its_id}: {name} is {value}, and a memory figure cannot be negative")


class Content(Struct, frozen=True):
    """One part of a pool by use, such as `page_cache`; the parts of a pool add up to its size.

    `kind`: anonymous, shared_memory, huge_pages, kernel, unattributed (these are used);
    page_cache and free (these are available).
    """

    kind: str
    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            refuse_negative(self, ("size_bytes",), "content", self.kind)


POOL_FIGURES = (
    "size_bytes",
    "used_bytes",
    "available_bytes",
    "free_bytes",
    "reserved_bytes",
    "unattributed_bytes",
    "set_aside_bytes",
    "set_aside_free_bytes",
)


class Pool(Struct, frozen=True):
    """Physical memory that overlaps no other pool: `used_bytes + available_bytes == size_bytes`.

    `free_bytes` is not part of the sum. `reserved_bytes`, `unattributed_bytes` and `set_aside_bytes` are parts of
    `used_bytes`; a driver keeps the reserved ones for itself.
    """

    id: str
    kind: PoolKind
    label: str
    size_bytes: Annotated[int, Doc("Physical size of a pool in bytes. Pools do not overlap and may be summed.")]
    used_bytes: Annotated[Bytes, Doc("Used memory of a pool in bytes; used + available = size.")]
    available_bytes: Annotated[Bytes, Doc("Memory of a pool that can be allocated without swapping, in bytes.")]
    source: str
    quality: Quality
    free_bytes: Annotated[
        Bytes, Doc("Free memory of a pool in bytes (MemFree on Linux). Page cache is available, not free.")
    ] = Absent.NOT_SUPPORTED
    reserved_bytes: Bytes = Absent.NOT_SUPPORTED
    unattributed_bytes: Annotated[
        Bytes, Doc("Used memory of a pool that is not attributed to any holder, in bytes.")
    ] = Absent.NOT_SUPPORTED
    overlap: Annotated[bool, Doc("True if the known holders add up to more than is used.")] = False
    set_aside_bytes: Annotated[
        int, Doc("Reserved for one purpose (huge pages); excluded from the pressure ratio.")
    ] = 0
    set_aside_free_bytes: Annotated[Bytes, Doc("Part of it that is neither used nor promised to a process.")] = 0
    contents: Annotated[tuple[Content, ...], Doc("Breakdown of the pool; adds up to size_bytes.")] = ()

    def __post_init__(self) -> None:
        refuse_negative(self, POOL_FIGURES, "pool", self.id)
        self._refuse_sums_that_do_not_add_up()

    @property
    def reclaimable_bytes(self) -> int | None:
        """Return the available memory that is not free, which is page cache in System RAM. None if not known."""
        if isinstance(self.available_bytes, Absent) or isinstance(self.free_bytes, Absent):
            return None
        return max(0, self.available_bytes - self.free_bytes)

    def _refuse_sums_that_do_not_add_up(self) -> None:
        used, available = self.used_bytes, self.available_bytes
        if isinstance(used, Absent) or isinstance(available, Absent):
            if used is not available:
                raise InvalidRecordError(
                    f"pool {self.id}: used_bytes and available_bytes are known or absent together"
                )
        elif used + available != self.size_bytes:
            raise InvalidRecordError(
                f"pool {self.id}: used {used} + available {available} is not size {self.size_bytes}"
            )
        if self.contents and sum([part.size_bytes for part in self.contents]) != self.size_bytes:
            raise InvalidRecordError(f"pool {self.id}: its contents do not add up to its size {self.size_bytes}")

    @property
    def judged_ratio(self) -> float | Absent:
        """Used fraction, 0 to 1, of the memory that is not set aside. Pressure is judged on this."""
        available, size = self.available_bytes, self.size_bytes - self.set_aside_bytes
        if isinstance(available, Absent):
            return available
        if size <= 0:
            return Absent.INCONSISTENT
        return max(0.0, 1.0 - available / size)


class Share(Struct, frozen=True):
    """Bytes inside a pool or another share (`within`). Never added to anything.

    `within` is the device itself if its memory size is unknown, as in a memory partition.
    """

    id: str
    kind: ShareKind
    label: str
    within: str
    used_bytes: Annotated[
        Bytes,
        Doc(
            "Used memory of a share in bytes. A share is part of a pool or of another share: never add shares to "
            "pools."
        ),
    ]
    source: str
    quality: Quality
    limit_bytes: Annotated[Bytes, Doc("Limit of a share in bytes.")] = Absent.NOT_SUPPORTED
    device: Annotated[str | None, Doc("Device that it belongs to; null for memory of no device.")] = None
    note: Annotated[str | None, Doc("Explains the figures; null if there is nothing to explain.")] = None
    peak_bytes: Annotated[Bytes, Doc("Highest use since the cgroup was created, of a limit on GPU memory.")] = (
        Absent.NOT_SUPPORTED
    )
    limit_throttles: Annotated[
        bool, Doc("At the limit, the kernel slows the processes and kills none (memory.high).")
    ] = False

    def __post_init__(self) -> None:
        refuse_negative(self, ("used_bytes", "limit_bytes", "peak_bytes"), "share", self.id)
        if self.within == self.id:
            raise InvalidRecordError(f"share {self.id}: cannot be within itself")

    @property
    def left_bytes(self) -> Bytes:
        """Return the unused part of the limit."""
        if isinstance(self.limit_bytes, Absent):
            return self.limit_bytes
        if isinstance(self.used_bytes, Absent):
            return self.used_bytes
        return max(0, self.limit_bytes - self.used_bytes)

    @property
    def judged_ratio(self) -> float | Absent:
        """Used fraction of the limit, 0 to 1 (above 1 if the limit was lowered below use)."""
        if isinstance(self.limit_bytes, Absent):
            return self.limit_bytes
        if isinstance(self.used_bytes, Absent):
            return self.used_bytes
        return self.used_bytes / self.limit_bytes if self.limit_bytes else Absent.INCONSISTENT


def whole_of(place: Pool | Share) -> int:
    """Return the size of a pool or the limit of a share, 0 if it is unknown."""
    return known_or(place.size_bytes if isinstance(place, Pool) else place.limit_bytes, 0)


def find_root(place: str, within: Mapping[str, str]) -> str:
    """Return the pool around a share, after at most as many steps as there are shares.

    It is the device itself for one whose memory size is unknown.
    """
    for _ in within:
        if place not in within:
            break
        place = within[place]
    return place


def find_inside(places: Iterable[str], shares: Collection[Share]) -> set[str]:
    """Return these places and all shares inside them."""
    found = more = set(places)
    while more:
        more = {share.id for share in shares if share.within in more} - found
        found = found | more
    return found


class Thresholds(Struct, frozen=True):
    """Thresholds of the levels, as used fractions (0 to 1)."""

    medium: float = 0.60
    high: float = 0.80
    critical: Annotated[float, Doc("The level is critical above it, not at it.")] = 0.95

    def entry(self, level: int) -> float:
        """Return the threshold of a level, 0 (low) to 3 (critical)."""
        return (0.0, self.medium, self.high, self.critical)[level]


# No GPU is colder or hotter, or takes more. Sensors without power read -256, 511 or 65261 °C.
MIN_CELSIUS, MAX_CELSIUS, MAX_WATTS = -40, 250, 20_000


class Vitals(Struct, frozen=True):
    """Temperature, power, clocks and throttling of a device.

    `clock_hertz` is keyed by clock: `sm`, `graphics` or `memory`. `throttled` names what lowers the clocks. It is
    empty for a device that reports that nothing does.
    """

    temperature_celsius: float | Absent = Absent.NOT_READ
    power_watts: float | Absent = Absent.NOT_READ
    clock_hertz: Mapping[str, int] | Absent = Absent.NOT_READ
    throttled: tuple[str, ...] | Absent = Absent.NOT_READ

    @classmethod
    def absent(cls, reason: Absent) -> Vitals:
        return cls(reason, reason, reason, reason)

    def checked(self) -> Vitals:
        """Return the vitals without a temperature or power that cannot be true."""
        celsius, watts, odd = self.temperature_celsius, self.power_watts, Absent.INCONSISTENT
        celsius = celsius if isinstance(celsius, Absent) or MIN_CELSIUS < celsius <= MAX_CELSIUS else odd
        watts = watts if isinstance(watts, Absent) or 0 <= watts <= MAX_WATTS else odd
        return Vitals(celsius, watts, self.clock_hertz, self.throttled)


# State of a device whose collector has no current data: it fails, or has released the driver on request.
STALLED = "stalled"


class Device(Struct, frozen=True):
    """A GPU. `allocates_from`: the pools and shares it can use; `evidence`: what decided `architecture`.

    `api_free_bytes` is for comparison with the headroom. Temperature, power, clocks and throttling are as in
    `Vitals`. Kinds of `errors` are `xid_79`, `ecc_uncorrected`, …
    """

    id: str
    vendor: str
    name: str
    architecture: Architecture
    uuid: Words = Absent.NOT_READ
    pci: Words = Absent.NOT_SUPPORTED
    driver: Words = Absent.NOT_READ
    allocates_from: tuple[str, ...] = ()
    headroom_bytes: Annotated[
        Bytes, Doc("Memory that can be allocated on a device now, without reclaim of page cache, in bytes.")
    ] = Absent.NOT_AVAILABLE
    headroom_after_reclaim_bytes: Annotated[
        Bytes,
        Doc(
            "Memory that can be allocated on a device once the kernel has reclaimed page cache, in bytes; the same "
            "for VRAM."
        ),
    ] = Absent.NOT_AVAILABLE
    state: str = "ok"
    evidence: tuple[str, ...] = ()
    errors: Annotated[Mapping[str, int], Doc("Memory errors reported by the driver, by kind.")] = field(
        default_factory=dict
    )
    errors_seen_unix: Annotated[Mapping[str, float], Doc("Time of the last error, by kind.")] = field(
        default_factory=dict
    )
    process_list: Annotated[
        ProcessList | Absent, Doc("Complete if all processes that hold memory of the device are visible.")
    ] = Absent.NOT_READ
    api_free_bytes: Annotated[
        Mapping[str, Bytes], Doc("Free memory as reported by each API.", examples=({"cuda": 2147483648},))
    ] = field(default_factory=dict)
    busy_ratio: Annotated[float | Absent, Doc("Fraction of time a device was busy, 0–1.")] = Absent.NOT_READ
    memory_busy_ratio: Annotated[
        float | Absent, Doc("Fraction of time the memory of a device was read or written, 0–1.")
    ] = Absent.NOT_READ
    temperature_celsius: Annotated[float | Absent, Doc("Temperature of a device in degrees Celsius.")] = (
        Absent.NOT_READ
    )
    power_watts: Annotated[
        float | Absent, Doc("Power of a device in watts; on a Jetson, of the rail in `details`.")
    ] = Absent.NOT_READ
    clock_hertz: Annotated[
        Mapping[str, int] | Absent, Doc("Clocks by name: sm, graphics or memory.", examples=({"sm": 1980000000},))
    ] = Absent.NOT_READ
    throttled: Annotated[tuple[str, ...] | Absent, Doc("What lowers the clocks now. Empty if nothing does.")] = (
        Absent.NOT_READ
    )
    details: Annotated[Mapping[str, str], Doc("Additional facts as reported by the driver.")] = field(
        default_factory=dict
    )
    notes: Annotated[tuple[str, ...], Doc("Additional information, in sentences.")] = ()

    def __post_init__(self) -> None:
        refuse_negative(self, ("headroom_after_reclaim_bytes", "headroom_bytes"), "device", self.id)

    @property
    def vitals(self) -> Vitals:
        return Vitals(self.temperature_celsius, self.power_watts, self.clock_hertz, self.throttled)

    def with_vitals(self, vitals: Vitals) -> Device:
        return replace(
            self,
            temperature_celsius=vitals.temperature_celsius,
            power_watts=vitals.power_watts,
            clock_hertz=vitals.clock_hertz,
            throttled=vitals.throttled,
        )


# Shown in place of the name of a process that is not visible.
NAMELESS = "(not visible)"


class Process(Struct, frozen=True):
    """One process. `device_bytes` is keyed by share or pool id; `footprint_basis` names the parts of the sum.

    `footprint_range` is the minimum and maximum if device bytes may also be part of the resident set, or if their
    number is unknown; `footprint_bytes` is absent then. `start_time` is seconds since the Unix epoch. `unit`,
    `container`, `pod` and `job` are None if there is none, `command` if not read.
    """

    pid: int
    start_time: float | Absent
    name: Annotated[Words, Doc("Null for a process that is not visible.")]
    rss_bytes: Bytes
    footprint_bytes: Annotated[
        Bytes, Doc("Null if only a range is known: device memory may also be counted in RSS.")
    ]
    footprint_basis: str
    user: Words = Absent.NOT_AVAILABLE
    unit: Annotated[Words | None, Doc("Systemd unit; null without one.")] = Absent.NOT_AVAILABLE
    container: Annotated[Words | None, Doc("Container id; null without one.")] = Absent.NOT_AVAILABLE
    device_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    swap_bytes: Bytes = Absent.NOT_AVAILABLE
    pod: Annotated[Words | None, Doc("UID of the Kubernetes pod; null without one.")] = None
    job: Annotated[
        Words | None,
        Doc(
            "Job of Slurm (its SLUID since 26.05), PBS, Torque, LSF or YARN by number, of HTCondor by slot; "
            "null without one."
        ),
    ] = None
    command: Annotated[Words | None, Doc("Null unless command_lines is set.")] = None
    footprint_range: tuple[int, Bytes] | None = None
    visible: Annotated[
        bool, Doc("False if only a driver lists the process: it is in another PID namespace, or has ended.")
    ] = True
    orphan: Annotated[
        bool, Doc("True if its parent has ended, nothing supervises it, and it holds at least 10% of a pool.")
    ] = False
    note: Annotated[str | None, Doc("Explains a process that is not visible or an orphan; null for others.")] = None
    script: Annotated[
        str | None,
        Doc("Script or module of a Python process, such as train.py; null for others or if not readable."),
    ] = None
    rank: Annotated[int | None, Doc("Rank of a Python process in a distributed run; null if none is known.")] = None

    @property
    def title(self) -> str:
        """Return the name for display: the script where the name is that of an interpreter."""
        return self.script or (NAMELESS if isinstance(self.name, Absent) else self.name)

    @property
    def footprint_low_bytes(self) -> Bytes:
        return self.footprint_range[0] if self.footprint_range else self.footprint_bytes

    @property
    def footprint_high_bytes(self) -> Bytes:
        return self.footprint_range[1] if self.footprint_range else self.footprint_bytes

    def __post_init__(self) -> None:
        if self.pid <= 0:
            raise InvalidRecordError(f"process {self.pid}: a process id is at least 1")
        refuse_negative(self, ("rss_bytes", "footprint_bytes", "swap_bytes"), "process", self.pid)
        for place, figure in self.device_bytes.items():
            if isinstance(figure, int) and figure < 0:
                raise InvalidRecordError(
                    f"process {self.pid}: {place} is {figure}, and a memory figure cannot be negative"
                )


# Share of the cgroup that limits memwatchd.
OWN_CGROUP = "cgroup"
# Share of the cgroup that limits the process which asks. Not "cgroup": that may be another container's.
OWN_LIMIT = "own_limit"
# Note of limits on System RAM, unless the kernel charges GPU memory to cgroups.
CGROUP_NOTE = "does not include GPU memory on unified machines"


def find_own_limit(shares: Iterable[Share]) -> str | None:
    """Return the share of memwatchd's own cgroup if it has a limit."""
    return next((one.id for one in shares if one.id == OWN_CGROUP and isinstance(one.limit_bytes, int)), None)


def find_system_ram(pools: Iterable[Pool]) -> Pool | None:
    """Return the pool of System RAM, None if there is none."""
    for pool in pools:
        if pool.kind is PoolKind.SYSTEM_RAM:
            return pool
    return None


def holds_discrete_memory(process: Process, pools: Iterable[Pool], shares: Sequence[Share]) -> bool:
    """Return True if a process holds memory outside System RAM, which its footprint contains."""
    within = {share.id: share.within for share in shares}
    places = {find_root(place, within) for place in process.device_bytes}
    return not places <= {pool.id for pool in pools if pool.kind is PoolKind.SYSTEM_RAM}


class AllocatorReport(Struct, frozen=True):
    """Memory of one allocator inside a process, as the program reports it. It is part of the process's memory.

    `retries` and `ooms` count since the process started.
    """

    pid: int
    name: str
    device: Annotated[str | None, Doc("The program's own name of a GPU; null if it gave none.")]
    allocated_bytes: Annotated[Bytes, Doc("Part of the reserved bytes that is in use.")]
    reserved_bytes: Bytes
    active_bytes: Annotated[Bytes, Doc("Bytes that cannot be released yet.")] = Absent.NOT_SUPPORTED
    inactive_split_bytes: Annotated[Bytes, Doc("Free bytes between blocks in use.")] = Absent.NOT_SUPPORTED
    limit_bytes: Bytes = Absent.NOT_SUPPORTED
    retries: int | Absent = Absent.NOT_SUPPORTED
    ooms: int | Absent = Absent.NOT_SUPPORTED
    gpu: Annotated[str | None, Doc("Id of the device in the snapshot; null if it is not known which.")] = None

    def __post_init__(self) -> None:
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "limit_bytes")
        refuse_negative(self, names, "claim", self.name)
