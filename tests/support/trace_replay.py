"""Replay of a trace through the judge, at the pace of the sampling loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from memwatch.core.accounting.driver_errors import with_logged
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import DriverError
from memwatch.core.linux.kmsg_parser import KernelLogTracker
from memwatch.core.model import Absent, Architecture, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.pressure.inputs import PressureInputs, collect_inputs, ram_used_ratio
from memwatch.core.pressure.judge import JudgeState, judge
from memwatch.core.pressure.oom_kills import OomKillCount, count_new_kills
from memwatch.core.pressure.rules import PressureRules, TargetRules
from memwatch.core.snapshot import CgroupPressure, Kernel, MemoryPsi, Node, Pressure, PsiLine, Swap
from memwatch_monitor.pacing import Pacing
from support.trace_file import LogLine, Trace, read_size

INTERVAL_SECONDS = 1.0
TICK_SECONDS = 0.001
KERNEL_COLUMNS = tuple(name for name in Kernel.__struct_fields__)


class Machine:
    """The readings of a trace as collectors report them. Call `findings` with rising times.

    `has_log`: the daemon may read the kernel log. The default installation may not.
    """

    def __init__(self, trace: Trace, has_log: bool = True) -> None:
        self._trace = trace
        self._has_log = has_log
        self._size = trace.size - read_size(trace.header.huge_pages_bytes)
        self._log = KernelLogTracker()
        self._errors: dict[str, DriverError] = {}
        self._log_read = -1.0
        self._kernel: tuple[float, Kernel] = (-INTERVAL_SECONDS, Kernel())

    def available(self, at: float) -> int:
        """Return the available bytes as judged: ZFS's cache counts, huge pages do not."""
        free = self._trace.value("available_bytes", at) + self._trace.value("arc_bytes", at)
        return int(min(self._size, max(0.0, free)))

    def findings(self, at: float) -> Findings:
        trace = self._trace
        for line in trace.log_between(self._log_read, at):
            self._read_log(line)
        self._log_read = at
        logged = replace(self._log.log, driver_errors=(*self._log.log.driver_errors, *self._errors.values()))
        log = logged if self._has_log else None
        return Findings(
            pools=self._pools(at),
            shares=self._shares(at),
            devices=with_logged(self._devices(), log) if log else self._devices(),
            psi=self._psi(at),
            swap=Swap(read_size(trace.header.swap_bytes), int(trace.value("swap_used_bytes", at))),
            kernel=self._counters(at),
            kernel_log=log,
            nodes=(Node(0, free_large_blocks_bytes=int(trace.value("large_blocks_bytes", at))),)
            if trace.has("large_blocks_bytes")
            else (),
            cgroup_pressure=CgroupPressure(trace.header.cgroup, trace.value("cgroup_some_ratio", at))
            if trace.header.cgroup
            else None,
        )

    def _read_log(self, line: LogLine) -> None:
        if not line.is_error:
            for _ in range(line.times):
                self._log.read(line.text.encode(), line.at)
            return
        driver, kind = line.text.split()
        before = self._errors.get(line.text)
        count = line.times + (before.count if before else 0)
        self._errors[line.text] = DriverError(driver, "", kind, count, line.at, line.text)

    def _pools(self, at: float) -> tuple[Pool, ...]:
        available = self.available(at)
        free = min(available, int(self._trace.value("free_bytes", at))) if self._trace.has("free_bytes") else None
        ram = Pool(
            "ram",
            PoolKind.SYSTEM_RAM,
            "System RAM",
            self._size,
            self._size - available,
            available,
            "trace",
            Quality.MEASURED,
            free_bytes=Absent.NOT_AVAILABLE if free is None else free,
        )
        gpu = self._trace.header.gpu
        size = read_size(gpu.vram_bytes) if gpu else 0
        if not size:
            return (ram,)
        used = int(self._trace.value("vram_used_bytes", at))
        return ram, Pool("gpu0", PoolKind.VRAM, "VRAM", size, used, size - used, "trace", Quality.MEASURED)

    def _shares(self, at: float) -> tuple[Share, ...]:
        if not self._trace.has("device_bytes"):
            return ()
        used = int(self._trace.value("device_bytes", at))
        kind = ShareKind.CUDA_POOL
        return (Share("cuda0", kind, "CUDA Pool", "ram", used, "trace", Quality.MEASURED, device="gpu0"),)

    def _devices(self) -> tuple[Device, ...]:
        gpu = self._trace.header.gpu
        if gpu is None:
            return ()
        architecture = Architecture.UNIFIED if gpu.unified else Architecture.DISCRETE
        places = ("ram",) if gpu.unified else ("gpu0",)
        return (Device("gpu0", gpu.vendor, gpu.name, architecture, pci=gpu.pci, allocates_from=places),)

    def _psi(self, at: float) -> MemoryPsi | None:
        if not self._trace.has("psi_some_seconds"):
            return None
        some, full = (self._trace.value(f"psi_{name}_seconds", at) for name in ("some", "full"))
        return MemoryPsi(PsiLine(0.0, 0.0, 0.0, some), PsiLine(0.0, 0.0, 0.0, full))

    def _counters(self, at: float) -> Kernel:
        """Return the counters. Their collector reads them once a second, at any pace."""
        if at - self._kernel[0] >= INTERVAL_SECONDS:
            found = {name: int(self._trace.value(name, at)) for name in KERNEL_COLUMNS if self._trace.has(name)}
            self._kernel = at, Kernel(**found)
        return self._kernel[1]


def replay(trace: Trace, has_log: bool = True) -> Iterator[tuple[float, Pressure]]:
    """Yield the verdicts on System RAM, at the pace that the sampling loop would have."""
    machine, state, pacing, kills = Machine(trace, has_log), JudgeState(), Pacing(), OomKillCount()
    rules, last = rules_of(trace), trace.header.seconds if trace.header.ends is None else trace.header.ends
    at, before = 0.0, 0
    has_slept = trace.header.suspended is None
    while at <= last:
        available = machine.available(at)
        if not pacing.is_still(at, INTERVAL_SECONDS, partial(float, before - available)):
            resumed = not has_slept and trace.header.suspended is not None and at >= trace.header.suspended[1]
            has_slept = has_slept or resumed
            findings = machine.findings(at)
            used = ram_used_ratio(findings.pools)
            kills, new_kills = count_new_kills(kills, findings.kernel, findings.kernel_log, at, used)
            inputs = with_trace_totals(collect_inputs(findings, at, rules, resumed, new_kills), trace, at)
            verdicts, state = judge(inputs, state, rules)
            pacing.on_pressure(verdicts, at, INTERVAL_SECONDS, rules)
            pacing.on_tick(at, TICK_SECONDS)
            before = available
            yield at, verdicts[0]
        at = round(at + pacing.interval(INTERVAL_SECONDS), 4)
        if trace.header.suspended and trace.header.suspended[0] <= at < trace.header.suspended[1]:
            at = trace.header.suspended[1]


def with_trace_totals(inputs: PressureInputs, trace: Trace, at: float) -> PressureInputs:
    """Add the totals that come from programs and from devices other than this trace's."""
    return replace(
        inputs,
        evicted_seconds=trace.value("evicted_seconds", at)
        if trace.has("evicted_seconds")
        else Absent.NOT_AVAILABLE,
        failed_allocations=int(trace.value("failed_allocations", at)),
    )


def rules_of(trace: Trace) -> PressureRules:
    resident = trace.header.resident
    if resident is None:
        return PressureRules()
    return PressureRules(by_target={"ram": TargetRules(resident_bytes=read_size(resident))})
