"""Notable ticks with the processes that held the memory: small enough to keep thousands, in memory and on disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from memwatch.core.doc import Doc
from memwatch.core.helper.codec import from_packed, to_packed
from memwatch.core.model import Absent, Bytes, Device, Process, Words
from memwatch.core.snapshot import Level, LevelWord, Snapshot

MAX_TICKS = 2000
HOLDERS = 10
CALM_SECONDS, BUSY_SECONDS = 3600.0, 300.0


class Holder(Struct, frozen=True):
    """A process that held memory. `unit` and `container` are None if it has none."""

    pid: int
    name: str
    user: Words
    unit: Annotated[Words | None, Doc("Systemd unit; null without one.")]
    container: Annotated[Words | None, Doc("Container id; null without one.")]
    rss_bytes: Bytes
    footprint_bytes: Bytes
    device_bytes: Mapping[str, Bytes] = field(default_factory=dict)


class TargetPressure(Struct, frozen=True):
    """Pressure of one target. `level` is 0 to 3, `reasons` are sentences."""

    target: str
    label: str
    level: int
    ratio: float
    reasons: tuple[str, ...]

    @property
    def word(self) -> LevelWord:
        return Level(self.level).word


class PoolUse(Struct, frozen=True):
    """Size and use of a pool."""

    id: str
    label: str
    size_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes


class TickDevice(Struct, frozen=True):
    """State of a device. `errors`: its driver errors so far, by kind."""

    id: str
    name: str
    state: str
    temperature_celsius: float | Absent
    power_watts: float | Absent
    clock_hertz: Mapping[str, int] | Absent
    throttled: tuple[str, ...] | Absent
    errors: Mapping[str, int] = field(default_factory=dict)


class Tick(Struct, frozen=True):
    """One tick. `boottime` is relative to the boot it was taken in. `figures`: see `series.collect_figures`."""

    seq: int
    unix: float
    boottime: float
    pools: tuple[PoolUse, ...]
    pressure: tuple[TargetPressure, ...]
    processes: tuple[Holder, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    devices: tuple[TickDevice, ...] = ()

    @property
    def worst(self) -> TargetPressure | None:
        return max(self.pressure, key=lambda one: (one.level, one.ratio), default=None)


def build_tick(snapshot: Snapshot, boottime: float, figures: Mapping[str, float]) -> Tick:
    """Return the part of a snapshot that explains later what happened."""
    largest = sorted(snapshot.processes, key=_held, reverse=True)[:HOLDERS]
    return Tick(
        snapshot.seq,
        snapshot.unix,
        boottime,
        tuple(
            PoolUse(pool.id, pool.label, pool.size_bytes, pool.used_bytes, pool.available_bytes)
            for pool in snapshot.pools
        ),
        tuple(
            TargetPressure(
                one.target,
                snapshot.labels.get(one.target, one.target),
                int(one.level),
                one.ratio,
                tuple(reason.text for reason in one.reasons),
            )
            for one in snapshot.pressure
        ),
        tuple(_build_holder(process) for process in largest),
        {name: float(value) for name, value in figures.items()},
        tuple(_build_device(device) for device in snapshot.devices),
    )


def _build_device(device: Device) -> TickDevice:
    return TickDevice(
        device.id,
        device.name,
        device.state,
        device.temperature_celsius,
        device.power_watts,
        device.clock_hertz,
        device.throttled,
        {kind: count for kind, count in device.errors.items() if count},
    )


def _held(process: Process) -> int:
    for figure in (process.footprint_bytes, process.rss_bytes):
        if not isinstance(figure, Absent):
            return figure
    return -1


def _build_holder(process: Process) -> Holder:
    return Holder(
        process.pid,
        process.title,
        process.user,
        process.unit,
        process.container,
        process.rss_bytes,
        process.footprint_bytes,
        dict(process.device_bytes),
    )


def pack(tick: Tick) -> bytes:
    """Encode a tick as compressed bytes, a few hundred."""
    return to_packed(tick, 1)


def unpack(data: bytes) -> Tick:
    """Decode a tick from `pack`. Raises DecodeError for anything else."""
    return from_packed(Tick, data)


class NotableTick(Struct, frozen=True):
    """An encoded tick and its time on the time line of the history."""

    boottime: float
    data: bytes


def build_notable_tick(snapshot: Snapshot, boottime: float, figures: Mapping[str, float]) -> NotableTick:
    return NotableTick(boottime, pack(build_tick(snapshot, boottime, figures)))


class NotableTicks:
    """The latest notable ticks. Call `add` from one thread; `between` is thread-safe."""

    def __init__(self, max_ticks: int = MAX_TICKS) -> None:
        self._lock = threading.Lock()
        self._ticks: deque[NotableTick] = deque(maxlen=max_ticks)

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, tick: NotableTick) -> None:
        with self._lock:
            self._ticks.append(tick)

    def between(self, start: float, end: float, max_ticks: int) -> list[NotableTick]:
        """Return the newest `max_ticks` ticks between two boot times, oldest first."""
        with self._lock:
            found = [tick for tick in self._ticks if start <= tick.boottime <= end]
        return found[-max_ticks:]


class NotableTickSelector:
    """Selects notable ticks: those that change a level or the number of OOM kills, and the worst of each hour.

    At medium and above it selects the worst of each five minutes. A target without values for some time, such as a
    GPU that fell off the bus, keeps its last level.
    """

    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}
        self._kills: int | Absent | None = None
        self._worst: Snapshot | None = None
        self._began = 0.0

    def select(self, snapshot: Snapshot, worst: Snapshot) -> Snapshot | None:
        """Return the tick to keep, if any. `worst` is the worst tick of the interval that ends with `snapshot`."""
        if self._has_changed(snapshot):
            return self._choose(snapshot, snapshot)
        if self._worst is None or _rank(worst) >= _rank(self._worst):
            self._worst = worst
        calm = snapshot.worst_level in (None, Level.LOW) and self._worst.worst_level in (None, Level.LOW)
        if snapshot.monotonic - self._began < (CALM_SECONDS if calm else BUSY_SECONDS):
            return None
        return self._choose(self._worst, snapshot)

    def _has_changed(self, now: Snapshot) -> bool:
        kills, self._kills = self._kills, now.kernel.oom_kills_total
        turned = kills != self._kills
        for one in now.pressure:
            turned |= one.level != self._levels.get(one.target, Level.LOW)
            self._levels[one.target] = one.level
        return turned

    def _choose(self, tick: Snapshot, now: Snapshot) -> Snapshot:
        self._worst, self._began = None, now.monotonic
        return tick


def _rank(snapshot: Snapshot) -> tuple[int, float]:
    return max(((int(one.level), one.ratio) for one in snapshot.pressure), default=(0, 0.0))
