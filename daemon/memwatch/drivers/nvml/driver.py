"""Long-lived NVML connection: opened once, read on request, reopened after the driver or a GPU went away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from memwatch.drivers.nvml import binding
from memwatch.drivers.nvml.errors import LIBRARY_WIDE, NvmlError, absent_reason, build_failure
from memwatch.drivers.nvml.events import WAIT_SECONDS, Events
from memwatch.drivers.nvml.gpu import Gpu, StaticInfo, UnreachableGpu
from memwatch.drivers.nvml.query import Query
from memwatch.drivers.nvml.records import GpuReading, MissingGpu, NvmlFailure, NvmlReading
from memwatch.drivers.nvml.validation import AnswerValidator, Limits
from memwatch.linux.files import Roots
from memwatch.model import Absent, Words
from memwatch.runtime.backoff import Backoff

# A wait for events that exceeds its timeout is stuck in the driver. NVML cannot be closed while it lasts.
STUCK_SECONDS = 2 * WAIT_SECONDS


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
    ) -> None:
        self._clock = clock
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
        self._gpus: list[Gpu | UnreachableGpu] = []
        self._known: dict[str, MissingGpu] = {}
        self._missing: tuple[MissingGpu, ...] = ()

    def read(self) -> NvmlReading | NvmlFailure:
        """Read all GPUs. After a failure, return the same failure until the next retry is due."""
        now = self._clock()
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
        if self._asked_at is not None:
            return True
        if self._failure is None and any(
            isinstance(gpu, UnreachableGpu) and gpu.blocks_reset for gpu in self._gpus
        ):
            return True
        ailing = self._failure is not None or not self._is_open or self._has_trouble()
        return ailing and self._backoff.is_due(now)

    def _has_trouble(self) -> bool:
        """Return True if a GPU is out of reach or does not respond, or if the number of GPUs has changed."""
        count = len(self._gpus)
        return any(
            isinstance(gpu, UnreachableGpu)
            or gpu.is_mute
            or gpu.slow.device_count not in (count, Absent.NOT_AVAILABLE)
            for gpu in self._gpus
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
        binding.initialize()
        self._is_open = True
        self._versions = _versions()
        gpus = self._enumerate(binding.number("nvmlDeviceGetCount_v2"))
        self._note_missing(gpus)
        if not gpus:
            self._shut_down()
            uuids = tuple(gpu.uuid for gpu in self._missing)
            text = f"NVML lists no GPU anymore; missing: {', '.join(uuids)}" if uuids else "NVML lists no GPU"
            self._failure = NvmlFailure("no_device", text, missing_uuids=uuids)
            return
        self._gpus = gpus
        self._failure = None
        self._events.watch([(gpu.handle, gpu.static.uuid) for gpu in gpus if isinstance(gpu, Gpu)])

    def _shut_down(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(NvmlError):
                binding.shut_down()

    def _enumerate(self, count: int) -> list[Gpu | UnreachableGpu]:
        before = {gpu.index: gpu for gpu in self._gpus} if count == len(self._gpus) else {}
        gpus = [self._gpu_at(index, before.get(index)) for index in range(count)]
        uuids = {gpu.static.uuid for gpu in gpus if isinstance(gpu, Gpu)}
        return [
            replace(gpu, static=before[gpu.index].static)
            if isinstance(gpu, UnreachableGpu)
            and gpu.index in before
            and before[gpu.index].static.uuid not in uuids
            else gpu
            for gpu in gpus
        ]

    def _gpu_at(self, index: int, before: Gpu | UnreachableGpu | None) -> Gpu | UnreachableGpu:
        """Open the GPU at an index. One that needs a reset is skipped the first time, so that it can be reset."""
        if isinstance(before, UnreachableGpu) and before.blocks_reset:
            return replace(before, held=False)
        try:
            return Gpu(index, self._roster, self._validator, self._slow_seconds, self._roots)
        except NvmlError as rejected:
            if rejected.code in LIBRARY_WIDE:
                raise
            absent = absent_reason(rejected.code)
            return UnreachableGpu(index, StaticInfo(absent, absent, absent), rejected.code)

    def _note_missing(self, gpus: list[Gpu | UnreachableGpu]) -> None:
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
        if isinstance(gpu, UnreachableGpu):
            return gpu.read()
        try:
            return gpu.read(now)
        except NvmlError as rejected:
            if rejected.code in LIBRARY_WIDE:
                raise
            lost = self._gpus[place] = UnreachableGpu(gpu.index, gpu.static, rejected.code, held=True)
            return lost.read()


def _versions() -> tuple[Words, Words]:
    """Return the driver's version and the newest CUDA version it supports."""
    driver = Query({}, ("driver", partial(binding.text, "nvmlSystemGetDriverVersion")))
    return driver.ask(), Query({}, ("cuda", binding.cuda_version)).ask()
