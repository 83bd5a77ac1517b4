"""Test MLX's allocator under the names of mlx.core. Its build for CUDA must not be asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memwatch.core.model import Absent, Bytes
from memwatch.library import frameworks
from memwatch.library.frameworks import find_framework_pools
from memwatch.library.memory_pool import MemoryPool


class MlxStandIn:
    """Fake mlx.core. `cuda`: its submodule, which older versions lack."""

    def __init__(self, **submodules: object) -> None:
        self.active, self.peak = 3, 7
        vars(self).update(submodules)

    def get_active_memory(self) -> int:
        return self.active

    def get_cache_memory(self) -> int:
        return 2

    def get_peak_memory(self) -> int:
        return self.peak

    def reset_peak_memory(self) -> None:
        self.peak = self.active


@pytest.fixture(autouse=True)
def no_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "_mlx_pools", [])


def find_pools(mlx: object) -> list[MemoryPool]:
    return find_framework_pools({"mlx.core": mlx})


def cuda(is_available: bool) -> SimpleNamespace:
    return SimpleNamespace(is_available=lambda: is_available)


@pytest.mark.parametrize(
    "mlx",
    [MlxStandIn(), MlxStandIn(cuda=None), MlxStandIn(cuda=cuda(False))],
    ids=["without the submodule", "without CUDA", "CUDA is not available"],
)
def test_mlx_on_metal_or_the_cpu_has_a_pool(mlx: MlxStandIn) -> None:
    (pool,) = find_pools(mlx)
    stats = pool.stats()

    assert (stats.allocated_bytes, stats.reserved_bytes, stats.peak_bytes) == (3, 5, 7)


def test_build_of_mlx_for_cuda_has_no_pool() -> None:
    assert find_pools(MlxStandIn(cuda=cuda(True))) == []


def test_mlx_without_counters_has_no_pool() -> None:
    """Older versions count in mlx.core.metal."""
    assert find_pools(SimpleNamespace()) == []


@pytest.mark.parametrize(
    ("working_set", "total"),
    [
        ({"recommended_max_memory": lambda: 48 << 30}, 48 << 30),
        ({"recommended_max_memory": lambda: 0}, Absent.NOT_AVAILABLE),
        ({}, Absent.NOT_SUPPORTED),
    ],
    ids=["PyTorch 2.5", "a machine without Metal", "PyTorch 2.4"],
)
def test_size_of_a_pool_on_metal_is_the_working_set(working_set: dict[str, object], total: Bytes) -> None:
    """PyTorch before 2.5 has no function for it."""
    mps = SimpleNamespace(current_allocated_memory=lambda: 3, driver_allocated_memory=lambda: 5, **working_set)
    pool = frameworks.MpsPool(SimpleNamespace(mps=mps))

    assert pool.total() == total
    assert (pool.stats().allocated_bytes, pool.stats().reserved_bytes) == (3, 5)


def test_peak_of_mlx_outlasts_a_reset_by_the_library() -> None:
    """The pool is the same at each search, as it remembers the peak before a reset."""
    mlx = MlxStandIn()
    (pool,) = find_pools(mlx)
    assert pool.stats().peak_bytes == 7
    assert isinstance(pool, frameworks.MlxPool)
    pool.reset_peak()

    (again,) = find_pools(mlx)

    assert (mlx.peak, again.stats().peak_bytes) == (3, 7)
