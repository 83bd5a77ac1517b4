"""Long-lived NVML connection: opened once, read on request, reopened after the driver or a GPU went away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_uint, c_ulonglong
from functools import partial

import pynvml  # type: ignore[import-untyped]
from msgspec.structs import replace

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.gpu import Gpu, StaticInfo, UnreachableGpu
from memwatch.core.drivers.nvml.records import (
    LIBRARY_WIDE,
    Code,
    GpuReading,
    MissingGpu,
    NvmlError,
    NvmlFailure,
    NvmlReading,
    Query,
    Xid,
    absent_reason,
    build_failure,
)
from memwatch.core.drivers.nvml.runtime_suspend import Address, RuntimeSuspend, SleepingGpu, pci_text
from memwatch.core.drivers.nvml.validation import AnswerValidator, Limits
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Words, known_or
from memwatch.core.runtime.worker import Backoff

# An event ends the wait at once; without one, each timeout is a wake-up. One wake-up per second was two fifths of
# the helper's CPU time. Closing NVML waits this long as well, except when the daemon kills the helper.
WAIT_SECONDS = 5.0
MAX_PAUSE_SECONDS = 30.0
# A wait for events that exceeds its timeout is stuck in the driver. NVML cannot be closed while it lasts.
STUCK_SECONDS = 2 * WAIT_SECONDS
# Codes for a GPU that exists, and is not for this process.
NOT_GIVEN = frozenset((Code.NOT_FOUND, Code.NO_PERMISSION))

AnyGpu = Gpu | UnreachableGpu | SleepingGpu


# Events, received in a thread: counts of XIDs, and MIG reconfigurations.


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
                self._note(known_or(uuid, ""), event.eventType, event.eventData)

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


class Driver:
    """NVML and all its GPUs, to the extent available. Not thread-safe.

    `retry_seconds`: minimum time between two attempts to open NVML. `slow_seconds`: maximum age of values that
    rarely change.
    """

    def __init__(
        self,
        limits: Limits,
        retry_seconds: float,
        slow_seconds: float,
        roots: Roots,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._suspend = RuntimeSuspend(roots, wall_clock)
        self._arrangement: object = None
        self._listed: frozenset[Address | None] = frozenset()
        self._roots = roots
        self._slow_seconds = slow_seconds
        self._roster = binding.ProcessListBuffer()
        self._validator = AnswerValidator(limits)
        self._events = Events()
        self._asked_at: float | None = None
        self._backoff = Backoff(retry_seconds)
        self._is_open = False
        self._failure: NvmlFailure | None = None
        self._versions: tuple[Words, Words] = (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
        self._gpus: list[AnyGpu] = []
        self._count = 0
        self._known: dict[str, MissingGpu] = {}
        self._missing: tuple[MissingGpu, ...] = ()

    def read(self) -> NvmlReading | NvmlFailure:
        """Read all GPUs. After a failure, return the same failure until the next retry is due."""
        now = self._clock()
        self._suspend.look(now)
        try:
            if self._wants_reopening(now) and self._events_are_quiet(now):
                self._reopen(now)
            if self._failure is None:
                return self._round(now)
        except NvmlError as rejected:
            self._failure = build_failure(rejected.code)
        return self._failure

    def end_pause(self) -> None:
        """Open a driver that failed with the next reading, as its files have changed."""
        if self._failure is not None or not self._is_open:
            self._backoff.end()

    def close(self) -> None:
        """Close NVML, unless a wait for events is stuck in it: then only the end of the process closes it."""
        if self._events.stop(WAIT_SECONDS + 0.5):
            self._shut_down()

    def _wants_reopening(self, now: float) -> bool:
        # A reopening that has begun, by stopping the event thread, is completed. A GPU that only waits for NVML to
        # be closed before it can be reset is reopened without backoff.
        if self._asked_at is not None or self._arrangement != self._suspend.arrangement:
            return True
        if self._sleeps_as_a_whole:
            return False
        if self._failure is None and any(
            isinstance(gpu, UnreachableGpu) and gpu.blocks_reset for gpu in self._gpus
        ):
            return True
        ailing = self._failure is not None or not self._is_open or self._has_trouble()
        return ailing and self._backoff.is_due(now)

    @property
    def _sleeps_as_a_whole(self) -> bool:
        """True if NVML is closed because no GPU is awake."""
        return bool(self._suspend.left_alone) and self._suspend.left_alone == self._suspend.bound

    def _has_trouble(self) -> bool:
        """Return True if a GPU is out of reach or does not respond, or if the number of GPUs has changed."""
        return any(
            isinstance(gpu, UnreachableGpu)
            or gpu.is_mute
            or gpu.slow.device_count not in (self._count, Absent.NOT_AVAILABLE)
            for gpu in self._gpus
            if not isinstance(gpu, SleepingGpu)
        )

    def _events_are_quiet(self, now: float) -> bool:
        if self._events.ask_to_stop():
            self._asked_at = None
            return True
        self._asked_at = now if self._asked_at is None else self._asked_at
        if now - self._asked_at > STUCK_SECONDS:
            self._failure = NvmlFailure("needs_new_process", "a wait for events is stuck, so NVML cannot be closed")
        return False

    def _reopen(self, now: float) -> None:
        self._backoff.failed(now)
        self._shut_down()
        self._arrangement = self._suspend.arrangement
        gpus = self._list_asleep() if self._sleeps_as_a_whole else self._open(bool(self._suspend.left_alone))
        self._note_missing(gpus)
        if not gpus:
            self._shut_down()
            uuids = ", ".join(gpu.uuid for gpu in self._missing)
            text = f"NVML lists no GPU anymore; missing: {uuids}" if uuids else "NVML lists no GPU"
            self._failure = NvmlFailure("no_device", text)
            return
        self._gpus = gpus
        self._failure = None
        if awake := [(gpu.handle, gpu.static.uuid) for gpu in gpus if isinstance(gpu, Gpu)]:
            self._events.watch(awake)

    def _open(self, some_sleep: bool) -> list[AnyGpu]:
        """Open NVML and the GPUs. Those that are asleep are not opened."""
        binding.initialize(attach=not some_sleep)
        self._is_open = True
        self._versions = _versions()
        self._count = binding.number("nvmlDeviceGetCount_v2")
        if some_sleep:
            return self._open_awake()
        gpus = self._enumerate(self._count)
        self._listed = frozenset(pci_numbers(gpu.static.pci) for gpu in gpus)
        return gpus

    def _open_awake(self) -> list[AnyGpu]:
        """Open the GPUs that are awake by their addresses: a search by index would open all of them."""
        asleep = self._list_asleep()
        before = {pci_numbers(gpu.static.pci): gpu for gpu in self._gpus}
        gpus: list[AnyGpu] = []
        for address in sorted(self._suspend.bound - self._suspend.left_alone):
            place = StaticInfo(Absent.NOT_AVAILABLE, pci_text(address), Absent.NOT_AVAILABLE)
            handle = partial(binding.handle_by_pci, pci_text(address))
            gpu = self._gpu_at(len(gpus), before.get(address), handle, place)
            # Of the host's GPUs, a container has only some.
            if not (isinstance(gpu, UnreachableGpu) and gpu.code in NOT_GIVEN and address not in self._listed):
                gpus.append(gpu)
        return [*gpus, *asleep]

    def _list_asleep(self) -> list[AnyGpu]:
        """List the GPUs that are asleep, except those that NVML did not list while all were awake."""
        sources = [(address, self._suspend.find(address)) for address in sorted(self._suspend.left_alone)]
        return [
            SleepingGpu(-1, source)
            for address, source in sources
            if source is not None and (not self._listed or address in self._listed)
        ]

    def _shut_down(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(NvmlError):
                binding.shut_down()

    def _enumerate(self, count: int) -> list[AnyGpu]:
        before = {gpu.index: gpu for gpu in self._gpus} if count == len(self._gpus) else {}
        gpus = [self._gpu_at(index, before.get(index), partial(binding.handle_at, index)) for index in range(count)]
        uuids = {gpu.static.uuid for gpu in gpus if isinstance(gpu, Gpu)}
        return [
            replace(gpu, static=before[gpu.index].static)
            if isinstance(gpu, UnreachableGpu)
            and gpu.index in before
            and before[gpu.index].static.uuid not in uuids
            else gpu
            for gpu in gpus
        ]

    def _gpu_at(
        self,
        index: int,
        before: AnyGpu | None,
        handle: Callable[[], binding.Handle],
        place: StaticInfo | None = None,
    ) -> Gpu | UnreachableGpu:
        """Open a GPU. One that needs a reset is skipped the first time, so that it can be reset."""
        if isinstance(before, UnreachableGpu) and before.blocks_reset:
            return replace(before, held=False)
        try:
            return Gpu(index, handle(), self._roster, self._validator, self._slow_seconds, self._roots)
        except NvmlError as rejected:
            if rejected.code in LIBRARY_WIDE:
                raise
            absent = absent_reason(rejected.code)
            return UnreachableGpu(index, place or StaticInfo(absent, absent, absent), rejected.code)

    def _note_missing(self, gpus: list[AnyGpu]) -> None:
        """Update the list of missing GPUs. A GPU whose PCI address is in use again was replaced: not missing."""
        statics = [gpu.static for gpu in gpus]
        present = {static.uuid for static in statics} | {static.pci for static in statics}
        self._known |= {
            static.uuid: MissingGpu(static.uuid, static.pci, static.name)
            for static in statics
            if isinstance(static.uuid, str)
        }
        self._missing = tuple(
            gpu for gpu in self._known.values() if gpu.uuid not in present and gpu.pci not in present
        )

    def _round(self, now: float) -> NvmlReading:
        self._validator.rejected = {}
        self._forget_reconfigured()
        gpus = tuple([self._read_at(place, now) for place in range(len(self._gpus))])
        if not self._has_trouble():
            self._backoff.reset()
        return NvmlReading(
            *self._versions,
            gpus,
            self._missing,
            self._events.xids(),
            self._validator.rejected,
        )

    def _forget_reconfigured(self) -> None:
        uuids = self._events.take_reconfigured()
        for gpu in self._gpus if uuids else ():
            if isinstance(gpu, Gpu) and gpu.static.uuid in uuids:
                gpu.on_reconfigured()

    def _read_at(self, place: int, now: float) -> GpuReading:
        gpu = self._gpus[place]
        if isinstance(gpu, SleepingGpu):
            return gpu.source.read()
        if isinstance(gpu, UnreachableGpu):
            return gpu.read()
        asleep = self._suspend.find(gpu.address)
        if asleep is not None and asleep.asleep:
            return asleep.read()
        try:
            reading = gpu.read(now)
        except NvmlError as rejected:
            if rejected.code in LIBRARY_WIDE:
                raise
            lost = self._gpus[place] = UnreachableGpu(gpu.index, gpu.static, rejected.code, held=True)
            return lost.read()
        self._suspend.note(reading, now)
        return reading


def _versions() -> tuple[Words, Words]:
    """Return the driver's version and the newest CUDA version it supports."""
    driver = Query({}, ("driver", partial(binding.text, "nvmlSystemGetDriverVersion")))
    return driver.ask(), Query({}, ("cuda", binding.cuda_version)).ask()
