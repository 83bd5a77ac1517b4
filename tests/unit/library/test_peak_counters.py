"""Peaks that counters keep: one 20 ms allocation between two samples, nested blocks, resets by the program."""

from __future__ import annotations

import json

import pytest

from memwatch.core.model import Absent
from memwatch.library import frameworks
from memwatch.library.cupy_peaks import CupyPeak
from memwatch.library.frameworks import TorchPool
from memwatch.library.memory_pool import PoolStats
from memwatch.library.peaks import PeakCounters, Watermark, counters
from memwatch.library.track import track
from simulators.torch_stand_in import MIB, CountingTorch
from support.library_process import run_json

TRANSIENT = """
import json, mmap, time, memwatch
def spike(mib):
    block = mmap.mmap(-1, mib << 20)
    for _ in range(mib):
        block.write(bytes(1 << 20))
    time.sleep(0.02)
    block.close()
from memwatch.library import track
track.INTERVAL_SECONDS = 3600  # no sample falls into the blocks
spike(300)  # before the block: not part of its peak
with memwatch.track("outer") as outer:
    with memwatch.track("inner") as inner:
        spike(200)
    with memwatch.track("small") as small:
        spike(50)
with memwatch.track("read only", exact=False) as read_only:
    spike(20)
with memwatch.track("read only", exact=False) as risen:
    spike(400)
profiler = memwatch.MemoryProfiler(3600)
with profiler:
    profiler.stage("encode")
    spike(100)
    profiler.stage("decode")
    spike(60)
    profiler.stage("encode")
def mib(view):
    return [(view.peak_bytes - view.before_bytes) >> 20, view.exact]
print(json.dumps({
    **{name: mib(one.process) for name, one in
       dict(outer=outer, inner=inner, small=small, read_only=read_only, risen=risen).items()},
    "stages": {one.stage: [(one.rss_bytes - inner.process.before_bytes) >> 20, one.exact, one.visits]
               for one in profiler.report().peaks},
    "exact": outer.exact, "pool": outer.pool.exact,
}))
"""


@pytest.mark.process
def test_transient_of_a_process_is_told_exactly() -> None:
    """Real pages for 20 ms, seen by no sample. The kernel's count is of a few CPUs' pages less or more."""
    found = run_json(TRANSIENT)

    for name, mib in (("outer", 200), ("inner", 200), ("small", 50), ("risen", 400)):
        assert found[name][0] == pytest.approx(mib, abs=8), name
        assert found[name][1] is True
    assert found["read_only"][1] is False
    assert found["stages"]["encode"][0] == pytest.approx(100, abs=12)
    assert found["stages"]["decode"][0] == pytest.approx(60, abs=12)
    assert found["stages"]["encode"][1:] == [["rss_bytes"], 2]
    assert (found["exact"], found["pool"]) == (True, False)


@pytest.mark.process
def test_reset_is_left_out_below_memwatch_run() -> None:
    """Its report is the process's peak, which a reset would lower."""
    found = run_json(TRANSIENT, MEMWATCH_KEEP_PEAK="1")

    assert found["small"][1] is False
    assert found["risen"] == [pytest.approx(400, abs=8), True]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> CountingTorch:
    """Import a stand-in for PyTorch with one GPU in use."""
    stand_in = CountingTorch()
    monkeypatch.setitem(frameworks._torch_pools, "cuda", [TorchPool(stand_in, 0)])
    monkeypatch.setitem(__import__("sys").modules, "torch", stand_in)
    return stand_in


@pytest.mark.process
def test_peak_of_a_gpu_is_its_allocators(torch: CountingTorch) -> None:
    """Allocated and freed within the block: 16 MiB, where samples see 4 MiB. The outer block keeps it as well."""
    torch.take(4 * MIB)
    torch.spike(64 * MIB)
    with track("outer") as outer:
        with track("step") as step:
            torch.spike(12 * MIB)
        with track("next") as following:
            torch.spike(1 * MIB)

    peaks = [one.allocator.peak_bytes for one in (outer, step, following)]
    assert peaks == [16 * MIB, 16 * MIB, 5 * MIB]
    assert [one.exact for one in (outer, step, following)] == [True, True, True]
    assert step.device.peak_bytes == 16 * MIB
    assert step.pools["PyTorch cuda:0"].allocated_bytes == 16 * MIB
    (pool,) = frameworks._torch_pools["cuda"]
    assert pool.stats().peak_bytes == 68 * MIB  # as the program would have it, though its own counter says less
    assert torch.peak == 5 * MIB


@pytest.mark.process
def test_counter_is_left_alone_without_exact(torch: CountingTorch) -> None:
    """Then a block below the program's peak has the greatest of its samples, and says so."""
    torch.take(4 * MIB)
    torch.spike(64 * MIB)
    with track("low", exact=False) as low:
        torch.spike(12 * MIB)
    with track("high", exact=False) as high:
        torch.spike(100 * MIB)

    assert (low.peak_bytes, low.exact) == (4 * MIB, False)
    assert (high.peak_bytes, high.exact) == (104 * MIB, True)
    assert torch.resets == 0


@pytest.mark.process
def test_reset_by_the_program_makes_a_peak_sampled(torch: CountingTorch) -> None:
    """The value that the counter had then is lost, and the kept one is dropped."""
    with track("step") as step:
        torch.spike(64 * MIB)
        counters.observe()
        torch.reset_peak_memory_stats(0)
        torch.spike(8 * MIB)

    assert (step.peak_bytes, step.exact) == (64 * MIB, False)
    assert frameworks._torch_pools["cuda"][0].stats().peak_bytes == 8 * MIB


def test_counter_without_reset_is_exact_only_where_it_rises() -> None:
    """As JAX's peak_bytes_in_use; after a reset in an inner block, the bound of the outer one stays."""
    mark = Watermark(100)
    mark.see(100)
    assert (mark.exact, mark.peak_bytes) == (False, Absent.NOT_AVAILABLE)
    mark.before = None
    mark.see(80)
    assert (mark.exact, mark.peak_bytes) == (False, 80)
    mark.see(120)
    assert (mark.exact, mark.peak_bytes) == (True, 120)
    unknown = Watermark(Absent.NOT_SUPPORTED)
    unknown.see(5)
    assert not unknown.exact


@pytest.mark.process
def test_blocks_of_threads_are_independent() -> None:
    """A block that is closed twice, or that opened before another, does no harm."""
    own = PeakCounters()
    (first, _), (second, _) = own.open(exact=True), own.open(exact=True)
    own.close(first)
    own.close(first)
    own.close(second)

    assert first.process.exact
    assert second.process.exact
    assert json.dumps(sorted(first.marks)) == '["process"]'


def test_pool_statistics_keep_their_positions() -> None:
    assert PoolStats(1, 2).peak_reserved_bytes is Absent.NOT_SUPPORTED


def test_peak_of_cupy_is_the_most_of_each_figure() -> None:
    """A pool may reserve more while less is in use."""
    peak = CupyPeak(100, 200, 100, True)
    for used, reserved in ((150, 180), (90, 400), (120, 300)):
        peak.see(used, reserved)

    assert (peak.used_bytes, peak.reserved_bytes) == (150, 400)
