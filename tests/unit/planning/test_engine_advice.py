"""Advice for running model servers, and the sentence of the alert about a full cache."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.core.snapshot import Machine, SelfUsage, Snapshot
from memwatch.planning.device_totals import advise, find_pool
from memwatch_monitor.alerts.rules import AlertRules, describe_full_cache, evaluate_rules, is_cache_full

GIB = 1 << 30


def spark(available: int = 4, total: int = 120) -> Snapshot:
    """A machine with unified memory, in GiB."""
    kind, measured, used = PoolKind.SYSTEM_RAM, Quality.MEASURED, total - available
    ram = Pool("ram", kind, "System RAM", total * GIB, used * GIB, available * GIB, "meminfo", measured)
    cuda = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 108 * GIB, "nvml", measured, device="gpu0")
    gpu = Device("gpu0", "NVIDIA", "NVIDIA GB10", Architecture.UNIFIED, allocates_from=("ram",))
    usage = SelfUsage(1, 1.0, 0.0, 0.0, False)
    return Snapshot(1, 1.0, 1.0, "b", "h", 1.0, True, Machine(), usage, (ram,), (cuda,), (gpu,))


def vllm(**changed: object) -> Engine:
    engine = Engine(
        "vllm-8000",
        "vllm",
        "vLLM",
        "http://127.0.0.1:8000",
        1,
        (1,),
        weights_bytes=8 * GIB,
        kv_cache_bytes=96 * GIB,
        kv_cache_used_bytes=3 * GIB,
        kv_cache_ratio=3 / 96,
        gpu_fraction=0.9,
        held_bytes={"cuda0": 108 * GIB},
    )
    return replace(engine, **changed)


def test_large_unused_cache_while_memory_is_short_gets_a_lower_fraction() -> None:
    assert advise(vllm(), spark()) == (
        "vLLM reserved 96.0 GiB of KV cache and uses 3.0 GiB now; System RAM has 4.0 GiB left: "
        "--gpu-memory-utilization 0.3 would leave 76.0 GiB."
    )


@pytest.mark.parametrize(
    "engine",
    [
        vllm(kv_cache_used_bytes=48 * GIB),
        vllm(kv_cache_bytes=Absent.NOT_AVAILABLE),
        vllm(gpu_fraction=Absent.NOT_AVAILABLE),
        vllm(kind="ollama"),
        vllm(held_bytes={}),
        vllm(held_bytes={"cuda0": GIB, "gpu1": GIB}),
        vllm(kv_cache_bytes=0, kv_cache_used_bytes=0),
    ],
    ids=("used", "unknown cache", "unknown fraction", "no option", "no place", "two places", "asleep"),
)
def test_no_advice_where_it_would_not_follow(engine: Engine) -> None:
    assert advise(engine, spark()) is None


def test_no_advice_while_memory_is_left() -> None:
    assert advise(vllm(), spark(available=40)) is None


@pytest.mark.parametrize(
    ("available", "remedy"),
    [
        (60, "System RAM has 60.0 GiB available: raise --gpu-memory-utilization"),
        (2, "System RAM has 2.0 GiB available only: lower --max-num-seqs or --max-model-len"),
    ],
)
def test_alert_of_a_full_cache_says_what_to_change(available: int, remedy: str) -> None:
    engine = vllm(requests_waiting=4, kv_cache_ratio=0.98)
    snapshot = replace(spark(available), engines=(engine,))
    (condition,) = evaluate_rules(snapshot, (), AlertRules(events=frozenset({"engine.kv_full"})))
    assert (condition.true, condition.target) == (True, "vllm-8000")
    assert (
        condition.reasons[0].text
        == f"vllm-8000: 4 requests wait, and its KV cache of 96.0 GiB is 98% full; {remedy}"
    )


@pytest.mark.parametrize(
    ("changed", "full"),
    [
        ({"requests_waiting": 0, "kv_cache_ratio": 1.0}, False),
        ({"requests_waiting": 9, "kv_cache_ratio": 0.5}, False),
        ({"requests_waiting": Absent.NOT_SUPPORTED, "kv_cache_ratio": 1.0}, Absent.NOT_SUPPORTED),
        ({"requests_waiting": 9, "kv_cache_ratio": Absent.NOT_SUPPORTED}, Absent.NOT_AVAILABLE),
    ],
)
def test_cache_is_full_only_while_requests_wait(changed: dict[str, object], full: object) -> None:
    assert is_cache_full(vllm(**changed)) == full


def test_alert_without_a_known_pool_states_the_problem_only() -> None:
    engine = vllm(requests_waiting=4, kv_cache_ratio=0.98, held_bytes={"gone": GIB})
    assert describe_full_cache(engine, spark()).endswith("is 98% full")


@pytest.mark.parametrize(("total", "is_known"), [(0, False), (1, True)])
def test_fraction_of_a_total_of_0_is_no_advice(total: int, is_known: bool) -> None:
    """A driver that fails may report a size of 0."""
    snapshot = spark(available=0, total=total)

    assert (find_pool(vllm(), snapshot) is not None) is is_known
    assert total or advise(vllm(), snapshot) is None


@pytest.mark.parametrize("elsewhere", [0, Absent.NOT_AVAILABLE])
def test_place_of_which_an_engine_holds_nothing_does_not_count(elsewhere: Bytes) -> None:
    engine = vllm(held_bytes={"gpu1": elsewhere, "cuda0": 108 * GIB})

    assert advise(engine, spark()) == advise(vllm(), spark())


@pytest.mark.parametrize(("place", "total"), [("gpu0", 24), ("gpu1", 80), ("dmem0", 24), ("dmem1", 80)])
def test_fraction_is_of_the_total_of_the_engines_own_gpu(place: str, total: int) -> None:
    """It holds VRAM, or a share that lies within it and that the GPU does not list."""
    base, pools, shares, devices = spark(), list[Pool](), list[Share](), list[Device]()
    for name, size in (("0", 24), ("1", 80)):
        vram = replace(spark(total=size).pools[0], id=f"gpu{name}", kind=PoolKind.VRAM)
        pools.append(vram)
        shares.append(replace(base.shares[0], id=f"dmem{name}", within=vram.id, device=vram.id))
        devices.append(
            replace(base.devices[0], id=vram.id, architecture=Architecture.DISCRETE, allocates_from=(vram.id,))
        )
    snapshot = replace(base, pools=tuple(pools), shares=tuple(shares), devices=tuple(devices))

    found = find_pool(vllm(held_bytes={place: GIB}), snapshot)

    assert found is not None
    assert (found[0].id, found[1]) == (f"gpu{place[-1]}", total * GIB)
