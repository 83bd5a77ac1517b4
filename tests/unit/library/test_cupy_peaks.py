"""Exact peaks of CuPy by its memory hook: a transient, threads, failures, and nothing left behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

import memwatch
from memwatch.library import track as tracking
from memwatch.library.cupy_peaks import cupy_peaks
from memwatch.library.peaks import counters
from simulators.cupy_stand_in import UNIT_BYTES, CountingCupy, hooks
from support.waiting import MAX_WAIT_SECONDS

pytestmark = pytest.mark.process

MIB = 1 << 20


def ignore_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in threading.enumerate():
        if one is not threading.current_thread():
            monkeypatch.setattr(one, "name", "memwatch-none")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingCupy]:
    """CuPy with 100 MiB in use, and no sample within a block. Threads of pytest's plugins pass as the library's."""
    ignore_plugins(monkeypatch)
    module = CountingCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(tracking, "INTERVAL_SECONDS", 3600)
    module.malloc(100 * MIB)
    yield module
    assert not hooks.found
    assert not cupy_peaks._open


def test_transient_is_counted_by_the_hook(cupy: CountingCupy) -> None:
    with memwatch.track("outer") as outer:
        with memwatch.track("step") as stats:
            cupy.malloc(300 * MIB).free()
            kept = cupy.malloc(20 * MIB)
        with memwatch.track("small") as small:
            cupy.malloc(5 * MIB - 1).free()
        kept.free()

    assert (stats.peak_bytes, stats.exact, stats.delta_bytes) == (400 * MIB, True, 20 * MIB)
    assert (stats.device.peak_bytes, stats.device.exact) == (400 * MIB, True)
    assert (small.peak_bytes, small.exact) == (125 * MIB, True)
    assert (outer.peak_bytes, outer.exact) == (400 * MIB, True)
    assert stats.pools["CuPy cuda:0"].exact


def test_first_allocation_of_a_program_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy is no pool before it, as it holds nothing."""
    ignore_plugins(monkeypatch)
    module = CountingCupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    with memwatch.track("first") as stats:
        module.malloc(MIB).free()

    assert (stats.peak_bytes, stats.exact) == (MIB, True)
    assert not hooks.found


def test_sample_within_the_first_allocation_leaves_its_peak_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has counted it, and CuPy calls the hook when CUDA is ready, 0.2 s later."""
    ignore_plugins(monkeypatch)
    module = CountingCupy(driver=counters.observe)
    monkeypatch.setitem(sys.modules, "cupy", module)
    with memwatch.track("first") as stats:
        module.malloc(MIB).free()

    assert (stats.peak_bytes, stats.exact) == (MIB, True)


def test_stages_of_a_profiler_have_exact_peaks(cupy: CountingCupy) -> None:
    with memwatch.MemoryProfiler(3600) as profiler:
        profiler.stage("encode")
        cupy.malloc(50 * MIB).free()
        profiler.stage("decode")
        cupy.malloc(10 * MIB).free()

    found = {one.stage: one for one in profiler.report().peaks}
    assert [found[name].allocated_bytes for name in ("encode", "decode")] == [150 * MIB, 110 * MIB]
    assert all({"allocated_bytes", "reserved_bytes"} <= set(found[name].exact) for name in ("encode", "decode"))


def test_reserved_peak_outlasts_released_blocks(cupy: CountingCupy) -> None:
    with memwatch.MemoryProfiler(3600) as profiler:
        profiler.stage("step")
        cupy.malloc(300 * MIB).free()
        cupy.free_all_blocks()
        cupy.malloc(50 * MIB).free()
        cupy.free_all_blocks()

    found = {one.stage: one for one in profiler.report().peaks}["step"]
    assert (found.allocated_bytes, found.reserved_bytes) == (400 * MIB, 400 * MIB)
    assert "reserved_bytes" in found.exact


def test_thread_without_a_hook_makes_the_peak_sampled(cupy: CountingCupy) -> None:
    """It may allocate unseen. Threads of this library do not count."""
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        cupy.malloc(500 * MIB).free()
        ready.set()
        end.wait(MAX_WAIT_SECONDS)

    with memwatch.track("alone") as alone:
        cupy.malloc(MIB).free()
    with memwatch.track("beside") as beside:
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait(MAX_WAIT_SECONDS)
        cupy.malloc(MIB).free()
        end.set()
        thread.join()

    assert alone.exact
    assert (beside.peak_bytes, beside.exact) == (101 * MIB, False)


def test_memory_from_another_thread_is_noticed_after_it_has_ended(cupy: CountingCupy) -> None:
    with memwatch.track("step") as stats:
        thread = threading.Thread(target=cupy.malloc, args=(10 * MIB,))
        thread.start()
        thread.join()
        cupy.malloc(MIB).free()

    assert (stats.peak_bytes, stats.exact) == (111 * MIB, False)


def test_threads_with_blocks_are_exact_together(cupy: CountingCupy) -> None:
    """Each has a hook from the start of its block, and the pool is common."""
    started, finish = threading.Event(), threading.Event()
    found: list[memwatch.MemoryStats] = []

    def work() -> None:
        with memwatch.track("other") as stats:
            cupy.malloc(200 * MIB).free()
            started.set()
            finish.wait(MAX_WAIT_SECONDS)
        found.append(stats)
        assert not hooks.found

    thread = threading.Thread(target=work)
    with memwatch.track("main") as stats:
        thread.start()
        started.wait(MAX_WAIT_SECONDS)
        cupy.malloc(MIB).free()
        finish.set()
        thread.join()

    assert (found[0].peak_bytes, found[0].exact) == (300 * MIB, True)
    assert stats.peak_bytes == 300 * MIB


def test_failed_allocation_is_no_peak_and_keeps_its_error(cupy: CountingCupy) -> None:
    cupy.limit = 200 * MIB
    with memwatch.track("step") as stats, pytest.raises(MemoryError):
        cupy.malloc(500 * MIB)

    assert (stats.peak_bytes, stats.exact) == (100 * MIB, True)


def test_failing_pool_does_not_raise_into_an_allocation(
    cupy: CountingCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memwatch.track("step"):
        monkeypatch.setattr(cupy, "total_bytes", lambda: 1 // 0)
        assert cupy.malloc(MIB).size == MIB
        monkeypatch.undo()


def test_hook_is_left_out_without_exact(cupy: CountingCupy) -> None:
    with memwatch.track("step", exact=False) as stats:
        assert not hooks.found
        cupy.malloc(MIB).free()

    assert not stats.exact


def test_block_that_another_thread_closes_leaves_a_hook_that_does_nothing(cupy: CountingCupy) -> None:
    """Hooks can be removed only in their own thread: the next block there uses it again and removes it."""
    block = memwatch.track("step")
    block.__enter__()
    thread = threading.Thread(target=block.__exit__)
    thread.start()
    thread.join()
    assert list(hooks.found) == ["memwatch"]
    reads = cupy.reads
    cupy.malloc(MIB).free()
    assert cupy.reads == reads

    with memwatch.track("next") as stats:
        cupy.malloc(MIB).free()
    assert (stats.peak_bytes, stats.exact) == (101 * MIB, True)


def test_allocation_costs_a_few_microseconds_more(cupy: CountingCupy) -> None:
    """The pool is read only near a new peak."""
    with memwatch.track("step"):
        cupy.malloc(100 * MIB).free()
        reads = cupy.reads
        began = time.thread_time()
        for _ in range(1000):
            cupy.malloc(UNIT_BYTES).free()
        seconds = (time.thread_time() - began) / 1000

    assert cupy.reads - reads <= 2
    assert seconds < 200e-6  # 8 µs where it was measured, without CuPy's own
