"""Test the allocators of frameworks under the names that these use. No call may open a GPU."""

from __future__ import annotations

import pytest

import memwatch
from memwatch.core.model import Absent
from memwatch.library.frameworks import CupyPool, JaxPool, TorchPool, find_framework_pools, total_stats
from support.custom_pool import OwnPool

GIB = 1 << 30


class StandIn:
    """Fake PyTorch with one GPU of 24 GB, by the names of torch/cuda/memory.py."""

    def __init__(self, integrated: bool = False) -> None:
        self.cuda = self
        self.total_memory = 24 * 10**9
        self.is_integrated = integrated
        self.reserved = 19 * GIB

    def memory_stats_as_nested_dict(self, _device: int) -> dict[str, object]:
        def of(current: int) -> dict[str, dict[str, int]]:
            return {"all": {"current": current, "peak": current + 1, "allocated": 7, "freed": 0}}

        return {
            "allocated_bytes": of(18 * GIB),
            "reserved_bytes": of(self.reserved),
            "active_bytes": of(18 * GIB),
            "inactive_split_bytes": of(GIB),
            "allocation": of(3),
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }

    def get_device_properties(self, _device: int) -> StandIn:
        return self

    def mem_get_info(self, _device: int) -> tuple[int, int]:
        return 2 * 10**9, 24 * 10**9

    def empty_cache(self) -> None:
        self.reserved = 18 * GIB


@pytest.mark.process
def test_pytorch_allocator_is_read_and_shrunk() -> None:
    """Statistics under its own names; on a unified machine the free memory is System RAM's, not CUDA's."""
    pool = TorchPool(StandIn(), 0)
    stats = pool.stats()

    assert (stats.allocated_bytes, stats.reserved_bytes, stats.inactive_split_bytes) == (18 * GIB, 19 * GIB, GIB)
    assert (stats.peak_bytes, stats.allocations, stats.retries, stats.ooms) == (18 * GIB + 1, 7, 2, 1)
    assert (pool.total(), pool.free(), round(float(str(pool.pressure())), 3)) == (24 * 10**9, 2 * 10**9, 0.917)
    assert pool.shrink() == GIB
    assert isinstance(TorchPool(StandIn(integrated=True), 0).free(), int)


def test_pools_of_one_process_add_up() -> None:
    """Two pools of one process hold different bytes."""
    both = (OwnPool(), OwnPool())
    for pool in both:
        memwatch.register_pool(pool)
    try:
        stats = total_stats()
    finally:
        for pool in both:
            memwatch.unregister_pool(pool)

    assert stats is not None
    assert (stats.allocated_bytes, stats.reserved_bytes) == (4 * GIB, 8 * GIB)


class CudaError(Exception):
    """Fake of CuPy's CUDARuntimeError."""


class CupyStandIn:
    """Fake CuPy by the names of cupy/cuda/memory.pyx; `reserved` None is a machine without a driver."""

    def __init__(self, reserved: int | None, integrated: int = 0) -> None:
        self.cuda = self.runtime = self
        self.reserved = reserved
        self.integrated = integrated
        self.calls: list[str] = []

    def get_default_memory_pool(self) -> CupyStandIn:
        return self

    def total_bytes(self) -> int:
        if self.reserved is None:
            raise CudaError("cudaErrorInsufficientDriver")
        return self.reserved

    def used_bytes(self) -> int:
        return self.total_bytes() // 2

    def getDevice(self) -> int:
        return 1

    def getDeviceProperties(self, _device: int) -> dict[str, int]:
        return {"integrated": self.integrated}

    def memGetInfo(self) -> tuple[int, int]:
        self.calls.append("memGetInfo")
        return 2 * GIB, 24 * GIB

    def free_all_blocks(self) -> None:
        self.reserved = self.used_bytes()


def test_cupy_is_read_only_with_memory_in_use() -> None:
    """Imported on a machine without a GPU, or before the first array, CuPy has no pool, and nothing is opened."""
    unused, absent, used = CupyStandIn(0), CupyStandIn(None), CupyStandIn(8 * GIB)

    (pool,) = find_framework_pools({"cupy": used})
    stats = pool.stats()

    assert find_framework_pools({"cupy": unused}) == find_framework_pools({"cupy": absent}) == []
    assert unused.calls == absent.calls == []
    assert (pool.device, stats.allocated_bytes, stats.reserved_bytes) == ("cuda:1", 4 * GIB, 8 * GIB)
    assert (pool.total(), pool.free(), pool.shrink()) == (24 * GIB, 2 * GIB, 4 * GIB)


@pytest.mark.process
def test_cupy_on_a_unified_machine_uses_free_system_ram() -> None:
    """CUDA counts page cache as used on such machines."""
    free = CupyPool(CupyStandIn(8 * GIB, integrated=1)).free()

    assert isinstance(free, int)
    assert free != 2 * GIB


class JaxDevice:
    """jax.Device since jaxlib 0.4.12; values that an allocator does not count are -1 or left out."""

    def __init__(self, platform: str, stats: dict[str, int] | None) -> None:
        self.platform = platform
        self.local_hardware_id = 0
        self._stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats


class JaxStandIn:
    def __init__(self, *devices: JaxDevice, running: bool = True) -> None:
        self.devices = list(devices)
        self.running = running
        self.listed = 0

    def backends_are_initialized(self) -> bool:
        return self.running

    def local_devices(self) -> list[JaxDevice]:
        self.listed += 1
        return self.devices

    def modules(self) -> dict[str, object]:
        return {"jax": self, "jax._src.xla_bridge": self}


FULL = {"bytes_in_use": 3 * GIB, "bytes_limit": 18 * GIB, "peak_bytes_in_use": 5 * GIB, "num_allocs": 12}


def test_jax_is_read_only_with_running_clients() -> None:
    """The CPU is not a GPU; in a process that only imported JAX a query would start its clients."""
    jax = JaxStandIn(JaxDevice("cpu", None), JaxDevice("gpu", FULL | {"pool_bytes": 18 * GIB}))
    waiting = JaxStandIn(JaxDevice("gpu", FULL), running=False)

    (pool,) = find_framework_pools(jax.modules())
    stats = pool.stats()

    assert find_framework_pools(waiting.modules()) == []
    assert waiting.listed == 0
    assert (stats.allocated_bytes, stats.reserved_bytes, stats.peak_bytes) == (3 * GIB, 18 * GIB, 5 * GIB)
    assert (pool.total(), pool.free(), stats.allocations) == (18 * GIB, 15 * GIB, 12)
    assert pool.shrink() == 0


def test_values_that_jax_does_not_count_are_absent() -> None:
    """-1 is not a value, and an allocator without statistics has none."""
    sparse, none = JaxPool(JaxDevice("gpu", {"bytes_in_use": -1})), JaxPool(JaxDevice("gpu", None))

    assert sparse.stats().allocated_bytes is none.stats().allocated_bytes is Absent.NOT_SUPPORTED
    assert none.total() is Absent.NOT_SUPPORTED
    assert none.free() is Absent.NOT_AVAILABLE


def test_stub_modules_are_no_pools() -> None:
    """Stubs under a framework's name, as in test suites."""
    assert find_framework_pools({"torch": object(), "cupy": object(), "jax": object()}) == []
    assert find_framework_pools({"torch": None, "cupy": None, "jax": None}) == []
