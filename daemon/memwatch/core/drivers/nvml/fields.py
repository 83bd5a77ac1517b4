"""Values of a GPU that are read in turns, so that a reading takes one call for them at most, and limits of cgroups.

The driver keeps limits on a GPU's memory itself (its `misc` backend, R615) where the kernel has no dmem controller;
where it has, the collector `dmem` reads the files. Reading needs no privilege, and a MIG GPU has no such limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from ctypes import Structure, byref, c_char_p, c_ulonglong
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from msgspec import Struct

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.records import (
    GPU_WIDE,
    OTHER_FORM,
    CgroupLimit,
    Code,
    Ecc,
    NvmlError,
    Query,
    absent_reason,
)
from memwatch.core.drivers.nvml.validation import AnswerValidator, Row
from memwatch.core.linux.cgroup_mounts import UnifiedTree, find_unified_tree
from memwatch.core.linux.dmem import UNLIMITED_BYTES, parse_regions, region_address
from memwatch.core.linux.files import Roots, SourceUnavailable, read_once
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import MAX_CELSIUS, MAX_WATTS, Absent, Bytes, Vitals, Words


class Rotation:
    """Named queries: all of them the first time, then one each time it is due, in the same order again and again.

    A full turn takes `period_seconds` if readings are frequent enough for one call each.
    """

    def __init__(self, questions: Iterable[tuple[str, Query[Any]]], period_seconds: float) -> None:
        self.values: dict[str, Any] = {}
        self._questions = deque(questions)
        self._first = self._questions[0][0]
        self._pause_seconds = period_seconds / len(self._questions)
        self._next_at: float | None = None

    @property
    def next_at(self) -> float:
        """Time of the next call. Negative infinity if all values are to be read."""
        return float("-inf") if self._next_at is None else self._next_at

    @property
    def is_complete(self) -> bool:
        """True at the end of a turn."""
        return self._questions[0][0] == self._first

    def ask(self, now: float) -> None:
        for _ in range(len(self._questions) if self._next_at is None else 1):
            name, question = self._questions[0]
            self._questions.rotate(-1)
            self.values[name] = question.ask()
        self._next_at = now + self._pause_seconds

    def expire(self) -> None:
        """Read all values the next time."""
        self._next_at = None


# On an H100 (driver 580.159) bar1 and mig_mode take 120 to 160 µs each, a round trip to the firmware, and mps and
# remapped_rows 2 to 16 µs. Memory and two process lists, which are read each time, take 18 to 55 µs, and the vitals
# 1 to 2 µs each.
class SlowFields(Rotation):
    """The latest values, each at most `period_seconds` old if readings are frequent enough for one call each.

    `mps` is the list of MPS clients. Once it is not empty, the caller reads it every time until it is empty again.
    """

    def __init__(
        self, handle: binding.Handle, codes: dict[str, int], mps: Query[list[Row]], period_seconds: float
    ) -> None:
        self.ecc: Ecc = Ecc()

        def question(name: str, form: Any) -> tuple[str, Query[Any]]:  # noqa: ANN401
            return name, Query(codes, (name, form))

        super().__init__(
            (
                question("bar1", partial(binding.bar1_size, handle)),
                question("mig_mode", partial(binding.mig_enabled, handle)),
                ("mps", mps),
                question("ecc_corrected", partial(binding.ecc_errors, handle, False)),
                question("ecc_uncorrected", partial(binding.ecc_errors, handle, True)),
                question("remapped_rows", partial(binding.remapped_rows, handle)),
                question("recovery_action", partial(binding.recovery_action, handle)),
                question("device_count", partial(binding.number, "nvmlDeviceGetCount_v2")),
            ),
            period_seconds,
        )

    @property
    def bar1_bytes(self) -> Bytes:
        return self._value("bar1")  # type: ignore[no-any-return]

    @property
    def mig_enabled(self) -> bool | Absent:
        return self._value("mig_mode")  # type: ignore[no-any-return]

    @property
    def mps(self) -> list[Row] | Absent:
        return self._value("mps")  # type: ignore[no-any-return]

    @property
    def recovery_action(self) -> Words:
        return self._value("recovery_action")  # type: ignore[no-any-return]

    @property
    def device_count(self) -> int | Absent:
        return self._value("device_count")  # type: ignore[no-any-return]

    def ask(self, now: float) -> None:
        super().ask(now)
        errors = (self._value("ecc_corrected"), self._value("ecc_uncorrected"))
        rows = self._value("remapped_rows")
        self.ecc = Ecc(*errors, *([rows] * 4 if isinstance(rows, Absent) else rows))

    def _value(self, name: str) -> Any:  # noqa: ANN401
        return self.values.get(name, Absent.NOT_AVAILABLE)


MAX_PERCENT = 100

# nvmlClocksEventReasons: what lowers the clocks. Left out are the bits for an idle GPU (0x1) and for clocks that an
# administrator, an application or a display has set (0x2, 0x10, 0x100), which are no throttling.
THROTTLE_REASONS: Mapping[int, str] = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x200: "board_limit",
    0x400: "reliability",
}
# The driver sets hw_slowdown together with its cause, if it knows the cause.
CAUSES_OF_HW_SLOWDOWN = {"hw_thermal", "power_brake"}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the reasons that a mask of NVML names, without those that another one explains."""
    words = [word for bit, word in THROTTLE_REASONS.items() if mask & bit]
    explained = CAUSES_OF_HW_SLOWDOWN.intersection(words)
    return tuple(word for word in words if word != "hw_slowdown" or not explained)


class GpuVitals(Struct, frozen=True):
    """Values of one turn. The utilization is that of the GPU and of its memory."""

    vitals: Vitals = Vitals.absent(Absent.NOT_AVAILABLE)
    busy_ratio: float | Absent = Absent.NOT_AVAILABLE
    memory_busy_ratio: float | Absent = Absent.NOT_AVAILABLE


class VitalFields(Rotation):
    """The values of the last complete turn.

    They are published together: a value that changes makes the whole answer differ, and an answer that differs is
    decoded and accounted again. Eight GPUs take a fifth of a tick for that.
    """

    def __init__(
        self, handle: binding.Handle, codes: dict[str, int], validator: AnswerValidator, period_seconds: float
    ) -> None:
        read_number, reasons = partial(binding.number, kind=c_ulonglong), "nvmlDeviceGetCurrentClocks"
        forms: dict[str, tuple[tuple[str, Any], ...]] = {
            "temperature": (
                ("temperature_v1", partial(binding.temperature, handle)),
                ("temperature", partial(binding.temperature_v0, handle)),
            ),
            "power": (("power", partial(binding.number, "nvmlDeviceGetPowerUsage", handle)),),
            "sm": (("sm_clock", partial(binding.clock_hertz, handle, binding.SM_CLOCK)),),
            "memory": (("memory_clock", partial(binding.clock_hertz, handle, binding.MEMORY_CLOCK)),),
            "throttled": (
                ("clocks_event_reasons", partial(read_number, f"{reasons}EventReasons", handle)),
                ("throttle_reasons", partial(read_number, f"{reasons}ThrottleReasons", handle)),
            ),
            "utilization": (("utilization", partial(binding.utilization_percent, handle)),),
        }
        super().__init__([(name, Query(codes, *some)) for name, some in forms.items()], period_seconds)
        self._validator = validator
        self.latest: GpuVitals = GpuVitals()

    def ask(self, now: float) -> None:
        super().ask(now)
        if self.is_complete:
            self.latest = self._build()

    def _build(self) -> GpuVitals:
        found, check = self.values, self._validator.figure
        milliwatts, mask, rates = (
            check("power", found["power"], MAX_WATTS * 1000),
            found["throttled"],
            found["utilization"],
        )
        vitals = Vitals(
            temperature_celsius=check("temperature", found["temperature"], MAX_CELSIUS),
            power_watts=milliwatts if isinstance(milliwatts, Absent) else milliwatts / 1000,
            clock_hertz=_known_clocks(found["sm"], found["memory"]),
            throttled=mask if isinstance(mask, Absent) else throttle_reasons(mask),
        )
        both = (rates, rates) if isinstance(rates, Absent) else rates
        busy = [check("utilization", rate, MAX_PERCENT) for rate in both]
        return GpuVitals(vitals, *[rate if isinstance(rate, Absent) else rate / 100 for rate in busy])


def _known_clocks(sm: int | Absent, memory: int | Absent) -> Mapping[str, int] | Absent:
    known = {name: hertz for name, hertz in (("sm", sm), ("memory", memory)) if not isinstance(hertz, Absent)}
    return known or (sm if isinstance(sm, Absent) else Absent.NOT_AVAILABLE)


# Interval for finding limited cgroups, and for reading their use. At most this many cgroups are asked about.
FIND_SECONDS, READ_SECONDS = 30.0, 5.0
MAX_CGROUPS = 64
UNSUPPORTED = OTHER_FORM | {Code.NOT_SUPPORTED, Code.NO_PERMISSION}


class MemoryLimits(Structure):
    """nvmlGetMemoryLimits_v1_t of nvml.h 13.4. nvidia-ml-py has it since 13.615 only."""

    _fields_ = (
        ("nameSpace", c_char_p),  # in: full path of the cgroup's folder
        ("softLimit", c_ulonglong),  # 0: none
        ("hardLimit", c_ulonglong),  # NVML_DEVICE_MEMORY_LIMIT_MAX, all bits set: none
        ("currentUsed", c_ulonglong),
    )


class Answer(NamedTuple):
    soft_bytes: int
    hard_bytes: int
    used_bytes: int


def read_limits(handle: binding.Handle, folder: Path) -> Answer | None:
    """Return the limits that apply to a cgroup, None without any. The nearest limited ancestor counts."""
    limits = MemoryLimits(nameSpace=str(folder).encode())
    try:
        binding.call("nvmlDeviceGetMemoryLimits_v1", handle, byref(limits))
    except NvmlError as rejected:
        if rejected.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):  # no limit, or the cgroup was removed
            return None
        raise
    if limits.hardLimit >= UNLIMITED_BYTES:
        return None
    return Answer(limits.softLimit, limits.hardLimit, limits.currentUsed)


class LimitReader:
    """Limits on one GPU. The first call that the driver does not support is the last.

    `left_out`: cgroups with processes on the GPU that the driver was not asked about.
    """

    def __init__(self, handle: binding.Handle, pci: Words, roots: Roots, codes: dict[str, int]) -> None:
        self._handle, self._pci, self._roots, self._codes = handle, pci, roots, codes
        self._limits: tuple[CgroupLimit, ...] | Absent = Absent.NOT_AVAILABLE
        self._found_at: float | None = None
        self.left_out: int = 0
        self._read_at = 0.0

    def read(self, now: float, pids: Iterable[int], has_mig: bool) -> tuple[CgroupLimit, ...] | Absent:
        """Return the limits of memwatchd's own cgroup and those of the processes on the GPU."""
        if has_mig or self._limits is Absent.NOT_SUPPORTED:
            return Absent.NOT_SUPPORTED
        try:
            if self._found_at is None or now - self._found_at >= FIND_SECONDS:
                self._found_at = self._read_at = now
                self._limits = self._find(pids)
            elif now - self._read_at >= READ_SECONDS and not isinstance(self._limits, Absent):
                self._read_at = now
                self._limits = self._read_again(self._limits)
        except NvmlError as rejected:
            if rejected.code in GPU_WIDE:
                raise
            self._codes["memory_limits"] = rejected.code
            self._limits = Absent.NOT_SUPPORTED if rejected.code in UNSUPPORTED else absent_reason(rejected.code)
        return self._limits

    def _find(self, pids: Iterable[int]) -> tuple[CgroupLimit, ...] | Absent:
        try:
            tree = find_unified_tree(self._roots)
        except SourceUnavailable:
            return Absent.NOT_SUPPORTED
        if self._is_kernels(tree):
            return Absent.NOT_SUPPORTED
        own = tree.own_path(read_once(self._roots.procfs / "self/cgroup") or b"")
        paths = dict.fromkeys([own, *(self._cgroup_of(pid, tree) for pid in sorted(set(pids)))])
        known = [path for path in paths if path is not None]
        self.left_out = len(known[MAX_CGROUPS:])
        found: dict[str, CgroupLimit] = {}
        for path in known[:MAX_CGROUPS]:
            limited = self._climb(tree, path)
            if limited is not None:
                is_own = path == own or (limited.cgroup in found and found[limited.cgroup].own)
                found[limited.cgroup] = CgroupLimit(*_figures(limited), own=is_own)
        return tuple(found.values())

    def _is_kernels(self, tree: UnifiedTree) -> bool:
        """Return True if the kernel has this GPU's memory as a dmem region: the driver uses its limits then."""
        regions = [parse_regions(read_once(tree.folder / name)) for name in ("dmem.capacity", "dmem.current")]
        here = pci_numbers(self._pci)
        return any(pci_numbers(region_address(region)) == here for one in regions for region in one)

    def _cgroup_of(self, pid: int, tree: UnifiedTree) -> str | None:
        cgroup = read_once(self._roots.procfs / str(pid) / "cgroup")
        return None if cgroup is None else tree.own_path(cgroup)

    def _climb(self, tree: UnifiedTree, path: str) -> CgroupLimit | None:
        """Return the limit that applies to a cgroup, with the ancestor it belongs to.

        A cgroup without a limit reads as its nearest limited ancestor, so the outermost with this answer has it.
        """
        answer = read_limits(self._handle, tree.folder / path.strip("/"))
        if answer is None:
            return None
        owner = PurePosixPath(path)
        for parent in owner.parents[:-1]:
            above = read_limits(self._handle, tree.folder / str(parent).strip("/"))
            if above is None or above[:2] != answer[:2]:
                break
            owner = parent
        return CgroupLimit(str(owner), *answer)

    def _read_again(self, limits: tuple[CgroupLimit, ...]) -> tuple[CgroupLimit, ...]:
        tree = find_unified_tree(self._roots)
        answers = [(one, read_limits(self._handle, tree.folder / one.cgroup.strip("/"))) for one in limits]
        return tuple(CgroupLimit(one.cgroup, *answer, own=one.own) for one, answer in answers if answer)


def _figures(limit: CgroupLimit) -> tuple[str, int, int, int]:
    return limit.cgroup, limit.soft_bytes, limit.hard_bytes, limit.used_bytes
