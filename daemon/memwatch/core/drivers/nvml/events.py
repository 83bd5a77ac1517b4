"""NVML events, received in a thread: counts of XIDs, and MIG reconfigurations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_uint, c_ulonglong

import pynvml  # type: ignore[import-untyped]

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.errors import Code, NvmlError
from memwatch.core.drivers.nvml.records import Xid
from memwatch.core.model import Absent, Words

# An event ends the wait at once; without one, each timeout is a wake-up. One wake-up per second was two fifths of
# the helper's CPU time. Closing NVML waits this long as well, except when the daemon kills the helper.
WAIT_SECONDS = 5.0
MAX_PAUSE_SECONDS = 30.0


class Events:
    """XID counts by GPU and code since this object was created. They survive a reopening of NVML."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._xids: dict[tuple[str, int], Xid] = {}
        self._reconfigured: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, gpus: Sequence[tuple[binding.Handle, Words]]) -> None:
        """Start waiting for events of these GPUs, each with its UUID. The previous thread must have stopped."""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, args=(gpus, self._stop), name="nvml-events", daemon=True
        )
        self._thread.start()

    def ask_to_stop(self) -> bool:
        """Request the thread to stop, and return True if it has. A wait ends within `WAIT_SECONDS`."""
        self._stop.set()
        return self._thread is None or not self._thread.is_alive()

    def stop(self, timeout_seconds: float) -> bool:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return self.ask_to_stop()

    def xids(self) -> tuple[Xid, ...]:
        with self._lock:
            return tuple(self._xids.values())

    def take_reconfigured(self) -> set[str]:
        """Return the UUIDs of the GPUs whose MIG configuration changed since the last call."""
        with self._lock:
            taken, self._reconfigured = self._reconfigured, set()
        return taken

    def _listen(self, gpus: Sequence[tuple[binding.Handle, Words]], stop: threading.Event) -> None:
        try:
            event_set = pynvml.c_nvmlEventSet_t()
            binding.call("nvmlEventSetCreate", byref(event_set))
        except NvmlError:
            return
        uuids = {binding.handle_address(gpu): uuid for gpu, uuid in gpus if _register(gpu, event_set)}
        if uuids:
            self._wait(event_set, uuids, stop)
        with suppress(NvmlError):
            binding.call("nvmlEventSetFree", event_set)

    def _wait(self, event_set: object, uuids: Mapping[int, Words], stop: threading.Event) -> None:
        pause = 1.0
        while not stop.is_set():
            event = pynvml.c_nvmlEventData_t()
            try:
                binding.call("nvmlEventSetWait_v2", event_set, byref(event), c_uint(int(WAIT_SECONDS * 1000)))
            except NvmlError as rejected:
                if rejected.code != Code.TIMEOUT:  # for a lost GPU the call fails at once, every time
                    stop.wait(pause)
                    pause = min(2 * pause, MAX_PAUSE_SECONDS)
            else:
                pause = 1.0
                uuid = uuids.get(binding.handle_address(event.device), Absent.NOT_AVAILABLE)
                self._note("" if isinstance(uuid, Absent) else uuid, event.eventType, event.eventData)

    def _note(self, uuid: str, kind: int, data: int) -> None:
        with self._lock:
            if kind == binding.XID:
                known = self._xids.get((uuid, data))
                count = known.count + 1 if known else 1
                self._xids[uuid, data] = Xid(uuid, data, count, self._wall_clock())
            elif kind == binding.MIG_CHANGE:
                self._reconfigured.add(uuid)


def _register(gpu: binding.Handle, event_set: object) -> bool:
    """Subscribe to XIDs and MIG changes of this GPU, and return True if it supports either."""
    kinds = c_ulonglong()
    try:
        binding.call("nvmlDeviceGetSupportedEventTypes", gpu, byref(kinds))
        wanted = kinds.value & (binding.XID | binding.MIG_CHANGE)
        if wanted:
            binding.call("nvmlDeviceRegisterEvents", gpu, c_ulonglong(wanted), event_set)
    except NvmlError:
        return False
    return bool(wanted)
