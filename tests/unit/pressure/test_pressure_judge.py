"""Test that every signal raises the right level, gives a reason as text, and ends after its time."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from memwatch.core.kernel_log import OomKill
from memwatch.core.model import (
    Absent,
    Architecture,
    Bytes,
    Device,
    Pool,
    PoolKind,
    Quality,
    Share,
    ShareKind,
    Thresholds,
)
from memwatch.core.pressure.forecast import Forecast
from memwatch.core.pressure.inputs import PressureInputs, Target, build_targets, find_node_pools
from memwatch.core.pressure.judge import JudgeState, Resident, is_near_the_end, judge
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.pressure.rules import PressureRules, TargetRules
from memwatch.core.pressure.signals import full_in
from memwatch.core.snapshot import CgroupPressure, Kernel, Level, Node, Swap
from support.pressure_verdicts import GIB, MIB, RULES, psi, ram, run, signals


def test_calm_machine_has_no_reason() -> None:
    """45 % used and the rest page cache: low, no reason, no forecast."""
    verdict = run(lambda at: PressureInputs(at, (ram(35 * GIB),), psi(0, 0), Swap(GIB, 0)), 60)[-1]

    assert (verdict.level, verdict.base_level, verdict.reasons) == (Level.LOW, Level.LOW, ())
    assert verdict.seconds_to_full is Absent.NOT_AVAILABLE
    assert not verdict.corroborated


def test_verdict_has_the_thresholds_of_its_target() -> None:
    """Clients draw them: they may differ by target."""
    own = Thresholds(0.5, 0.7, 0.9)
    rules = PressureRules(by_target={"ram": TargetRules(own)})

    assert run(lambda at: PressureInputs(at, (ram(35 * GIB),)), 1, rules)[0].thresholds == own
    assert run(lambda at: PressureInputs(at, (ram(35 * GIB),)), 1)[0].thresholds == RULES.thresholds


@pytest.mark.parametrize(
    ("available", "level"), [(255 * MIB, Level.CRITICAL), (400 * MIB, Level.HIGH), (600 * MIB, Level.MEDIUM)]
)
def test_small_machine_is_judged_by_available_bytes(available: int, level: Level) -> None:
    """On a board of 2.5 GiB the available bytes count."""
    verdict = run(lambda at: PressureInputs(at, (ram(available, 2560 * MIB),)), 1)[0]

    assert verdict.level is level
    assert ("floor" in signals(verdict)) == (level is not Level.MEDIUM)


RECLAIMING, NOT_COUNTED = Kernel(allocstall_total=40), Kernel()


@pytest.mark.parametrize(
    ("some", "full", "used", "kernel", "level"),
    [
        (0.04, 0.0, 0.3, RECLAIMING, Level.LOW),
        (0.06, 0.0, 0.3, RECLAIMING, Level.MEDIUM),
        (0.25, 0.0, 0.3, RECLAIMING, Level.MEDIUM),
        (0.25, 0.0, 0.82, RECLAIMING, Level.HIGH),
        (0.10, 0.06, 0.3, RECLAIMING, Level.HIGH),
        (0.30, 0.25, 0.3, RECLAIMING, Level.HIGH),
        (0.30, 0.25, 0.7, RECLAIMING, Level.CRITICAL),
        (0.30, 0.25, 0.7, NOT_COUNTED, Level.CRITICAL),
        (0.30, 0.25, 0.3, NOT_COUNTED, Level.HIGH),
        (0.06, 0.06, 0.3, Kernel(pgscan_direct_total=1200, allocstall_total=0), Level.HIGH),
    ],
)
def test_stalls_raise_the_level(some: float, full: float, used: float, kernel: Kernel, level: Level) -> None:
    """By share of the last ten seconds, while the machine reclaims, or where its kernel does not count that."""
    target = ram(int((1 - used) * 64 * GIB))

    def evidence(at: float) -> PressureInputs:
        rising = replace(kernel, **{name: times(value, at) for name, value in asdict(kernel).items()})
        return PressureInputs(at, (target,), psi(at * some, at * full), kernel=rising)

    verdict = run(evidence, 15)[-1]

    assert verdict.level is level
    assert verdict.corroborated == (level > Level.LOW)


@pytest.mark.parametrize(("available", "level"), [(2 * GIB, Level.HIGH), (2 * GIB + 1, Level.MEDIUM)])
@pytest.mark.parametrize(("some", "full"), [(0.25, 0.0), (0.06, 0.06)])
def test_stalls_are_of_the_machine_from_eighty_percent_on(
    some: float, full: float, available: int, level: Level
) -> None:
    """Of 10 GiB, without direct reclaim of the machine. The level by use is high either way at 80 %."""
    idle = Kernel(allocstall_total=0, pgscan_direct_total=0)
    target = ram(available, 10 * GIB)

    verdict = run(lambda at: PressureInputs(at, (target,), psi(at * some, at * full), kernel=idle), 15)[-1]

    assert [reason.level for reason in verdict.reasons if reason.signal == "psi"] == [level]


def times(count: int | Absent, at: float) -> int | Absent:
    return count if isinstance(count, Absent) else int(count * at)


@pytest.mark.parametrize("where", [None, CgroupPressure("/docker/1f6b", 0.9)])
@pytest.mark.parametrize("used", [0.2, 0.61, 0.79])
@pytest.mark.parametrize("stalls", [0, 9], ids=["none", "rare"])
def test_stalls_without_reclaim_of_the_machine_are_medium(
    stalls: int, used: float, where: CgroupPressure | None
) -> None:
    """A cgroup at its limit stalls by itself, 25 to 36 % of the time at 20 % use: the reason says so."""
    target = ram(int((1 - used) * 64 * GIB))

    def evidence(at: float) -> PressureInputs:
        kernel = Kernel(allocstall_total=int(stalls * at / 15), pgscan_direct_total=int(stalls * at))
        return PressureInputs(at, (target,), psi(at, at), kernel=kernel, cgroup_pressure=where)

    verdicts = run(evidence, 40)

    assert {one.level for one in verdicts[1:]} == {Level.MEDIUM}
    name = "cgroup /docker/1f6b" if where else "a cgroup"
    assert f"although memory is available: {name} is slowed by its memory limit" in verdicts[-1].reasons[-1].text


def test_short_stall_is_detected_before_the_kernel_average() -> None:
    """Three seconds of full stall in ten: the kernel's avg10 does not show it yet, its total does."""
    verdicts = run(lambda at: PressureInputs(at, (ram(20 * GIB),), psi(*[min(3.0, max(0.0, at - 20))] * 2)), 25)

    assert verdicts[19].level is Level.MEDIUM
    assert verdicts[-1].level is Level.CRITICAL
    assert "30% of the last 10 s" in " ".join(reason.text for reason in verdicts[-1].reasons)


def test_low_swap_and_low_memory_are_critical() -> None:
    """9 % of memory and of swap left: an OOM kill comes next. A kernel without swap counters is believed."""
    verdict = run(lambda at: PressureInputs(at, (ram(6 * GIB - 1),), swap=Swap(10 * GIB, int(9.1 * GIB))), 1)[0]

    assert verdict.level is Level.CRITICAL
    assert verdict.base_level is Level.HIGH
    assert "swap" in signals(verdict)


@pytest.mark.parametrize(
    ("pages", "level"), [(0, Level.HIGH), (9, Level.HIGH), (10, Level.CRITICAL), (200, Level.CRITICAL)]
)
def test_full_swap_at_rest_is_no_shortage(pages: int, level: Level) -> None:
    """Swap fills up over weeks. It is critical while pages move between it and memory."""
    swap = Swap(10 * GIB, int(9.1 * GIB))

    def evidence(at: float) -> PressureInputs:
        kernel = Kernel(pswpin_total=int(at * pages), pswpout_total=7)
        return PressureInputs(at, (ram(6 * GIB - 1),), swap=swap, kernel=kernel)

    assert run(evidence, 15)[-1].level is level


@pytest.mark.parametrize(
    ("available", "swapped", "is_short"),
    [
        (6 * GIB - 1, 9 * GIB + 1, True),
        (6 * GIB, 9 * GIB + 1, False),
        (6 * GIB - 1, 9 * GIB, False),
        (3 * GIB, 0, False),
        (30 * GIB, 10 * GIB, False),
    ],
)
def test_swap_is_short_only_with_less_than_a_tenth_of_both(available: int, swapped: int, is_short: bool) -> None:
    """Of 60 GiB of memory and of 10 GiB of swap. Full swap with free memory is old data."""
    inputs = PressureInputs(0.0, (ram(available, 60 * GIB),), swap=Swap(10 * GIB, swapped))

    assert ("swap" in signals(run(lambda _: inputs, 1)[0])) is is_short


@pytest.mark.parametrize(
    ("locked", "is_named"),
    [(6 * GIB - 1, False), (6 * GIB, True), (6 * GIB + 1, True), (Absent.NOT_AVAILABLE, False)],
)
def test_locked_memory_is_named_from_a_tenth_of_the_size_on(locked: Bytes, is_named: bool) -> None:
    inputs = PressureInputs(0.0, (ram(3 * GIB, 60 * GIB),), kernel=Kernel(mlocked_bytes=locked))
    (used,) = [one.text for one in run(lambda _: inputs, 1)[0].reasons if one.signal == "util"]

    assert used == "95.0% used" + "; 6.0 GiB of it locked (mlock)" * is_named


@pytest.mark.parametrize(
    ("ratio", "fell", "is_near"),
    [
        (0.85, 5.9, True),
        (0.849, 5.9, False),
        (0.849, 6.0, True),
        (0.78, 6.0, True),
        (0.779, 6.0, False),
        (0.78, 5.9, False),
        (0.3, 20.0, False),
    ],
)
def test_end_of_a_long_fall_is_near_at_less_use(ratio: float, fell: float, is_near: bool) -> None:
    """A fall of 6 s is no single allocation, so 78 % in use are enough."""
    forecast = Forecast(3.0, fell, is_stated=False, is_lasting=True)

    assert is_near_the_end(forecast, ram(8 * GIB), ratio) is is_near


@pytest.mark.parametrize(
    ("available", "is_host", "is_near"),
    [(512 * MIB - 1, True, True), (512 * MIB, True, False), (512 * MIB - 1, False, False)],
)
def test_end_is_near_at_any_use_with_few_bytes_of_the_host(available: int, is_host: bool, is_near: bool) -> None:
    target = Target("one", "system_ram", GIB, available, is_host=is_host)

    assert is_near_the_end(Forecast(1.0, 5.0, is_stated=False, is_lasting=True), target, 0.5) is is_near


@pytest.mark.parametrize(
    ("seconds", "fell", "is_near"),
    [(3.29, 20.0, True), (3.3, 20.0, False), (2.59, 4.0, True), (2.6, 4.0, False)],
)
def test_end_is_near_in_less_time_than_the_fall_will_last(seconds: float, fell: float, is_near: bool) -> None:
    """Less than 3.3 s, and less than 0.65 times as long as it has been falling. A small board uses all of it."""
    target = Target("ram", "system_ram", 4 * GIB, GIB, is_host=True)
    forecast = Forecast(seconds, fell, is_stated=False, is_lasting=True)

    assert is_near_the_end(forecast, target, 0.97) is is_near


@pytest.mark.parametrize(("seconds", "is_near"), [(4.19, True), (4.21, False)])
def test_large_machine_is_lost_before_nothing_is_left(seconds: float, is_near: bool) -> None:
    """2.2 % of 104 GiB, less 4: of 10.27 GiB the last 2.2 are lost, so 3.3 s are left of 4.2."""
    target = Target("ram", "system_ram", 104 * GIB, round(2.2 * GIB / (1 - 3.3 / 4.2)), is_host=True)
    forecast = Forecast(seconds, 20.0, is_stated=False, is_lasting=True)

    assert is_near_the_end(forecast, target, 0.90) is is_near


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (9.4, "9 s"),
        (9.6, "10 s"),
        (19.4, "19 s"),
        (22.4, "20 s"),
        (22.6, "25 s"),
        (119.0, "2 min"),
        (134.0, "2 min"),
        (136.0, "2 min 30 s"),
        (590.0, "10 min"),
        (629.0, "10 min"),
        (631.0, "11 min"),
    ],
)
def test_forecast_is_rounded_to_its_accuracy(seconds: float, words: str) -> None:
    assert full_in(seconds) == f"full in about {words} at the current rate"


def test_oom_kill_is_critical_for_a_minute() -> None:
    """The machine may look healthy one second later."""
    verdicts = run(lambda at: PressureInputs(at, (ram(50 * GIB),), kills=NewKills((), int(at == 5), True)), 80)

    critical = [second for second, verdict in enumerate(verdicts) if verdict.level is Level.CRITICAL]
    assert (critical[0], critical[-1]) == (5, 64)
    assert verdicts[5].reasons[0].text == "OOM killer: killed a process"
    assert verdicts[40].reasons[0].text == "35 s ago: OOM killer: killed a process"
    assert (verdicts[5].clears_in_seconds, verdicts[40].clears_in_seconds) == (Absent.NOT_AVAILABLE, 25.0)
    assert (verdicts[5].clears_to, verdicts[40].clears_to) == (Absent.NOT_AVAILABLE, Level.LOW)
    assert verdicts[5].clear_margin == 0.03
    assert verdicts[-1].level is Level.LOW


@pytest.mark.parametrize("used_gib", [10, 63])
def test_oom_kill_that_nothing_shows_to_be_the_machines_raises_no_level(used_gib: int) -> None:
    """Counted, and no log names it: any container at its limit raises that count."""
    left = ram((64 - used_gib) * GIB)
    calm = run(lambda at: PressureInputs(at, (left,)), 10)
    kill = run(lambda at: PressureInputs(at, (left,), kills=NewKills(unnamed=int(at == 5))), 10)

    assert [(one.level, one.reasons) for one in kill] == [(one.level, one.reasons) for one in calm]


@pytest.mark.parametrize(
    ("nodes", "was_short", "critical"),
    [
        ((1,), True, ["gpu0.hbm"]),
        ((1,), False, ["gpu0.hbm"]),
        ((0,), False, []),
        ((0,), True, ["ram"]),
        ((0, 1), True, ["ram", "gpu0.hbm"]),
        ((), True, ["ram"]),
        ((), False, []),
    ],
)
def test_kill_for_lack_of_memory_of_nodes_concerns_their_pools(
    nodes: tuple[int, ...], was_short: bool, critical: list[str]
) -> None:
    """GH200: node 1 is the memory of the GPU. Node 0 is a part of System RAM, which counts if it was short."""
    kill = OomKill(1, 77, "solver", MIB, "nodes", nodes=nodes)
    targets = ram(50 * GIB), Target("gpu0.hbm", "hbm", 96 * GIB, 90 * GIB)
    kills = NewKills((kill,), ram_was_short=was_short)

    verdicts, _ = judge(PressureInputs(1.0, targets, kills=kills, node_pools={1: "gpu0.hbm"}), JudgeState(), RULES)

    assert [one.target for one in verdicts if one.level is Level.CRITICAL] == critical


def test_pools_of_nodes_are_those_of_gpus() -> None:
    source = "sysfs:node1/meminfo"
    hbm = Pool("gpu0", PoolKind.HBM, "HBM0", GIB, 0, GIB, source, Quality.DERIVED)
    other = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", GIB, 0, GIB, "meminfo", Quality.MEASURED)

    assert find_node_pools((other, hbm), (Node(0), Node(1))) == {1: "gpu0"}
    assert find_node_pools((other, hbm), (Node(0),)) == {}


def test_oom_kill_at_a_cgroup_limit_is_no_level_of_the_machine() -> None:
    """The log names the cgroup: critical only for our own cgroup."""
    kill = OomKill(1, 4242, "train", 64 * MIB, "cgroup", "/job")
    ours = Target("cgroup", "cgroup", GIB, GIB // 2, is_host=True)

    def evidence(at: float) -> PressureInputs:
        kills = NewKills((kill,)) if at == 2 else NewKills()
        return PressureInputs(at, (ram(50 * GIB), ours), kills=kills, cgroup_oom_kills_total=7 + (at >= 3))

    memory, found = JudgeState(), []
    for at in range(5):
        verdicts, memory = judge(evidence(at), memory, RULES)
        found.append([verdict.level for verdict in verdicts])

    assert found[1] == [Level.LOW, Level.LOW]
    assert found[2] == [Level.LOW, Level.LOW]
    assert found[4] == [Level.LOW, Level.CRITICAL]
    assert verdicts[0].reasons == ()


@pytest.mark.parametrize(
    ("scope", "was_short", "level"),
    [
        ("machine", False, Level.CRITICAL),
        ("nodes", True, Level.CRITICAL),
        ("nodes", False, Level.LOW),
        ("cgroup", True, Level.LOW),
    ],
)
def test_named_kill_raises_the_level_of_what_it_was_about(
    scope: Literal["machine", "nodes", "cgroup"], was_short: bool, level: Level
) -> None:
    """Some NUMA nodes are not the machine, and a cgroup at its limit is not, even while memory is short."""
    kills = NewKills((OomKill(1, 4242, "train", 64 * MIB, scope),), ram_was_short=was_short)

    assert run(lambda at: PressureInputs(at, (ram(50 * GIB),), kills=kills), 1)[0].level is level


def test_forecast_is_text_and_not_made_across_a_pause() -> None:
    """1 GiB a second from 50 %: 'full in about …' from 90 % on; after a suspend the rate is unknown."""

    def falling(at: float) -> Target:
        return ram(int(32 * GIB - max(0.0, at - 30) * GIB))

    verdicts = run(lambda at: PressureInputs(at, (falling(at),), resumed=at == 58.0), 61)

    before, after = verdicts[57], verdicts[59]
    assert verdicts[50].seconds_to_full is Absent.NOT_AVAILABLE
    assert isinstance(before.seconds_to_full, float)
    assert 4 < before.seconds_to_full < 7
    assert "full in about" in next(reason.text for reason in before.reasons if reason.signal == "ttf")
    assert after.seconds_to_full is Absent.NOT_AVAILABLE


def test_vram_filled_by_a_server_is_never_critical_by_forecast() -> None:
    """A model is loaded to 90 % in ten seconds: high during the load, and no more than that."""

    def card(at: float) -> Target:
        return Target("gpu0", "vram", 80 * GIB, int(80 * GIB - min(72, max(0, at - 20) * 7.2) * GIB))

    verdicts = run(lambda at: PressureInputs(at, (card(at),)), 90)

    assert max(verdict.level for verdict in verdicts) is Level.HIGH
    assert verdicts[-1].level is Level.HIGH
    assert verdicts[-1].reasons[0].text == "90.0% used"


def test_limit_is_judged_like_a_size() -> None:
    """`limit = "20GiB"` on a 24 GiB card: 19.5 GiB used are critical, and 21 GiB exceed it."""
    rules = PressureRules(by_target={"gpu0": TargetRules(limit_bytes=20 * GIB)})
    card = Pool(
        "gpu0", PoolKind.VRAM, "VRAM", 24 * GIB, 19 * GIB + GIB // 2, 4 * GIB + GIB // 2, "t", Quality.MEASURED
    )
    over = replace(card, used_bytes=21 * GIB, available_bytes=3 * GIB)

    (near,) = judge(PressureInputs(0.0, build_targets((card,), (), (), rules)), JudgeState(), rules)[0]
    (above,) = judge(PressureInputs(0.0, build_targets((over,), (), (), rules)), JudgeState(), rules)[0]

    assert (near.level, round(near.ratio, 3)) == (Level.CRITICAL, 0.975)
    assert above.ratio == pytest.approx(1.05)


def test_full_target_has_no_forecast() -> None:
    """A card that fills beyond its limit at a steady rate has a forecast until it is full, and none after."""

    def card(at: float) -> Target:
        return Target("gpu0", "vram", 20 * GIB, int((2 - at / 10) * GIB))

    verdicts = run(lambda at: PressureInputs(at, (card(at),)), 60)

    forecasts = [(one.available_bytes, one.seconds_to_full) for one in verdicts]
    assert [left for left, seconds in forecasts if isinstance(seconds, float)][-1] == 0
    assert all(seconds >= 0 for _, seconds in forecasts if isinstance(seconds, float))
    assert verdicts[-1].level is Level.CRITICAL
    assert signals(verdicts[-1]) == {"util"}


def test_share_with_a_configured_limit_is_a_target() -> None:
    """The CUDA Pool of a unified board is a target with a configured limit only."""
    rules = PressureRules(by_target={"cuda0": TargetRules(limit_bytes=20 * GIB)})
    cuda = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 18 * GIB, "nvml:processes", Quality.MEASURED)

    assert build_targets((), (cuda,), (), RULES) == ()
    assert [target.used_ratio for target in build_targets((), (cuda,), (), rules)] == [0.9]


@pytest.mark.parametrize(
    ("kind", "used", "ratios"),
    [
        pytest.param(ShareKind.CGROUP, 400 << 20, [1.0], id="ClickHouse/ClickHouse#59435"),
        pytest.param(ShareKind.CGROUP, 0, [], id="nothing is held"),
        pytest.param(ShareKind.GTT, 400 << 20, [], id="a driver that reports 0"),
    ],
)
def test_control_group_with_a_limit_of_zero_is_full(kind: ShareKind, used: int, ratios: list[float]) -> None:
    """docker-library/rabbitmq#149 as well: 0 in memory.max is a limit, and not the absence of one."""
    share = Share("cgroup", kind, "limit", "ram", used, "memory.current", Quality.MEASURED, limit_bytes=0)

    assert [target.used_ratio for target in build_targets((), (share,), (), RULES)] == ratios


def test_resident_memory_is_not_pressure() -> None:
    """92 % used with a 96 GiB model: the rest is judged as calm, and the floor still applies."""
    rules = PressureRules(by_target={"ram": TargetRules(resident_bytes=96 * GIB)})

    verdict = run(lambda at: PressureInputs(at, (ram(11 * GIB, 122 * GIB),)), 1, rules)[0]
    empty = run(lambda at: PressureInputs(at, (ram(200 * MIB, 122 * GIB),)), 1, rules)[0]

    assert (verdict.level, round(verdict.ratio, 2)) == (Level.LOW, 0.58)
    assert empty.level is Level.CRITICAL


def test_auto_resident_is_the_steady_minimum() -> None:
    """After ten minutes at 92 % only use above it counts."""
    rules = PressureRules(by_target={"ram": TargetRules(resident_bytes="auto")})

    def used(at: float) -> int:
        return 92 if at < 660 else 94

    verdicts = run(lambda at: PressureInputs(at, (ram((100 - used(at)) * GIB, 100 * GIB),)), 720, rules)

    assert verdicts[500].level is Level.HIGH
    assert verdicts[-1].ratio == pytest.approx(0.25)
    assert verdicts[-1].level is Level.LOW


def test_auto_resident_counts_from_the_change_of_the_setting_on() -> None:
    """Readings from before it do not count."""
    target, before, after = ram(8 * GIB, 100 * GIB), Resident(), Resident()
    for second in range(0, 661, 30):
        before = before.with_use(float(second), target, None)
        after = after.with_use(float(second), target, "auto")

    assert before.with_use(690.0, target, "auto").resident_bytes("auto") == 0
    assert after.with_use(690.0, target, "auto").resident_bytes("auto") == 92 * GIB


def test_auto_resident_counts_after_600_seconds_of_sparse_readings() -> None:
    """A reading every 30 s, the least that a time slot needs."""
    rules = PressureRules(by_target={"ram": TargetRules(resident_bytes="auto")})

    verdicts = run(lambda at: PressureInputs(at, (ram(8 * GIB, 100 * GIB),)), 630, rules, step=30.0)

    assert [round(one.ratio, 2) for one in verdicts] == [0.92] * 20 + [0.0]
    assert [one.resident_bytes for one in verdicts] == [0] * 20 + [92 * GIB]


def test_full_carve_out_is_not_judged_if_the_gpu_has_more() -> None:
    """455 of 512 MiB of an APU with 64 GiB of GTT are not judged; the GTT is, and a carve-out of 96 GiB is."""
    small = Pool(
        "gpu0", PoolKind.CARVEOUT, "GPU carve-out", 512 * MIB, 455 * MIB, 57 * MIB, "sysfs", Quality.MEASURED
    )
    large = replace(small, size_bytes=96 * GIB, used_bytes=72 * GIB, available_bytes=24 * GIB)
    gtt = Share("gpu0.gtt", ShareKind.GTT, "GTT", "ram", 4 * GIB, "sysfs", Quality.MEASURED, limit_bytes=64 * GIB)
    apu = Device("gpu0", "AMD", "Radeon 8060S", Architecture.UNIFIED, allocates_from=("gpu0", "gpu0.gtt"))

    beside_more = {one.id: one.used_ratio for one in build_targets((small,), (gtt,), (apu,), RULES)}
    most_of_all = {one.id: one.used_ratio for one in build_targets((large,), (gtt,), (apu,), RULES)}

    assert beside_more == {"gpu0.gtt": pytest.approx(4 / 64)}
    assert most_of_all == {"gpu0": pytest.approx(72 / 96), "gpu0.gtt": pytest.approx(4 / 64)}


def test_target_without_a_value_keeps_its_level() -> None:
    """A gap in the readings neither clears nor drops a level."""
    _, memory = judge(PressureInputs(0.0, (ram(GIB),)), JudgeState(), RULES)
    verdicts, memory = judge(PressureInputs(1.0, ()), memory, RULES)
    (back,), _ = judge(PressureInputs(2.0, (ram(5 * GIB),)), memory, RULES)

    assert verdicts == ()
    assert back.level is Level.CRITICAL


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=100))
def test_no_signal_lowers_a_level(trace: list[tuple[float, float]]) -> None:
    """In any trace the level is at least that of use alone, and above low it has a reason."""
    memory, stalled = JudgeState(), 0.0
    for at, (used, stall) in enumerate(trace):
        stalled += stall
        evidence = PressureInputs(float(at), (ram(int((1 - used) * 64 * GIB)),), psi(stalled, stalled))
        (verdict,), memory = judge(evidence, memory, RULES)

        assert verdict.level >= verdict.base_level
        assert verdict.level is Level.LOW or verdict.reasons


@pytest.mark.parametrize(("limit", "is_limit"), [(24 * GIB - 1, True), (24 * GIB, False), (30 * GIB, False)])
def test_limit_of_a_pool_counts_below_its_size(limit: int, is_limit: bool) -> None:
    rules = PressureRules(by_target={"gpu0": TargetRules(limit_bytes=limit)})
    card = Pool("gpu0", PoolKind.VRAM, "VRAM", 24 * GIB, GIB, 23 * GIB, "t", Quality.MEASURED)

    (target,) = build_targets((card,), (), (), rules)

    assert (target.size_bytes, target.is_limit) == (min(limit, 24 * GIB), is_limit)
