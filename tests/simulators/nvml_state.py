"""State of a simulated NVIDIA driver; `nvml_state_file` writes it for the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3


class Trouble(Struct, frozen=True):
    """Fault of a call: it takes long, then kills its process or fails. With `times`, only the first so often."""

    error: int | None = None
    latency_ms: int | None = None
    segfault: bool | None = None
    times: int | None = None


class Memory(Struct, frozen=True):
    """Version 2 of NVML's memory info; memory is free unless stated otherwise."""

    total: int
    used: int
    reserved: int = 0
    free: int | None = None

    def facts(self) -> dict[str, int]:
        free = self.total - self.reserved - self.used if self.free is None else self.free
        return {"total": self.total, "reserved": self.reserved, "used": self.used, "free": free}


class Bar1(Struct, frozen=True):
    total: int
    used: int


class Limit(Struct, frozen=True):
    """Limit on a cgroup by its path below the mount point. `hard` None: no hard limit."""

    cgroup: str
    soft: int
    hard: int | None
    used: int

    def __str__(self) -> str:
        return f"{self.cgroup}:{self.soft}:{'na' if self.hard is None else self.hard}:{self.used}"


class Holder(Struct, frozen=True):
    """Process in a list of NVML; `used` is None if the driver does not report it."""

    pid: int
    used: int | None
    gi: int | None = None
    ci: int | None = None

    def __str__(self) -> str:
        instances = [part for part in (self.gi, self.ci) if part is not None]
        return ":".join(
            ["na" if part is None else str(part) for part in (self.pid, self.used)] + [*map(str, instances)]
        )


class Ecc(Struct, frozen=True):
    current: bool = True
    pending: bool = True
    volatile_corrected: int = 0
    volatile_uncorrected: int = 0
    aggregate_corrected: int = 0
    aggregate_uncorrected: int = 0

    def facts(self) -> dict[str, int]:
        names = ("current", "pending", "volatile_corrected", "volatile_uncorrected")
        totals = ("aggregate_corrected", "aggregate_uncorrected")
        return {name.replace("_", "."): getattr(self, name) for name in names + totals}

    def fields(self) -> dict[int, tuple[int, int]]:
        """Return the same for nvmlDeviceGetFieldValues: ECC mode, then totals."""
        totals = (
            self.volatile_corrected,
            self.volatile_uncorrected,
            self.aggregate_corrected,
            self.aggregate_uncorrected,
        )
        modes = {1: (UNSIGNED_INT, int(self.current)), 2: (UNSIGNED_INT, int(self.pending))}
        return modes | {3 + at: (UNSIGNED_LONG_LONG, total) for at, total in enumerate(totals)}


class Remapped(Struct, frozen=True):
    """Remapped rows; `banks` counts banks by spare rows left: max, high, partial, low, none."""

    corrected: int = 0
    uncorrected: int = 0
    pending: bool = False
    failure: bool = False
    banks: tuple[int, int, int, int, int] = (2560, 0, 0, 0, 0)

    def facts(self) -> dict[str, int]:
        rows = ("corrected", "uncorrected", "pending", "failure")
        banks = [f"banks.{name}" for name in ("max", "high", "partial", "low", "none")]
        return dict(zip((*rows, *banks), (*self._rows(), *self.banks), strict=True))

    def fields(self) -> dict[int, tuple[int, int]]:
        return {142 + at: (UNSIGNED_INT, int(value)) for at, value in enumerate(self._rows())}

    def _rows(self) -> tuple[int, ...]:
        return self.corrected, self.uncorrected, self.pending, self.failure


class Sensors(Struct, frozen=True):
    """Degrees Celsius, milliwatts, MHz, the mask of clocks event reasons, and percent of time.

    None is not supported.
    """

    temperature: int | None = None
    power: int | None = None
    sm: int | None = None
    memory: int | None = None
    throttle: int | None = None
    busy: int | None = None
    memory_busy: int | None = None

    def facts(self) -> dict[str, int | None]:
        return {
            "temperature": self.temperature,
            "power": self.power,
            "clock.sm": self.sm,
            "clock.memory": self.memory,
            "throttle": self.throttle,
            "utilization.gpu": self.busy,
            "utilization.memory": self.memory_busy,
        }


class Retired(Struct, frozen=True):
    """Addresses of retired pages, as before Ampere."""

    corrected: tuple[int, ...] = ()
    uncorrected: tuple[int, ...] = ()
    pending: bool = False


class GpuInstance(Struct, frozen=True):
    memory: Memory
    bar1: Bar1 | None = None


class MigDevice(Struct, frozen=True):
    gi: int
    ci: int
    uuid: str
    name: str
    attributes: Mapping[str, int] = field(default_factory=dict)
    troubles: Mapping[str, Trouble] = field(default_factory=dict)


class Mig(Struct, frozen=True):
    """MIG partitioning: GPU instances by id, MIG devices by index. `generation` counts reconfigurations."""

    current: bool = True
    pending: bool = True
    max: int = 7
    generation: int = 0
    instances: Mapping[int, GpuInstance] = field(default_factory=dict)
    devices: Mapping[int, MigDevice] = field(default_factory=dict)


class Gpu(Struct, frozen=True):
    name: str | bytes
    uuid: str
    bus_id: str
    device_id: int
    subsystem_id: int | None = None
    brand: int | None = None
    architecture: int | None = None
    cuda: tuple[int, int] | None = None
    serial: str | None = None
    minor_number: int | None = None
    persistence: bool | None = True
    virtualization_mode: int | None = 0
    addressing_mode: int | None = None
    numa_node: int | None = None
    c2c: bool | None = None
    memory: Memory | None = None
    memory_v1: Memory | None = None
    bar1: Bar1 | None = None
    limits: tuple[Limit, ...] | None = None
    partition: str | None = None
    compute: tuple[Holder, ...] | None = ()
    graphics: tuple[Holder, ...] | None = ()
    mps: tuple[Holder, ...] | None = ()
    announced: Mapping[str, int] = field(default_factory=dict)
    process_layout: str | None = None
    ecc: Ecc | None = None
    remapped: Remapped | None = None
    retired: Retired | None = None
    sensors: Sensors | None = None
    recovery_action: int | None = None
    unrepairable: bool | None = None
    fields: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    field_errors: Mapping[int, int] = field(default_factory=dict)
    event_types: int | None = None
    mig: Mig | None = None
    down: int | None = None
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    power_file: str | None = None
    in_use: bool | None = None


class Event(Struct, frozen=True):
    gpu: int
    type: int
    data: int
    gi: int | None = None
    ci: int | None = None

    def __str__(self) -> str:
        return ":".join(
            str(part) for part in (self.gpu, self.type, self.data, self.gi, self.ci) if part is not None
        )


class Machine(Struct, frozen=True):
    """Driver and its GPUs by slot. A GPU keeps its slot when others leave; `visible` lists the present ones.

    `host` names the folder under tests/machines with the matching /proc, /sys and /.
    """

    gpus: tuple[Gpu, ...]
    driver: str = "580.126.09"
    nvml: str = "13.580.126.09"
    cuda: int = 13000
    visible: tuple[int, ...] | None = None
    init_error: int | None = None
    down: int | None = None
    troubles: Mapping[str, Trouble] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    host: str | None = None

    def with_gpu(self, slot: int, **changes: Any) -> Machine:
        gpus = list(self.gpus)
        gpus[slot] = replace(gpus[slot], **changes)
        return replace(self, gpus=tuple(gpus))

    def with_event(self, *events: Event) -> Machine:
        """Append events. The state file is the whole history, so earlier events must stay."""
        return replace(self, events=self.events + events)
