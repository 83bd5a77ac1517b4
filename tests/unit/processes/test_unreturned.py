"""Test memory that stays used after its process ended: reported after 30 s, resolved when it comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, Process, ProcessList, Quality
from memwatch.core.processes.unreturned import MAX_GAP_SECONDS, ReturnChanges, ReturnTracker
from memwatch.core.snapshot import ProcessScan, Snapshot
from support.fakes import GIB
from support.sample_snapshots import discrete_gpu, many_owners

BOOT = 1_700_000_000.0
OTHER = Process(60, 2.0, "other", GIB, GIB, "rss")


def vram(rest: Bytes, used: int = 20 * GIB) -> Pool:
    return Pool(
        "gpu0",
        PoolKind.VRAM,
        "VRAM",
        24 * GIB,
        used,
        24 * GIB - used,
        "test",
        Quality.MEASURED,
        unattributed_bytes=rest,
    )


def holder(pid: int, held: int, start: float = 1.0, visible: bool = True) -> Process:
    name = "python3" if visible else Absent.NOT_AVAILABLE
    return Process(pid, start, name, GIB, GIB, "rss", device_bytes={"gpu0": held} if held else {}, visible=visible)


class Card:
    """A tracker that is given one snapshot per ten seconds."""

    def __init__(self) -> None:
        self.tracker = ReturnTracker()
        self.at = 0.0
        self.log: list[tuple[str, str]] = []

    def show(
        self,
        rest: Bytes,
        *processes: Process,
        seconds: float = 0.0,
        listed: ProcessList | Absent = "complete",
        scan: ProcessScan | Absent = ProcessScan(2, 0),  # noqa: B008  frozen
    ) -> ReturnChanges:
        """Show this state once, and then every ten seconds for that time."""
        for _ in range(1 + int(seconds / 10)):
            changes = self.tracker.add(self.at, self._snapshot(rest, processes, listed, scan))
            self.log += [("began", one.text) for one in changes.began]
            self.log += [("returned", one.text) for one in changes.returned]
            self.at += 10.0
        return changes

    def _snapshot(
        self, rest: Bytes, processes: Sequence[Process], listed: ProcessList | Absent, scan: ProcessScan | Absent
    ) -> Snapshot:
        device = Device(
            "gpu0", "NVIDIA", "A10", Architecture.DISCRETE, allocates_from=("gpu0",), process_list=listed
        )
        return replace(
            discrete_gpu(),
            unix=BOOT + self.at,
            pools=(vram(rest),),
            shares=(),
            devices=(device,),
            pressure=(),
            processes=(OTHER, *processes),
            process_scan=scan,
        )


def test_memory_that_stays_is_reported_after_30_s_and_resolved_when_it_returns() -> None:
    """As on a GB10, where it came back after 3 to 4 minutes."""
    card = Card()
    card.show(GIB, holder(50, 18 * GIB), seconds=20)

    early = card.show(19 * GIB, seconds=20)
    (found,) = card.show(19 * GIB, seconds=180).current
    late = card.show(GIB)

    assert early.current == ()
    assert (found.pool, found.held_bytes, found.since_unix) == ("gpu0", 18 * GIB, BOOT + 30)
    assert [(one.pid, one.name, one.held_bytes) for one in found.processes] == [(50, "python3", 18 * GIB)]
    assert late.current == ()
    text = "18.0 GiB of VRAM did not come back after python3 (PID 50) ended"
    assert card.log == [("began", text), ("returned", text)]


@pytest.mark.parametrize(
    "steps",
    [
        ((19 * GIB, (), 10), (GIB, (), 300)),
        # The pool is as full as before, and all of it is known to be held.
        ((GIB, (holder(61, 18 * GIB),), 300),),
        # Less than a tenth of what the process held.
        ((GIB + GIB, (), 300),),
        ((19 * GIB, (holder(50, 0),), 300),),
    ],
    ids=["returned in time", "held by another process", "overhead of the driver", "freed by a living process"],
)
def test_memory_that_is_explained_is_not_reported(steps: Sequence[tuple[int, Sequence[Process], int]]) -> None:
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))
    for rest, holders, seconds in steps:
        card.show(rest, *holders, seconds=seconds)

    assert card.log == []


def test_part_of_the_memory_is_reported_with_its_amount() -> None:
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))

    (found,) = card.show(5 * GIB, seconds=60).current

    assert found.held_bytes == 4 * GIB


def test_row_of_an_old_scan_delays_the_report_until_it_is_gone() -> None:
    """The list of processes is older than that of the driver."""
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))
    card.show(19 * GIB, holder(50, 0), seconds=20)

    assert card.show(19 * GIB, seconds=20).current


def test_two_processes_do_not_count_the_same_bytes_twice() -> None:
    card = Card()
    card.show(GIB, holder(50, 9 * GIB), holder(51, 9 * GIB))

    (found,) = card.show(10 * GIB, seconds=60).current

    assert (found.held_bytes, len(found.processes)) == (9 * GIB, 2)


def test_memory_of_a_process_that_just_ended_may_be_on_its_way_back() -> None:
    """It is not attributed to the one that ended before."""
    card = Card()
    card.show(GIB, holder(50, 9 * GIB), holder(51, 9 * GIB))
    card.show(GIB, holder(51, 9 * GIB), seconds=10)

    now = card.show(10 * GIB, seconds=20)

    assert now.current == ()


def test_process_that_the_driver_still_lists_is_exact() -> None:
    """Its memory is in no process of /proc, but not unattributed either."""
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))

    (found,) = card.show(GIB, holder(50, 18 * GIB, visible=False), seconds=60, listed="partial").current

    assert found.held_bytes == 18 * GIB
    assert found.text.endswith("; the driver still lists it")


@pytest.mark.parametrize(
    "unknown",
    [
        {"listed": "partial"},
        {"listed": Absent.STALE},
        {"scan": Absent.NOT_AVAILABLE},
        {"rest": Absent.STALE},
    ],
    ids=["partial list", "stale list", "no scan", "use not known"],
)
def test_incomplete_figures_report_nothing(unknown: Mapping[str, object]) -> None:
    """Another process that is not visible may hold the memory."""
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))
    rest = unknown.get("rest", 19 * GIB)
    card.show(rest, seconds=300, **{name: one for name, one in unknown.items() if name != "rest"})  # type: ignore[arg-type]

    assert card.log == []


def test_short_gap_is_bridged_and_a_long_one_starts_again() -> None:
    """After a driver reload, nothing is known about the memory before."""
    bridged, fresh = Card(), Card()
    for card, gap in ((bridged, MAX_GAP_SECONDS - 20), (fresh, MAX_GAP_SECONDS + 20)):
        card.show(GIB, holder(50, 18 * GIB))
        card.show(Absent.STALE, seconds=gap, listed=Absent.STALE)
        card.show(19 * GIB, seconds=60)

    assert [len(card.log) for card in (bridged, fresh)] == [1, 0]


def test_machine_without_gpu_processes_costs_nothing() -> None:
    card = Card()

    assert card.show(GIB) == ReturnChanges()


def test_memory_in_a_total_of_the_driver_is_found() -> None:
    """System RAM of an APU: GTT is the driver's, and no unattributed memory."""
    base = many_owners()
    share = replace(base.shares[0], used_bytes=20 * GIB, device="gpu0")
    ram = replace(base.pools[0], unattributed_bytes=GIB)
    device = Device(
        "gpu0", "AMD", "APU", Architecture.UNIFIED, allocates_from=("gpu0.gtt",), process_list="complete"
    )
    user = replace(base.processes[0], device_bytes={"gpu0.gtt": 19 * GIB})
    scan = ProcessScan(1, 0)
    holding = replace(base, pools=(ram,), shares=(share,), devices=(device,), processes=(user,), process_scan=scan)
    tracker = ReturnTracker()

    tracker.add(0.0, holding)
    for at in range(10, 70, 10):
        changes = tracker.add(float(at), replace(holding, processes=()))

    assert [one.held_bytes for one in changes.current] == [19 * GIB]


@pytest.mark.parametrize(("gap", "is_reported"), [(60.0, True), (61.0, False)])
def test_gap_of_more_than_a_minute_starts_again(gap: float, is_reported: bool) -> None:
    """Memory may have moved for other reasons while the figures were incomplete."""
    card = Card()
    card.show(GIB, holder(50, 18 * GIB))
    card.at += gap - 10.0
    card.show(19 * GIB, seconds=60)

    assert bool(card.log) is is_reported
