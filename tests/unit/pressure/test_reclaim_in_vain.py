"""Test reclaim that finds nothing on kernels without PSI, and falls that are read in steps."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from memwatch.core.pressure.inputs import PressureInputs
from memwatch.core.snapshot import Kernel, Level
from support.pressure_verdicts import GIB, psi, ram, run, signals
from support.trace_file import Trace, parse_trace
from support.trace_replay import replay

GB10 = {"vendor": "NVIDIA", "name": "NVIDIA GB10", "pci": "000f:01:00.0", "unified": True}


@pytest.mark.parametrize(
    ("allocations", "scanned", "freed", "level"),
    [
        (20, 2000, 100, Level.HIGH),
        (20, 2000, 101, Level.LOW),
        (19.9, 2000, 0, Level.LOW),
        (20, 1000, 0, Level.HIGH),
        (20, 999, 0, Level.LOW),
    ],
    ids=["5 % freed", "more freed", "few allocations", "enough pages", "few pages"],
)
def test_reclaim_in_vain_is_high_without_psi(allocations: float, scanned: int, freed: int, level: Level) -> None:
    """Kernels of JetPack have no PSI: 36 % available, and each allocation searches all pages (per second)."""

    def evidence(at: float) -> PressureInputs:
        kernel = kernel_of(int(at * allocations), int(at * scanned), int(at * freed))
        return PressureInputs(at, (ram(40 * GIB),), kernel=kernel)

    verdict = run(evidence, 20)[-1]
    assert verdict.level is level
    assert signals(verdict) == ({"livelock"} if level is Level.HIGH else set())


def kernel_of(allocations: int, scanned: int, freed: int) -> Kernel:
    return Kernel(allocstall_total=allocations, pgscan_direct_total=scanned, pgsteal_direct_total=freed)


def in_vain(at: float) -> PressureInputs:
    return PressureInputs(at, (ram(40 * GIB),), kernel=kernel_of(int(at * 3000), int(at * 3000), 0))


def test_reason_names_what_was_searched_and_freed() -> None:
    verdict = run(in_vain, 20)[-1]

    assert verdict.reasons[0].text == (
        "reclaim finds nothing: 3,000 allocations per second had to free memory, "
        "and 0% of the pages they looked at were freed"
    )


def test_stalls_decide_where_the_kernel_measures_them() -> None:
    verdicts = run(lambda at: replace(in_vain(at), psi=psi(0.0, 0.0)), 20)

    assert verdicts[-1].level is Level.LOW


def collapse(start: float, end: float, seconds: float, steps_per_second: int) -> Trace:
    """Return a fall of a GB10 from 60 s on, in GiB: linear, or in steps as of a file that is written so often."""
    header = {
        "trace": 1,
        "name": "fall",
        "half": "wedge",
        "source": "vllm-project/vllm#54200",
        "given": "start, end, seconds",
        "assumed": "steady",
        "size_bytes": "121.69GiB",
        "seconds": 60 + seconds,
        "begins": 60,
        "ends": 60 + seconds,
        "gpu": GB10,
    }
    count = round(seconds * steps_per_second) or 1
    lines: list[dict[str, float]] = [
        {"at": 0, "available_bytes": round(start * GIB)},
        {"at": 60, "available_bytes": round(start * GIB)},
    ]
    for number in range(1, count + 1):
        at = 60 + number * seconds / count
        if steps_per_second:
            lines.append({"at": at, "available_bytes": lines[-1]["available_bytes"]})
        lines.append({"at": at, "available_bytes": round((start + (end - start) * number / count) * GIB)})
    return parse_trace("\n".join(map(json.dumps, [header, *lines])), "fall")


@pytest.mark.parametrize("steps_per_second", [0, 10])
@pytest.mark.parametrize(("start", "end", "seconds"), [(29, 2.5, 9), (19.5, 0, 10), (22, 2.5, 10)])
def test_collapse_is_critical_three_seconds_before_the_end(
    start: float, end: float, seconds: float, steps_per_second: int
) -> None:
    """The machine is lost at the end of the fall, with memory left: a forecast of zero would come too late."""
    trace = collapse(start, end, seconds, steps_per_second)
    began = next(at for at, verdict in replay(trace) if verdict.level is Level.CRITICAL)

    assert 60 + seconds - began >= 3.0
