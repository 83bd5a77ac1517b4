"""This machine and its memory, from the daemon if it is reachable, else read directly."""

from __future__ import annotations

import threading
import time

from msgspec import Struct
from msgspec.structs import replace

from memwatch.accounting.relations import left_of
from memwatch.backends.devices import UNIFIED, certain_part, compute_capacity
from memwatch.findings import stale_pool, stale_share
from memwatch.leases import without_lease
from memwatch.library.daemon_client import Daemon, Json, daemon
from memwatch.library.decode import (
    ResponseDecodeError,
    decode_devices,
    decode_leases,
    decode_pools,
    decode_shares,
)
from memwatch.library.framework_pools import TorchPool
from memwatch.library.frameworks import pools
from memwatch.library.host import Ram, host
from memwatch.library.never_raise import log_once, never_raise
from memwatch.model import Absent, Architecture, Bytes, Device, Pool, Share, find_system_ram
from memwatch.printable import printable

# A thread requests new data from the daemon at this interval.
FRESH_SECONDS = 1.0
IDLE_SECONDS = 10.0
RAM = "ram"


class Machine(Struct, frozen=True):
    """This machine. Pools add up; shares are parts of pools and must not be added. `from_daemon`: the source."""

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
        return find_system_ram(self.pools)

    def device(self, wanted: object) -> Device | None:
        """Return a device by number, id (gpu0) or framework name (cuda:0, torch.device("cuda", 0)), or None.

        Numbers count the GPUs in the driver's order.
        """
        text = str(wanted)
        by_id = next((one for one in self.devices if one.id == text), None)
        number = text.rpartition(":")[2] if ":" in text else "0" if text in ("cuda", "hip", "mps", "xpu") else text
        if by_id is not None or not number.isdecimal() or len(number) > 4:
            return by_id
        return self.devices[int(number)] if int(number) < len(self.devices) else None


class MemoryInfo(Struct, frozen=True):
    """Memory of one pool, and the headroom of a device that allocates from it.

    Inside a GPU memory partition the size of the card is not known: `pool` and `total_bytes` are the limit's. On a
    unified machine the GPU's pool is System RAM, so the two must not be added. `headroom_certain_bytes` is the part
    of the headroom that is free before the kernel reclaims page cache.
    """

    pool: str
    label: str
    total_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes
    headroom_bytes: Bytes
    unified: bool
    headroom_certain_bytes: Bytes = Absent.NOT_AVAILABLE


class MachineCache:
    """Cache of the newest data of this machine. Only the first read takes time."""

    def __init__(self, of: Daemon) -> None:
        self._of = of
        self._machine: Machine | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def any(self) -> Machine:
        """Return the machine from the cache regardless of age, for properties that do not change."""
        return self._machine or self._look()

    def fresh(self) -> Machine:
        """Return data at most about two seconds old if a daemon is reachable.

        A thread refreshes it until no call was made for `IDLE_SECONDS`.
        """
        now = self._asked_at = time.monotonic()
        found = self._machine
        if found is None or (found.from_daemon and now - found.monotonic > IDLE_SECONDS):
            found = self._look()
        elif not found.from_daemon and not self._of.is_silent:
            found = self._machine = from_daemon(self._of) or found  # a daemon may have been started since
        if found.from_daemon and self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="memwatch-machine", daemon=True)
            self._thread.start()
        return found

    def forget(self) -> None:
        """Drop the cache."""
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
        return decode_machine(found)
    except (ResponseDecodeError, TypeError, KeyError) as error:
        log_once(f"the response of {of.url} cannot be decoded: {error}")
        return None


def decode_machine(found: Json) -> Machine:
    """Decode a snapshot of the daemon. Raises ResponseDecodeError, TypeError or KeyError."""
    of_machine = found["machine"]
    return Machine(
        host=printable(str(found["host"])),
        name=Absent.NOT_AVAILABLE if of_machine["name"] is None else printable(str(of_machine["name"])),
        architecture=printable(str(of_machine["architecture"])),
        explanation=printable(str(of_machine["explanation"])),
        pools=decode_pools(found["pools"]),
        shares=decode_shares(found["shares"]),
        devices=decode_devices(found["devices"]),
        from_daemon=True,
        monotonic=time.monotonic(),
    )


def decode_leased_machine(found: Json, own_lease: str) -> Machine:
    """Decode a snapshot with the leases of others in use. Raises as `decode_machine`."""
    from memwatch.accounting.leased import with_leases_used  # needed only while there are leases

    leases = without_lease(decode_leases(found.get("leases", ())), own_lease)  # older daemons have none
    return with_leases_used(decode_machine(found), leases)


def from_here() -> Machine:
    from memwatch.library.local_reading import read_machine

    found = read_machine()
    return Machine(
        found.host,
        found.machine.name,
        found.machine.architecture,
        found.machine.explanation,
        found.pools,
        found.shares,
        found.devices,
        False,
        time.monotonic(),
    )


machine_cache = MachineCache(daemon)


def machine() -> Machine:
    """Return pools, shares and devices of this machine. The first call takes up to two seconds without a daemon.

    Without one, later calls only refresh System RAM; all other values become Absent.STALE.
    """
    found = machine_cache.fresh()
    old = not found.from_daemon and time.monotonic() - found.monotonic > FRESH_SECONDS
    return with_current_ram(found, host.ram()) if old else found


def with_current_ram(found: Machine, ram: Ram | Absent) -> Machine:
    """Return the machine with current System RAM and other changing values marked as stale."""
    return replace(
        found,
        pools=tuple(_with_current_figures(pool, ram) or stale_pool(pool) for pool in found.pools),
        shares=tuple(stale_share(share) for share in found.shares),
        devices=tuple(
            replace(device, headroom_bytes=Absent.STALE, headroom_certain_bytes=Absent.STALE)
            for device in found.devices
        ),
    )


def _with_current_figures(pool: Pool, ram: Ram | Absent) -> Pool | None:
    """Return the pool with current values. None if it is not exactly the memory in /proc/meminfo."""
    if pool.id != RAM or isinstance(ram, Absent) or ram.total_bytes != pool.size_bytes:
        return None
    left = ram.available_bytes
    return replace(
        stale_pool(pool), used_bytes=pool.size_bytes - left, available_bytes=left, free_bytes=ram.free_bytes
    )


@never_raise(False)
def is_unified_memory_gpu(device: object = 0) -> bool:
    """Return True if this GPU allocates from System RAM. False if that is not known or there is no such GPU."""
    found = machine_cache.any().device(device)
    return found is not None and UNIFIED.get(found.architecture, False)


@never_raise(0)
def get_device_memory_bytes(device: object = 0, default: int | None = None) -> int:
    """Return the most memory this GPU can use, from its driver or else the size of the pool it allocates from.

    Without such a GPU: `default`, or else the size of System RAM.
    """
    here = machine_cache.any()
    found = here.device(device)
    if found is not None:
        whole = compute_capacity(found, here)
        if isinstance(whole, int) and whole > 0:
            return whole
    if default is not None:
        return default
    return here.ram.size_bytes if here.ram is not None else 0


def memory_info(device: object = None) -> MemoryInfo | None:
    """Return the memory of System RAM or of the pool a GPU allocates from. None without such a GPU or pool.

    Inside a GPU memory partition it is that of the limit. A GPU without known memory is logged once. System RAM is
    current. Dedicated GPU memory is the daemon's value of the last one or two seconds, or the framework's. Without
    both it is known in the first second only.
    """
    return _memory_info(device)


@never_raise(None)
def _memory_info(device: object) -> MemoryInfo | None:
    here = machine_cache.fresh()
    found = None if device is None else here.device(device)
    place = here.ram if device is None else _find_place(here, found)
    if place is None:
        _log_unknown(found)
        return None
    unified = found is not None and UNIFIED.get(found.architecture, False)
    total, (used, available, free) = _size_of(place), _now(place, here, found)
    room, certain = available, certain_part(available, free)
    if found is not None and not unified and _is_current(here):
        room, certain = found.headroom_bytes, found.headroom_certain_bytes
    return MemoryInfo(place.id, place.label, total, used, available, room, unified, certain)


def _log_unknown(device: Device | None) -> None:
    if device is not None:
        why = f": {device.notes[0]}" if device.notes else ". `memwatch doctor` shows what its driver reports."
        log_once(f"memory_info: the memory of {device.id} ({device.name}) is not known{why}")


def _find_place(here: Machine, device: Device | None) -> Pool | Share | None:
    """Return the first pool a device allocates from. System RAM for a unified one if that is not known.

    Without a pool, return the smallest of the limits that are known of the device.
    """
    if device is None:
        return None
    shares = {share.id: share for share in here.shares}
    limits = []
    place = device.allocates_from[0] if device.allocates_from else ""
    while place in shares:
        limits.append(shares[place])
        place = shares[place].within
    known = next((pool for pool in here.pools if pool.id == place), None)
    if known is not None or device.architecture is Architecture.UNIFIED:
        return known or here.ram
    return min((share for share in limits if _size_of(share)), key=_size_of, default=None)


def _size_of(place: Pool | Share) -> int:
    """Return the size of a pool, or the limit of a share. 0 if it has none."""
    size = place.size_bytes if isinstance(place, Pool) else place.limit_bytes
    return size if isinstance(size, int) else 0


def _now(place: Pool | Share, here: Machine, device: Device | None) -> tuple[Bytes, Bytes, Bytes]:
    """Return used, available and free bytes. System RAM is read again if MemTotal is exactly its size."""
    ram, total = host.ram(), _size_of(place)
    if place.id == RAM and not isinstance(ram, Absent) and ram.total_bytes == total:
        return ram.total_bytes - ram.available_bytes, ram.available_bytes, ram.free_bytes
    if _is_current(here):
        if isinstance(place, Pool):
            return place.used_bytes, place.available_bytes, place.free_bytes
        return place.used_bytes, left_of(place), left_of(place)
    if device is None:
        return Absent.STALE, Absent.STALE, Absent.STALE
    free = _free_by_framework(here.devices.index(device))
    return (free if isinstance(free, Absent) else max(0, total - free)), free, free


def _is_current(here: Machine) -> bool:
    return here.from_daemon or time.monotonic() - here.monotonic <= FRESH_SECONDS


def _free_by_framework(index: int) -> Bytes:
    found = next((one for one in pools() if isinstance(one, TorchPool) and one.device == f"cuda:{index}"), None)
    return Absent.NOT_AVAILABLE if found is None else found.free()
