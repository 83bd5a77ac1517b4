"""What this machine is, and how much memory it has: by the daemon where one answers, else read directly."""

from __future__ import annotations

import threading
import time

from msgspec import Struct
from msgspec.structs import replace

from memwatch.backends.devices import UNIFIED, capacity_of
from memwatch.findings import aged_pool, aged_share
from memwatch.library.daemon_client import Daemon, Json, daemon
from memwatch.library.decode import NotAnAnswer, devices_of, pools_of, shares_of
from memwatch.library.framework_pools import TorchPool
from memwatch.library.frameworks import pools
from memwatch.library.host import Ram, host
from memwatch.library.never_raise import complain, harmless
from memwatch.model import Absent, Architecture, Bytes, Device, Pool, Share, ram_of

# Figures of the daemon that are this old are asked for anew, in a thread of their own.
FRESH_SECONDS = 1.0
IDLE_SECONDS = 10.0
RAM = "ram"


class Machine(Struct, frozen=True):
    """Pools add up; shares lie inside them and add up to nothing. `from_daemon`: whether memwatchd said so."""

    host: str
    name: str | Absent
    architecture: str
    explanation: str
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    from_daemon: bool
    monotonic: float

    @property
    def ram(self) -> Pool | None:
        return ram_of(self.pools)

    def device(self, wanted: object) -> Device | None:
        """By number, by id (gpu0), or as frameworks say it (cuda:0, torch.device("cuda", 0)); None where there is
        none. A number counts the GPUs as the driver lists them."""
        text = str(wanted)
        by_id = next((one for one in self.devices if one.id == text), None)
        number = text.rpartition(":")[2] if ":" in text else "0" if text in ("cuda", "hip", "mps", "xpu") else text
        if by_id is not None or not number.isdecimal() or len(number) > 4:
            return by_id
        return self.devices[int(number)] if int(number) < len(self.devices) else None


class MemoryInfo(Struct, frozen=True):
    """Of one pool, and, for a device that allocates from it, how much it could have now. On a unified machine the
    pool is System RAM, for the GPU as well: there is nothing to add."""

    pool: str
    label: str
    total_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes
    headroom_bytes: Bytes
    unified: bool


class Source:
    """The newest picture of this machine. The first look takes a while; later ones cost nothing."""

    def __init__(self, of: Daemon) -> None:
        self._of = of
        self._machine: Machine | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def any(self) -> Machine:
        """However old: what a machine is does not change."""
        return self._machine or self._look()

    def fresh(self) -> Machine:
        """At most some two seconds old where a daemon answers; a thread sees to that while somebody asks."""
        now = self._asked_at = time.monotonic()
        found = self._machine
        if found is None or (found.from_daemon and now - found.monotonic > IDLE_SECONDS):
            found = self._look()
        elif not found.from_daemon and not self._of.is_silent:
            found = self._machine = from_daemon(self._of) or found  # one may have been started since
        if found.from_daemon and self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="memwatch-machine", daemon=True)
            self._thread.start()
        return found

    def forget(self) -> None:
        """Look again when next asked."""
        self._machine = None

    def _look(self) -> Machine:
        with self._lock:
            self._machine = from_daemon(self._of) or from_here()
            return self._machine

    def _follow(self) -> None:
        while time.monotonic() - self._asked_at < IDLE_SECONDS:
            time.sleep(FRESH_SECONDS)
            self._machine = from_daemon(self._of) or self._machine
        self._thread = None


def from_daemon(of: Daemon) -> Machine | None:
    found = of.get("/api/v1/snapshot")
    if found is None:
        return None
    try:
        return machine_of(found)
    except (NotAnAnswer, TypeError, KeyError) as error:
        complain(f"what {of.url} says is not understood: {error}")
        return None


def machine_of(found: Json) -> Machine:
    """From a snapshot as the daemon says it. Raises NotAnAnswer, TypeError or KeyError."""
    told = found["machine"]
    return Machine(
        host=str(found["host"]),
        name=Absent.NOT_AVAILABLE if told["name"] is None else str(told["name"]),
        architecture=str(told["architecture"]),
        explanation=str(told["explanation"]),
        pools=pools_of(found["pools"]),
        shares=shares_of(found["shares"]),
        devices=devices_of(found["devices"]),
        from_daemon=True,
        monotonic=time.monotonic(),
    )


def from_here() -> Machine:
    from memwatch.library.local_reading import read_machine

    found = read_machine()
    told = found.machine
    return Machine(
        found.host,
        told.name,
        told.architecture,
        told.explanation,
        found.pools,
        found.shares,
        found.devices,
        False,
        time.monotonic(),
    )


source = Source(daemon)


def machine() -> Machine:
    """Pools, shares and devices of this machine. The first call takes up to two seconds without a daemon.

    Without one, later calls read System RAM anew; what else was read at the first is stale, and says so.
    """
    found = source.fresh()
    old = not found.from_daemon and time.monotonic() - found.monotonic > FRESH_SECONDS
    return aged(found, host.ram()) if old else found


def aged(found: Machine, ram: Ram | Absent) -> Machine:
    """What is still true some time after it was read, with System RAM as of now."""
    return replace(
        found,
        pools=tuple(_anew(pool, ram) or aged_pool(pool) for pool in found.pools),
        shares=tuple(aged_share(share) for share in found.shares),
        devices=tuple(replace(device, headroom_bytes=Absent.STALE) for device in found.devices),
    )


def _anew(pool: Pool, ram: Ram | Absent) -> Pool | None:
    """None where /proc/meminfo does not speak of this pool alone."""
    if pool.id != RAM or isinstance(ram, Absent) or ram.total_bytes != pool.size_bytes:
        return None
    left = ram.available_bytes
    return replace(aged_pool(pool), used_bytes=pool.size_bytes - left, available_bytes=left)


@harmless(False)
def is_unified_memory_gpu(device: object = 0) -> bool:
    """Whether what this GPU allocates is System RAM. False where there is no such GPU or that is not known."""
    found = source.any().device(device)
    return found is not None and UNIFIED.get(found.architecture, False)


@harmless(0)
def get_device_memory_bytes(device: object = 0, default: int | None = None) -> int:
    """The most this GPU can use. Where its driver says nothing, 0 or "not supported": the pool it allocates from.

    Where there is no such GPU: `default`, or System RAM.
    """
    here = source.any()
    found = here.device(device)
    if found is not None:
        whole = capacity_of(found, here)
        if isinstance(whole, int) and whole > 0:
            return whole
    if default is not None:
        return default
    return here.ram.size_bytes if here.ram is not None else 0


def memory_info(device: object = None) -> MemoryInfo | None:
    """Of System RAM, or of the pool a GPU allocates from; None where there is no such GPU or no pool is known.

    System RAM is of this moment; a GPU's own memory is the daemon's figure of the last second or two, or the
    framework's.
    """
    return _memory_info(device)


@harmless(None)
def _memory_info(device: object) -> MemoryInfo | None:
    here = source.fresh()
    found = None if device is None else here.device(device)
    pool = here.ram if device is None else _pool_of(here, found)
    if pool is None:
        return None
    unified = found is not None and UNIFIED.get(found.architecture, False)
    used, available = _now(pool, here, found)
    room = available if found is None or unified or not here.from_daemon else found.headroom_bytes
    return MemoryInfo(pool.id, pool.label, pool.size_bytes, used, available, room, unified)


def _pool_of(here: Machine, device: Device | None) -> Pool | None:
    """The first that a device allocates from, by way of shares; System RAM for a unified one without a way."""
    if device is None:
        return None
    parents = {share.id: share.within for share in here.shares}
    place = device.allocates_from[0] if device.allocates_from else ""
    while place in parents:
        place = parents[place]
    known = next((pool for pool in here.pools if pool.id == place), None)
    return known or (here.ram if device.architecture is Architecture.UNIFIED else None)


def _now(pool: Pool, here: Machine, device: Device | None) -> tuple[Bytes, Bytes]:
    """Used and available. System RAM is read anew where MemTotal is all of it."""
    ram = host.ram()
    if pool.id == RAM and not isinstance(ram, Absent) and ram.total_bytes == pool.size_bytes:
        return ram.total_bytes - ram.available_bytes, ram.available_bytes
    if here.from_daemon:
        return pool.used_bytes, pool.available_bytes
    if device is None:
        return Absent.STALE, Absent.STALE
    free = _free_by_framework(here.devices.index(device))
    return (free if isinstance(free, Absent) else max(0, pool.size_bytes - free)), free


def _free_by_framework(index: int) -> Bytes:
    found = next((one for one in pools() if isinstance(one, TorchPool) and one.device == f"cuda:{index}"), None)
    return Absent.NOT_AVAILABLE if found is None else found.free()
