"""The largest recent changes on the overview, derived from the history."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Snapshot, Swap
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.series import AllSeries, collect_figures
from memwatch_monitor.history.tiers import History
from memwatch_web.pages.overview import Change, find_changes
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.sample_parts import GIB, MIB
from support.sample_snapshots import calm_workstation, critical_gb10


def past(before: Snapshot, now: Snapshot, seconds: int = 900) -> History:
    """Return a history with `before` until a minute ago, then `now`."""
    history = History()
    for at in range(seconds):
        history.add(float(at), collect_figures(now if at > seconds - 60 else before))
    return history


def with_ram(snapshot: Snapshot, used: int) -> Snapshot:
    """Change the used memory, keep the page cache, leave the rest free."""
    ram = snapshot.pools[0]
    assert isinstance(ram.available_bytes, int)
    assert isinstance(ram.free_bytes, int)
    left = ram.size_bytes - used
    free = left - (ram.available_bytes - ram.free_bytes)
    other = replace(ram, used_bytes=used, available_bytes=left, free_bytes=free, contents=())
    return replace(snapshot, pools=(other,))


def test_largest_change_is_first() -> None:
    """Pools, shares, swap and processes, growing and shrinking."""
    now = critical_gb10()
    share = replace(now.shares[0], used_bytes=40 * GIB)
    before = replace(with_ram(now, 60 * GIB), shares=(share,), swap=Swap(16 * GIB, 16 * GIB))
    process = now.processes[0]
    grown = [ProcessGrowth(process, 0.0, 50 * GIB, 600.0, 20 * GIB, whole=True)]

    found = find_changes(now, past(before, now), grown)

    assert found is not None
    assert found.seconds == 600
    assert [(one.label, one.pid) for one in found.changes[:3]] == [
        ("CUDA Pool ⊂ System RAM", None),
        ("System RAM", None),
        (process.name, process.pid),
    ]
    assert [one.grown_bytes > 0 for one in found.changes[:3]] == [True, True, False]
    assert found.changes[1].before_bytes == pytest.approx(60 * GIB, rel=1e-6)
    assert ("swap", 16 * GIB) in [(one.label, one.before_bytes) for one in found.changes]


def test_page_cache_change_is_separate_from_used_memory() -> None:
    """Reading a file changes free memory, not used memory."""
    now = calm_workstation()
    ram = now.pools[0]
    assert isinstance(ram.free_bytes, int)
    before = replace(now, pools=(replace(ram, free_bytes=ram.free_bytes + 4 * GIB, contents=()),))

    found = find_changes(now, past(before, now), ())

    assert found is not None
    (change,) = found.changes
    assert change.label == "page cache"
    assert change.grown_bytes == pytest.approx(4 * GIB, rel=1e-5)


def test_change_below_one_mib_is_dropped() -> None:
    now = calm_workstation()
    still = [ProcessGrowth(now.processes[0], 0.0, GIB, 600.0, GIB + MIB - 1, whole=True)]

    found = find_changes(now, past(now, now), still)

    assert found is not None
    assert found.changes == ()


def test_short_history_reports_its_length() -> None:
    """Two minutes after the start it covers two minutes, at the start nothing."""
    now = calm_workstation()

    found = find_changes(now, past(with_ram(now, GIB), now, seconds=121), ())

    assert found is not None
    assert found.seconds == 120
    assert find_changes(now, History(), ()) is None
    assert find_changes(now, None, ()) is None


def test_overview_shows_before_now_and_change() -> None:
    now = critical_gb10()
    history = past(with_ram(now, 60 * GIB), now)

    text = Reader(Pages(history=lambda: AllSeries(history, HolderHistory())).page("overview", now)).text

    assert "Top changes, last 10 min" in text
    assert "System RAM +55.4 GiB 60.0 GiB 115.4 GiB" in text
    assert "Not enough history yet." in Reader(Pages().page("overview", now)).text


def test_decrease_is_negative() -> None:
    assert Change("x", 5, 3).grown_bytes == -2
