"""This machine and its memory, from the daemon if it is reachable, else read directly."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memwatch.core.backends.devices import UNIFIED, certain_part, compute_capacity, find_widest_place
from memwatch.core.findings import stale_pool, stale_share
from memwatch.core.model import (
    RAM,
    RAM_LABEL,
    Absent,
    Architecture,
    Bytes,
    Device,
    Pool,
    PoolKind,
    Quality,
    Share,
    whole_of,
)
from memwatch.library.daemon_client import Daemon, NoDaemonError, daemon
from memwatch.library.device_selection import is_cpu
from memwatch.library.frameworks import TorchPool, pools
from memwatch.library.host import Ram, host
from memwatch.library.machine_record import Machine, MemoryInfo, ResponseDecodeError, decode_machine, from_snapshot
from memwatch.library.memory_pool import CachingPool
from memwatch.library.program_safety import importing, log_once, never_raise
from memwatch.library.visible_gpus import DeviceError, Target

if TYPE_CHECKING:
    from memwatch.library.local_reading import LocalReader

# A thread requests new data from the daemon, or reads the machine, at this interval.
FRESH_SECONDS = 1.0
# The thread ends this long after the last call. A helper process that opens a driver is kept longer.
IDLE_SECONDS, LOCAL_IDLE_SECONDS = 10.0, 60.0
# Figures read without a daemon are shown for this long.
LOCAL_STALE_SECONDS = 5.0


class MachineCache:
    """Cache of the newest data of this machine. Only the first read takes time.

    Without a daemon a thread reads the machine once a second while calls are made, which takes a few milliseconds
    of CPU time. For an NVIDIA GPU a helper process then runs as well.
    """

    def __init__(self, of: Daemon) -> None:
        self._of = of
        self._machine: Machine | None = None
        self._checked: Machine | None = None  # `_is_ram_here` is about it: a reading of MemTotal takes 30 µs
        self._is_ram_here: bool = False
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._reader: LocalReader | None = None
        self._lock = threading.RLock()

    def any(self) -> Machine:
        """Return the machine from the cache regardless of age, for properties that do not change.

        The next call after one whose GPUs were not all known reads again, as `fresh`.
        """
        found = self._machine
        if found is None:
            return self._look()
        return self.fresh() if found.unread else found

    def fresh(self) -> Machine:
        """Return data at most about two seconds old.

        A thread refreshes it until no call was made for `IDLE_SECONDS`, or `LOCAL_IDLE_SECONDS` without a daemon.
        """
        now = self._asked_at = time.monotonic()
        found = self._with_daemon()
        if found is None or now - found.monotonic > (_idle_seconds(found) if self._thread else FRESH_SECONDS):
            found = self._look(keeps_reader=True)
        if self._thread is None:
            self._start()
        return found

    def with_ram(self) -> Machine:
        """Return a machine whose System RAM the caller reads itself. Starts no thread without a daemon.

        In an LXC container the caller cannot: /proc/meminfo is the container's. There the data is fresh.
        """
        found = self._with_daemon() or self._look()
        if self._checked is not found:
            self._checked, self._is_ram_here = found, _is_read_by_host(found.ram, host.ram())
        return found if self._is_ram_here and not found.from_daemon else self.fresh()

    def forget(self) -> None:
        """Drop the cache."""
        self._machine = None

    def after_fork(self) -> None:
        """Reset in the child, which has no thread. The helper process belongs to the parent."""
        self._thread = self._reader = None
        self._lock = threading.RLock()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._follow, name="memwatch-machine", daemon=True)
                with suppress(RuntimeError):  # the limit of threads is reached: the next call tries again
                    thread.start()
                    self._thread = thread

    def _with_daemon(self) -> Machine | None:
        """Return the cached machine, from a daemon if one was started since."""
        found = self._machine
        if found is not None and not found.from_daemon and not self._of.is_silent:
            found = self._machine = from_daemon(self._of) or found
        return found

    def _look(self, keeps_reader: bool = False) -> Machine:
        with self._lock:
            found = self._machine = from_daemon(self._of) or self._read_here()
            if not keeps_reader and self._thread is None:
                self._close()
            return found

    def _read_here(self) -> Machine:
        self._of.require_here()
        if self._reader is None:
            with importing:  # the reader loads its collectors
                from memwatch.library.local_reading import LocalReader

                self._reader = LocalReader()
        found = from_snapshot(self._reader.read())
        host.learn(found.pools)
        return found

    def _follow(self) -> None:
        while (found := self._machine) and time.monotonic() - self._asked_at < _idle_seconds(found):
            time.sleep(FRESH_SECONDS)
            self._refresh(found)
        with self._lock:
            self._thread = None
            self._close()

    @never_raise(None)
    def _refresh(self, found: Machine) -> None:
        with self._lock:
            newer = from_daemon(self._of)
            if newer is None and not found.from_daemon:
                newer = self._read_here()
            self._machine = newer or self._machine
            if newer and newer.from_daemon:
                self._close()

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _idle_seconds(found: Machine) -> float:
    return IDLE_SECONDS if found.from_daemon else LOCAL_IDLE_SECONDS


def from_daemon(of: Daemon) -> Machine | None:
    found = of.get("/api/v1/snapshot")
    if found is None:
        return None
    try:
        here = decode_machine(found)
        if of.is_here:
            host.learn(here.pools)
        return here
    except (ResponseDecodeError, TypeError, KeyError) as error:
        log_once(f"the response of {of.url} cannot be decoded: {error}")
        return None


machine_cache: MachineCache = MachineCache(daemon)
os.register_at_fork(after_in_child=machine_cache.after_fork)


def machine() -> Machine:
    """Return pools, shares and devices of this machine, at most two seconds old.

    Without a daemon it is read directly, which costs more. The first call, and the first after a minute without
    one, take up to two seconds. In between a thread reads the machine once a second, with a helper process for
    NVIDIA's driver. If the reading fails, System RAM stays current and other values become Absent.STALE.
    Raises NoDaemonError if MEMWATCH_URL names another machine and no daemon answers there.
    """
    found = machine_cache.fresh()
    return found if _is_current(found) else with_current_ram(found, host.ram())


def with_current_ram(found: Machine, ram: Ram | Absent) -> Machine:
    """Return the machine with current System RAM and other changing values marked as stale."""
    return replace(
        found,
        pools=tuple(_with_current_figures(pool, ram) or stale_pool(pool) for pool in found.pools),
        shares=tuple(stale_share(share) for share in found.shares),
        devices=tuple(
            replace(device, headroom_after_reclaim_bytes=Absent.STALE, headroom_bytes=Absent.STALE)
            for device in found.devices
        ),
    )


def _is_read_by_host(pool: Pool | Share | None, ram: Ram | Absent) -> bool:
    """Return True for System RAM that is exactly the memory that `host` reads."""
    return pool is not None and pool.id == RAM and isinstance(ram, Ram) and ram.total_bytes == whole_of(pool)


def _with_current_figures(pool: Pool, ram: Ram | Absent) -> Pool | None:
    """Return the pool with current values. None if it is not exactly the memory that `host` reads."""
    if isinstance(ram, Absent) or not _is_read_by_host(pool, ram):
        return None
    left = ram.available_bytes
    return replace(
        stale_pool(pool),
        used_bytes=pool.size_bytes - left,
        available_bytes=left,
        free_bytes=ram.free_bytes,
        quality=Quality.ESTIMATED if ram.quality is Quality.ESTIMATED else pool.quality,
    )


@never_raise(())
def list_gpu_pools() -> tuple[Pool, ...]:
    """Return the memory of all GPUs that is not System RAM, none if no framework of this process uses a GPU."""
    if not any(isinstance(pool, CachingPool) for pool in pools()):
        return ()
    return tuple(pool for pool in machine().pools if pool.kind is not PoolKind.SYSTEM_RAM)


@never_raise(False)
def is_unified_memory_gpu(device: object = 0) -> bool:
    """Return True if this GPU allocates from System RAM. False if that is not known or there is no such GPU.

    It is also False, and the reason is logged once, where `machine` raises NoDaemonError.
    """
    found = machine_cache.any().device(device)
    return found is not None and UNIFIED.get(found.architecture, False)


def get_device_memory_bytes(device: object = 0, default: int | None = None) -> int:
    """Return the most memory this GPU can use, from its driver or else the size of the pool it allocates from.

    For "cpu" it is the size of System RAM, for a MIG instance its own. Devices are named as in `Machine.find`.
    Without such a GPU, or if its memory is not known: `default`, else raises DeviceError, or NoDaemonError as
    `machine`.
    """
    try:
        return _read_capacity(device)
    except (DeviceError, NoDaemonError):
        if default is None:
            raise
        return default


def _read_capacity(device: object) -> int:
    here = machine_cache.any()
    target = here.find(device)
    found = _find_place(here, target) if target is None or target.instance else None
    whole = whole_of(found) if found else 0 if target is None else compute_capacity(target.device, here)
    if isinstance(whole, Absent) or not whole:
        name = RAM_LABEL if target is None else f"{target.id} ({target.device.name})"
        raise DeviceError(f"the memory of {name} is not known; `memwatch doctor` shows what its driver reports")
    return whole


def memory_info(device: object = None) -> MemoryInfo | None:
    """Return the memory of System RAM or of the pool in which a GPU can use most. Never raises.

    Devices are named as in `Machine.find`. Without such a GPU, or if its memory is not known, it is None, and the
    reason is logged once. Inside a GPU memory partition it is that of the limit, for a MIG instance its own. The
    headroom is that of the GPU in all pools, as the daemon has it: on an APU, in the carve-out and in System RAM.

    System RAM is current. GPU memory is that of the last one or two seconds. Without a daemon, the first call with
    a GPU, and the first after a minute without one, take up to two seconds.
    """
    return _memory_info(device)


@never_raise(None)
def _memory_info(device: object) -> MemoryInfo | None:
    try:
        here = machine_cache.with_ram() if is_cpu(device) else machine_cache.fresh()
        target = here.find(device)
    except (DeviceError, NoDaemonError) as error:
        log_once(f"memory_info: {error}")
        return None
    place = _find_place(here, target)
    if place is None:
        _log_unknown(None if target is None else target.device)
        return None
    unified = target is not None and UNIFIED.get(target.device.architecture, False)
    total, (used, available, free) = whole_of(place), _now(place, here, target)
    room, certain = available, certain_part(available, free)
    if target is not None and not target.instance and _is_current(here):
        room, certain = target.device.headroom_after_reclaim_bytes, target.device.headroom_bytes
    return MemoryInfo(place.id, place.label, total, used, available, certain, room, unified)


def _log_unknown(device: Device | None) -> None:
    if device is not None:
        why = f": {device.notes[0]}" if device.notes else ". `memwatch doctor` shows what its driver reports."
        log_once(f"memory_info: the memory of {device.id} ({device.name}) is not known{why}")


def _find_place(here: Machine, target: Target | None) -> Pool | Share | None:
    """Return the pool in which a device can use most, or its MIG instance. System RAM for the CPU.

    For a unified GPU it is System RAM if its pool is not known. Without a pool, return the smallest of the limits
    that are known of the device.
    """
    if target is None:
        return here.ram
    device = target.device
    shares = {share.id: share for share in here.shares}
    if target.instance in shares:
        return shares[target.instance] if whole_of(shares[target.instance]) else None
    limits = []
    place = find_widest_place(device, here)
    while place in shares:
        limits.append(shares[place])
        place = shares[place].within
    known = next((pool for pool in here.pools if pool.id == place), None)
    if known is not None or device.architecture is Architecture.UNIFIED:
        return known or here.ram
    return min((share for share in limits if whole_of(share)), key=whole_of, default=None)


def _now(place: Pool | Share, here: Machine, target: Target | None) -> tuple[Bytes, Bytes, Bytes]:
    """Return used, available and free bytes. System RAM is read again if the host has exactly its size."""
    ram, total = host.ram(), whole_of(place)
    if not isinstance(ram, Absent) and daemon.is_here and _is_read_by_host(place, ram):
        return ram.total_bytes - ram.available_bytes, ram.available_bytes, ram.free_bytes
    if _is_current(here):
        if isinstance(place, Pool):
            return place.used_bytes, place.available_bytes, place.free_bytes
        return place.used_bytes, place.left_bytes, place.left_bytes
    if target is None:
        return Absent.STALE, Absent.STALE, Absent.STALE
    free = _free_by_framework(here, target)
    return (free if isinstance(free, Absent) else max(0, total - free)), free, free


def _is_current(here: Machine) -> bool:
    return here.from_daemon or time.monotonic() - here.monotonic <= LOCAL_STALE_SECONDS


def _free_by_framework(here: Machine, target: Target) -> Bytes:
    torch = [one for one in pools() if isinstance(one, TorchPool)]
    found = next((one for one in torch if here.find(one.device) == target), None)
    return Absent.NOT_AVAILABLE if found is None else found.free()
