"""Test trim points: unused memory of all allocators is released, also near a limit, and nothing raises."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

import memwatch
from memwatch.core.model import Absent
from memwatch.library.frameworks import JaxPool
from memwatch.library.guard import Guard
from memwatch.planning.arguments import InvalidInputError
from simulators.nvml_machine import FLAGS
from support.custom_pool import OwnPool
from support.library_process import run_json
from support.paths import TESTS

NEEDED_PROGRAMS = ("cc",)

GIB = 1 << 30


class FailingPool(OwnPool):
    def clear(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def own_pool() -> Iterator[OwnPool]:
    pool = OwnPool()
    memwatch.register_pool(pool)
    yield pool
    memwatch.unregister_pool(pool)


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build both drivers. Returns their paths by the option with which they are built."""
    folder = tmp_path_factory.mktemp("drivers")
    built = {"CUDA": str(folder / "libcuda.so.1"), "HIP": str(folder / "libamdhip64.so.6")}
    for option, path in built.items():
        source = TESTS / "simulators/driver/mem_pools.c"
        command = [os.environ.get("CC", "cc"), *FLAGS, f"-D{option}", "-o", path, str(source)]
        subprocess.run(command, check=True)
    return built


def test_clear_reports_the_bytes_of_each_allocator(own_pool: OwnPool) -> None:
    """A pool that fails releases nothing and hides no other."""
    failing = FailingPool()
    memwatch.register_pool(failing)
    try:
        found = memwatch.clear()
    finally:
        memwatch.unregister_pool(failing)

    assert [(one.name, one.call, one.released_bytes) for one in found[:2]] == [
        ("Own", "OwnPool.clear()", 2 * GIB),
        ("Own", "FailingPool.clear()", 0),
    ]
    assert own_pool.reserved == 2 * GIB
    assert [(one.name, one.call) for one in found[2:]] == [("C library", "malloc_trim(0)")]


def test_clear_of_one_framework_leaves_the_others(own_pool: OwnPool) -> None:
    assert memwatch.clear("CuPy") == ()
    assert own_pool.reserved == 4 * GIB
    assert [one.name for one in memwatch.clear("own")] == ["Own"]
    assert own_pool.reserved == 2 * GIB


def test_shrink_returns_the_released_bytes(own_pool: OwnPool) -> None:
    assert memwatch.shrink() == 2 * GIB
    assert own_pool.reserved == 2 * GIB


class JaxDevice:
    platform, local_hardware_id = "gpu", 0

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_in_use": GIB, "pool_bytes": 2 * GIB}


def test_jax_has_nothing_to_call_and_says_so() -> None:
    pool = JaxPool(JaxDevice())
    memwatch.register_pool(pool)
    try:
        (found,) = memwatch.clear("JAX")
    finally:
        memwatch.unregister_pool(pool)

    assert (found.released_bytes, found.call) == (0, "")
    assert found.note.startswith("JAX frees an array with its last reference")


PROGRAM = """
import ctypes, json, sys, types
from memwatch.library.memory_release import find_driver_pools
import memwatch
from support.custom_pool import OwnPool
cuda, hip = map(ctypes.CDLL, PATHS)
before = len(find_driver_pools(True))
for library in (cuda, hip):
    library.sim_start(ctypes.c_uint64(3 << 30), ctypes.c_uint64(1 << 30))
without_hip = [[one.name, one.device] for one in find_driver_pools(False)]
sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(hip="7.1"))
memwatch.register_pool(OwnPool())
rows = [[one.name, one.device, one.released_bytes, one.call] for one in memwatch.clear()]
print(json.dumps([before, without_hip, rows[1:-1], [one.reserved_bytes() for one in find_driver_pools(True)]]))
"""


def test_pools_of_stream_ordered_allocators_are_trimmed(drivers: dict[str, str]) -> None:
    """Not before the driver is initialized; HIP's only where it is in use; never on a GPU without a context."""
    code = f"PATHS = {list(drivers.values())}\n{PROGRAM}"

    before, without_hip, rows, left = run_json(code, PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{TESTS}")

    assert before == 0
    assert without_hip == [["CUDA driver", "cuda:0"]]
    assert sorted(rows) == [
        ["CUDA driver", "cuda:0", 2 * GIB, "cuMemPoolTrimTo(pool, 0)"],
        ["HIP driver", "cuda:0", 2 * GIB, "hipMemPoolTrimTo(pool, 0)"],
    ]
    assert left == [GIB, GIB]


def test_guard_clears_near_the_limit_once(own_pool: OwnPool, caplog: pytest.LogCaptureFixture) -> None:
    """Before `on_limit`, which is not called if clearing was enough. Again only after usage fell."""
    seen: list[memwatch.Usage] = []
    with memwatch.guard("4GiB", warn_at=0.8, on_limit=seen.append, clear_at=0.95, interval=3600) as guard:
        usage = guard.check()
        own_pool.reserved = 4 * GIB  # in use from now on
        again = guard.check()

    assert (usage, again) == (memwatch.Usage(2 * GIB, 4 * GIB), memwatch.Usage(2 * GIB, 4 * GIB))
    assert seen == []
    assert [one for one in caplog.messages if "cleared" in one] == [
        "usage is 100% of the limit of 4.0 GiB: cleared 2.0 GiB",
        "usage is 100% of the limit of 4.0 GiB: cleared 2.0 GiB",
    ]


def test_guard_does_not_clear_again_while_usage_stays_high() -> None:
    """Memory in use cannot be released; each try would wait for the GPU."""
    used: list[int | Absent] = [GIB]
    calls: list[int] = []
    guard = Guard("1GiB", interval=3600, measure=lambda: used[0], clear_at=0.9, on_limit=lambda _: calls.append(1))
    before = [guard._may_clear]
    for _ in range(3):
        guard.check()
        before.append(guard._may_clear)
    used[0] = GIB // 2
    guard.check()
    guard.stop()

    assert before == [True, False, False, False]
    assert guard._may_clear
    assert calls == [1]


def test_guard_refuses_a_clear_at_that_is_no_fraction() -> None:
    with pytest.raises(InvalidInputError, match=r"clear_at is 95, which is not between 0 and 1; for example 0.9"):
        memwatch.guard("1GiB", clear_at=95)
