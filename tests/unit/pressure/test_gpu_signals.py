"""Test the signals of GPUs and their drivers: failed allocations, fragmentation, evictions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.driver_errors import with_logged
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Architecture, Device, Pool, PoolKind, Quality
from memwatch.core.pressure.inputs import PressureInputs, Target, driver_errors, fragmented_nodes
from memwatch.core.pressure.judge import JudgeState, judge
from memwatch.core.snapshot import Kernel, Level, Node
from support.pressure_verdicts import GIB, RULES, psi, ram, run, signals

GB10 = Device("gpu0", "NVIDIA", "NVIDIA GB10", Architecture.UNIFIED, pci="000f:01:00.0", allocates_from=("ram",))


@pytest.mark.parametrize(
    ("fails", "growth", "some", "level"),
    [
        (60, GIB, 0.03, Level.HIGH),
        (2, GIB, 0.03, Level.LOW),
        (60, 0, 0.03, Level.LOW),
        (60, GIB, 0.0, Level.LOW),
    ],
)
def test_fragmentation_is_high_while_devices_allocate(fails: int, growth: int, some: float, level: Level) -> None:
    """No free block of 4 MiB: high if compaction fails often, device memory grows, and tasks wait for it.

    Serving machines have no such block all day, and 1 to 2 failed compactions per second.
    """
    fragmented = fragmented_nodes((Node(0, free_large_blocks_bytes=0),), (GB10,))

    def evidence(at: float) -> PressureInputs:
        return PressureInputs(
            at,
            (ram(40 * GIB),),
            psi(at * some, 0.0),
            kernel=Kernel(compact_fail_total=int(at * fails), compact_stall_total=int(at * fails * 1.1)),
            fragmented_nodes=fragmented,
            device_bytes=int(8 * GIB + at * growth),
        )

    verdict = run(evidence, 15)[-1]

    assert fragmented == (0,)
    assert verdict.level is level
    assert ("fragmentation" in signals(verdict)) == (level is Level.HIGH)


def test_fragmentation_needs_a_gpu_that_allocates_from_system_ram() -> None:
    discrete = replace(GB10, architecture=Architecture.DISCRETE)

    assert fragmented_nodes((Node(0, free_large_blocks_bytes=0),), (discrete,)) == ()


def test_memory_error_of_the_driver_is_medium_for_a_minute() -> None:
    """XID 94 counts; XID 13 of a faulty application and counts from before the start do not."""
    gpu = Device("gpu0", "NVIDIA", "H100", Architecture.DISCRETE, allocates_from=("gpu0",))
    card = Target("gpu0", "vram", 80 * GIB, 70 * GIB)

    def evidence(at: float) -> PressureInputs:
        hit = replace(gpu, errors={"xid_94": 2 if at < 3 else 3, "xid_13": int(at), "ecc_corrected": int(at)})
        return PressureInputs(at, (card, ram(50 * GIB)), driver_errors=driver_errors(Findings(devices=(hit,))))

    verdicts = run(evidence, 70)
    _, memory = judge(evidence(0.0), JudgeState(), RULES)
    (_, beside), _ = judge(evidence(3.0), memory, RULES)

    medium = [second for second, verdict in enumerate(verdicts) if verdict.level is Level.MEDIUM]
    assert (medium[0], medium[-1]) == (3, 62)
    assert max(verdict.level for verdict in verdicts) is Level.MEDIUM
    assert (
        verdicts[3].reasons[0].text
        == "the driver of gpu0 reported XID 94: contained memory error: one program is affected"
    )
    assert beside.level is Level.LOW


def test_gpu_that_fell_off_the_bus_is_no_memory_pressure() -> None:
    """XID 79 of a GPU that is gone: the line names it, so it belongs neither to System RAM nor to other GPUs."""
    other = Device("gpu0", "NVIDIA", "H100", Architecture.DISCRETE, pci="0000:17:00.0", allocates_from=("gpu0",))
    pools = (Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", GIB, GIB // 2, GIB // 2, "t", Quality.MEASURED),)

    def evidence(at: float) -> PressureInputs:
        lost = DriverError("nvidia", "0000:65:00", "xid_79", int(at), 0.0, "NVRM: Xid …")
        double_bit = DriverError("nvidia", "0000:65:00", "xid_48", int(at), 0.0, "NVRM: Xid …")
        log = KernelLog(driver_errors=(lost, double_bit) if at else ())
        found = Findings(pools=pools, devices=with_logged((other,), log), kernel_log=log)
        return PressureInputs(at, (ram(50 * GIB),), driver_errors=driver_errors(found))

    verdict = run(evidence, 5)[-1]

    assert (verdict.level, verdict.reasons) == (Level.LOW, ())


def failing(at: float, devices: tuple[Device, ...], **more: object) -> PressureInputs:
    """Return inputs of a machine whose driver logs one NV_ERR_NO_MEMORY a second, from the first second on."""
    pool = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 64 * GIB, 24 * GIB, 40 * GIB, "t", Quality.MEASURED)
    error = DriverError("nvidia", "", "nv_err_no_memory", int(at), 0.0, "NVRM: …")
    log = KernelLog(driver_errors=(error,) if at else ())
    found = Findings(pools=(pool,), devices=with_logged(devices, log), kernel_log=log)
    return PressureInputs(at, (ram(40 * GIB),), driver_errors=driver_errors(found), **more)  # type: ignore[arg-type]


def test_failed_allocations_of_a_driver_alone_are_medium() -> None:
    """55 in three days on a machine that serves; one at each start that works. They concern System RAM."""
    card = Device("gpu9", "AMD", "R9700", Architecture.DISCRETE)

    known = run(lambda at: failing(at, (GB10, card)), 12)[-1]
    unknown = run(lambda at: failing(at, (card,)), 12)[-1]

    assert known.level is unknown.level is Level.MEDIUM
    assert known.reasons[0].text == "the driver of gpu0 reported out of memory (NV_ERR_NO_MEMORY)"
    assert unknown.reasons[0].text == "the driver of nvidia reported out of memory (NV_ERR_NO_MEMORY)"


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        (
            lambda at: {"kernel": Kernel(allocstall_total=int(at * 9))},
            "9 allocations per second had to free memory",
        ),
        (lambda at: {"failed_allocations": int(at > 5)}, "a program reports a failed allocation"),
        (
            lambda at: {"free_bytes": int(max(1.0, 6.5 - at) * GIB)},
            "only 1.0 GiB are free, 5.5 GiB less than 10 s ago",
        ),
    ],
    ids=["direct reclaim", "program", "free memory falls"],
)
def test_failed_allocations_with_a_sign_of_shortage_are_high(
    sign: Callable[[float], dict[str, object]], words: str
) -> None:
    """75 errors in one start that did not work, at 22.5 GiB available and 2.5 GiB free (vllm#54200)."""
    verdicts = run(lambda at: failing(at, (GB10,), **sign(at)), 12)

    assert verdicts[-1].level is Level.HIGH
    assert any(words in reason.text for verdict in verdicts for reason in verdict.reasons)


@pytest.mark.parametrize(("stalls", "level"), [(0, Level.HIGH), (30, Level.CRITICAL)])
def test_evicted_queues_are_a_stall(stalls: int, level: Level) -> None:
    """amdgpu evicts compute queues of an APU while System RAM is short; PSI does not show it."""

    def evidence(at: float) -> PressureInputs:
        kernel = Kernel(allocstall_total=int(at * stalls))
        return PressureInputs(at, (ram(40 * GIB),), kernel=kernel, evicted_seconds=at * 0.6)

    verdict = run(evidence, 15)[-1]

    assert verdict.level is level
    assert "GPU queues were evicted for 60% of the last 10 s" in verdict.reasons[0].text
