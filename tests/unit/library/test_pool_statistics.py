"""Test counts of an allocator: hits and misses of its cache, totals, and allocations that fell back to the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import memwatch
from memwatch.core.model import Absent
from memwatch.library import memory_pool
from memwatch.library.frameworks import TorchPool
from memwatch.library.memory_pool import count_fallbacks, is_framework, note_fallback
from support.custom_pool import OwnPool

MIB = 1 << 20


class TorchStandIn:
    """Fake PyTorch: 10 allocations of 2 MiB, 8 of them freed. `calls`: num_device_alloc, None in an old version."""

    def __init__(self, calls: int | None, segments: int = 3) -> None:
        self.cuda = self
        self._calls, self._segments = calls, segments

    def memory_stats_as_nested_dict(self, _device: int) -> dict[str, object]:
        def of(allocated: int, freed: int) -> dict[str, dict[str, int]]:
            return {
                "all": {"current": allocated - freed, "peak": allocated, "allocated": allocated, "freed": freed}
            }

        found: dict[str, object] = {
            "allocated_bytes": of(20 * MIB, 16 * MIB),
            "allocation": of(10, 8),
            "segment": of(self._segments, 0),
        }
        return found if self._calls is None else found | {"num_device_alloc": self._calls}


@pytest.mark.parametrize(
    ("calls", "hits", "misses", "rate"),
    [
        (4, 6, 4, 0.6),
        (None, 7, 3, 0.7),
        (0, Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED),
    ],
    ids=["calls of the driver", "segments in an old version", "cudaMallocAsync counts none"],
)
def test_hits_of_pytorch_are_allocations_without_a_call_of_the_driver(
    calls: int | None, hits: int | Absent, misses: int | Absent, rate: float | Absent
) -> None:
    stats = TorchPool(TorchStandIn(calls), 0).stats()

    assert (stats.hits, stats.misses, stats.hit_rate) == (hits, misses, rate)
    assert (stats.allocations, stats.frees) == (10, 8)
    assert (stats.total_allocated_bytes, stats.total_freed_bytes) == (20 * MIB, 16 * MIB)


def test_hit_rate_without_counts_has_their_reason() -> None:
    assert memwatch.PoolStats(1, 1).hit_rate is Absent.NOT_SUPPORTED
    assert memwatch.PoolStats(1, 1, hits=0, misses=0).hit_rate is Absent.NOT_AVAILABLE
    assert memwatch.PoolStats(1, 1, hits=3, misses=1).hit_rate == 0.75


class CountingPool(OwnPool):
    """Pool of a program that counts everything."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.freed = 5, 2

    def stats(self) -> memwatch.PoolStats:
        return memwatch.PoolStats(
            2 * MIB,
            4 * MIB,
            allocations=self.made,
            frees=self.freed,
            total_allocated_bytes=self.made * MIB,
            total_freed_bytes=self.freed * MIB,
            hits=99,
            misses=1,
            cpu_fallbacks=2,
        )


@pytest.fixture
def counting_pool() -> Iterator[CountingPool]:
    pool = CountingPool()
    memwatch.register_pool(pool)
    yield pool
    memwatch.unregister_pool(pool)


@pytest.mark.process
def test_track_reports_totals_and_counts_of_the_block(counting_pool: CountingPool) -> None:
    """Those of before the block do not count."""
    with memwatch.track("load") as stats:
        counting_pool.made, counting_pool.freed = 12, 6

    assert (stats.allocations, stats.frees) == (7, 4)
    assert (stats.total_allocated_bytes, stats.total_freed_bytes) == (7 * MIB, 4 * MIB)


@pytest.mark.process
def test_line_of_a_stage_has_hit_rate_and_fallbacks(counting_pool: CountingPool) -> None:
    line = memwatch.log_memory_usage("step")

    assert counting_pool.stats().hits == 99
    assert line.endswith("Reserved: 4.0 MiB | Cache hits: 99.0% | CPU fallbacks: 2")


def test_fallbacks_count_for_the_pool_of_their_framework_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pool, "_fallbacks", type(memory_pool._fallbacks)())
    for module, device in (("torch.cuda", "cuda:0"), ("torch", "cuda:1"), ("jaxlib.xla_client", "cuda:0")):
        note_fallback(module, device)

    assert TorchPool(TorchStandIn(4), 0).stats().cpu_fallbacks == 1
    assert [count_fallbacks("JAX", "cuda:0"), count_fallbacks("CuPy", "cuda:0")] == [1, 0]


@pytest.mark.parametrize(
    ("module", "name", "same"),
    [("torch", "PyTorch", True), ("jaxlib.xla_extension", "JAX", True), ("cupy.cuda.memory", "PyTorch", False)],
)
def test_error_is_attributed_to_its_framework(module: str, name: str, same: bool) -> None:
    assert is_framework(module, name) is same
