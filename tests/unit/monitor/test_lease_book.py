"""Leases end with their time, with their process, or when the process and its descendants have the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.budget import KINDS, Account, Budget
from memwatch.core.clock import Moment
from memwatch.core.leases import MIN_BYTES, Lease
from memwatch.core.linux.accounts import Accounts
from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.lease_book import LeaseBook, LeaseRefusedError, LeaseRequest, ProcessReader
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.process_folders import add_process, folder_of, stat_line

MIB, GIB = 1 << 20, 1 << 30
PID, CHILD, GRANDCHILD = 4242, 4300, 4301
RTX, SPARK = (next(read_frames(path_of(name))) for name in ("rtx4090", "dgx-spark"))


def line(pid: int, parent: int = 1, start: int = 77, state: str = "S") -> bytes:
    words = stat_line(pid, "python", start=start).split()
    words[2:4] = [state.encode(), str(parent).encode()]
    return b" ".join(words) + b"\n"


class Bench:
    """A lease book on a simulated procfs, with clocks that tests set."""

    def __init__(self, folder: Path, snapshot: Snapshot = RTX) -> None:
        self.procfs = folder / "proc"
        folder_of(self.procfs)
        self.now = Moment(1000.0, 1000.0, 1_795_000_000.0)
        self.events: list[str] = []
        self.published: tuple[Lease, ...] = ()
        self.snapshot = replace(snapshot, processes=())
        self.budget = Budget(KINDS["leases"])
        self.accounts = Accounts(folder)
        self.book = self.create_book(self._publish)
        self.run(PID)

    def create_book(self, publish: Callable[[tuple[Lease, ...]], object]) -> LeaseBook:
        reader = ProcessReader(self.procfs)
        return LeaseBook(reader, lambda: self.now, publish, self._record, self.budget, self.accounts)

    def _publish(self, leases: tuple[Lease, ...]) -> None:
        self.published = leases

    def _record(self, _unix: float, text: str, _target: str, _account: Account) -> None:
        self.events.append(text)

    def run(
        self, pid: int, parent: int = 1, anonymous: int = 0, shared: int = 0, start: int = 77, uid: int = 1000
    ) -> None:
        status = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nRssAnon:\t{anonymous >> 10} kB\nRssFile:\t8 kB\n"
        status += f"RssShmem:\t{shared >> 10} kB\n"
        add_process(self.procfs, line(pid, parent, start), status=status.encode())

    def list(self, held: Mapping[int, Mapping[str, int]]) -> None:
        """Show these processes with their device memory in the next snapshot."""
        processes = tuple(Process(pid, 0.0, "python", 0, 0, "rss", device_bytes=of) for pid, of in held.items())
        self.snapshot = replace(self.snapshot, processes=processes)

    def pass_time(self, seconds: float = 1.0, wall: float = 0.0) -> None:
        """Let time pass, then follow the leases as a tick does. `wall`: a step of the wall clock."""
        now = self.now
        self.now = Moment(now.monotonic + seconds, now.boottime + seconds, now.wall + seconds + wall)
        self.book.follow(self.now, self.snapshot)

    def grant(
        self, count: int, target: str = "gpu0", pid: int = PID, seconds: float = 60.0, **more: object
    ) -> Lease:
        return self.book.grant(LeaseRequest(count, target, seconds, pid, **more), self.snapshot)  # type: ignore[arg-type]

    @property
    def held(self) -> int:
        self.pass_time()
        self.pass_time()  # what arrived counts from the next reading on
        return sum(lease.held_bytes for lease in self.book.current())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_lease_ends_with_its_time(bench: Bench) -> None:
    granted = bench.grant(GIB, seconds=5)
    bench.pass_time(4.9)
    before = bench.book.current()
    bench.pass_time(0.2)

    assert [one.id for one in before] == [granted.id]
    assert bench.book.current() == bench.published == ()
    assert bench.events == [
        "leased for 5.0 s: 1.0 GiB of gpu0 for python (PID 4242)",
        "lease ended: 1.0 GiB of gpu0 for python (PID 4242): its time is over",
    ]


def test_lease_ends_with_its_process(bench: Bench) -> None:
    """Also if its id was reused, and if the parent has not yet waited for it."""
    bench.grant(GIB)
    bench.run(PID, start=78)
    reused = bench.book.current()
    bench.grant(GIB)
    add_process(bench.procfs, line(PID, start=78, state="Z"))

    assert reused == bench.book.current() == ()
    assert [text.rpartition(": ")[2] for text in bench.events if "ended" in text] == ["its process ended"] * 2


@pytest.mark.parametrize("certain", [False, True])
def test_lease_of_unknown_room_is_refused_and_may_be_retried(bench: Bench, certain: bool) -> None:
    """It is neither granted nor called too large. Nothing is held, and no event is written."""
    device = replace(
        bench.snapshot.devices[0],
        headroom_bytes=Absent.NOT_PERMITTED,
        headroom_after_reclaim_bytes=Absent.NOT_PERMITTED,
    )
    bench.snapshot = replace(bench.snapshot, devices=(device,))

    with pytest.raises(LeaseRefusedError, match=r"of gpu0 is not known \(not permitted\)") as refused:
        bench.grant(GIB, certain=certain)
    assert refused.value.conflict
    assert (bench.book.current(), bench.events) == ((), [])


def test_device_memory_that_arrives_is_no_longer_held(bench: Bench) -> None:
    """By the process, and by a descendant. Memory that it had before does not count."""
    bench.list({PID: {"gpu0": 2 * GIB}})
    bench.grant(8 * GIB)
    bench.list({PID: {"gpu0": 5 * GIB}})
    after_own = bench.held
    bench.run(CHILD, PID, start=99)
    bench.run(GRANDCHILD, CHILD, start=99)
    bench.list({PID: {"gpu0": 5 * GIB}, GRANDCHILD: {"gpu0": 4 * GIB}})
    after_child = bench.held
    bench.list({PID: {"gpu0": 5 * GIB}, GRANDCHILD: {"gpu0": 5 * GIB}})

    assert (after_own, after_child, bench.held) == (5 * GIB, GIB, 0)
    assert bench.events[-1].endswith("8.0 GiB arrived")


def test_memory_of_other_processes_does_not_arrive(bench: Bench) -> None:
    """Neither does memory of another pool."""
    bench.grant(8 * GIB)
    bench.run(CHILD, parent=1)
    bench.run(PID, anonymous=8 * GIB)
    bench.list({CHILD: {"gpu0": 8 * GIB}, PID: {"gpu1": 8 * GIB}})

    assert bench.held == 8 * GIB


def test_bytes_count_until_the_figures_of_the_pool_include_them(bench: Bench) -> None:
    """A process is read at another time than its pool: what it holds counts from the next reading on."""
    bench.grant(8 * GIB)
    bench.list({PID: {"gpu0": 5 * GIB}})
    bench.pass_time()
    first = bench.book.current()[0].held_bytes
    bench.pass_time()

    assert (first, bench.book.current()[0].held_bytes) == (8 * GIB, 3 * GIB)


def test_freed_bytes_are_not_held_again(bench: Bench) -> None:
    bench.grant(8 * GIB)
    bench.list({PID: {"gpu0": 5 * GIB}})
    at_most = bench.held
    bench.list({})

    assert (at_most, bench.held) == (3 * GIB, 3 * GIB)


def test_descendant_stays_one_when_its_parent_ends(bench: Bench) -> None:
    bench.grant(8 * GIB)
    bench.run(CHILD, PID, start=99)
    bench.list({CHILD: {"gpu0": GIB}})
    first = bench.held
    bench.run(CHILD, 1, start=99)
    bench.list({CHILD: {"gpu0": 6 * GIB}})

    assert (first, bench.held) == (7 * GIB, 2 * GIB)


def test_anonymous_and_shared_memory_arrive_in_system_ram(bench: Bench) -> None:
    """Pages of files stay available, so they do not count. Shared memory counts once."""
    bench.run(PID, anonymous=GIB, shared=GIB)
    bench.grant(8 * GIB, "ram")
    bench.run(PID, anonymous=3 * GIB, shared=2 * GIB)
    bench.run(CHILD, PID, anonymous=64 * MIB, shared=2 * GIB)
    bench.list({PID: {}, CHILD: {}})

    assert bench.held == 5 * GIB


def test_forked_process_does_not_count_the_pages_of_its_parent(bench: Bench) -> None:
    bench.run(PID, anonymous=6 * GIB)
    bench.grant(8 * GIB, "ram")
    bench.run(CHILD, PID, anonymous=6 * GIB, start=99)
    bench.list({PID: {}, CHILD: {}})
    forked = bench.held
    bench.run(CHILD, PID, anonymous=7 * GIB, start=99)

    assert (forked, bench.held) == (8 * GIB, 7 * GIB)


def test_program_that_replaces_another_counts_from_its_own_start(bench: Bench) -> None:
    """`memwatch wait` is replaced by the program, which starts smaller."""
    bench.run(PID, anonymous=400 * MIB)
    bench.grant(8 * GIB, "ram")
    bench.run(PID, anonymous=0)
    bench.pass_time()
    bench.run(PID, anonymous=2 * GIB)

    assert bench.held == 6 * GIB


def test_device_memory_of_a_unified_gpu_arrives_in_system_ram(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SPARK)
    share = SPARK.shares[0]
    bench.grant(20 * GIB)
    bench.run(PID, anonymous=GIB)
    bench.list({PID: {share.id: 12 * GIB}})

    assert (share.within, bench.held) == ("ram", 7 * GIB)


def test_lease_ends_when_98_percent_have_arrived(bench: Bench) -> None:
    """Programs rarely use a planned size to the byte."""
    bench.grant(10 * GIB)
    bench.list({PID: {"gpu0": int(9.81 * GIB)}})

    assert bench.held == 0
    assert bench.events[-1].endswith("9.8 GiB arrived")


def test_leases_of_two_processes_do_not_exceed_the_headroom(bench: Bench) -> None:
    """22.95 GiB are available: the second request is refused with the headroom and the first lease."""
    bench.run(CHILD)
    bench.grant(20 * GIB, seconds=120)
    with pytest.raises(LeaseRefusedError) as refusal:
        bench.grant(4 * GIB, pid=CHILD)

    assert refusal.value.conflict
    assert str(refusal.value) == (
        "4.0 GiB of gpu0 do not fit: 3.0 GiB are available beside leases: 20.0 GiB of gpu0 for python (PID 4242), "
        "2 min left; wait, or end a lease"
    )
    assert bench.grant(2 * GIB, pid=CHILD).held == {"gpu0": 2 * GIB}


def test_certain_lease_counts_only_memory_free_without_reclaim(bench: Bench) -> None:
    with pytest.raises(LeaseRefusedError, match=r"9\.0 GiB are available without reclaim"):
        bench.grant(20 * GIB, "ram", certain=True)

    assert bench.grant(20 * GIB, "ram")


@pytest.mark.parametrize(
    ("count", "target", "pid", "why", "conflict"),
    [
        (GIB, "gpu7", PID, "target is 'gpu7'; use one of ram, gpu0", False),
        (GIB, "gpu0", 4999, "no process 4999 runs here; send the pid", False),
        (25 * GIB, "gpu0", PID, "25.0 GiB exceed the total of gpu0, 24.0 GiB; lease less", False),
        (23 * GIB, "gpu0", PID, "23.0 GiB of gpu0 do not fit: 23.0 GiB are available; wait until other", True),
    ],
)
def test_refusal_names_its_reason(
    bench: Bench, count: int, target: str, pid: int, why: str, conflict: bool
) -> None:
    with pytest.raises(LeaseRefusedError) as refusal:
        bench.grant(count, target, pid)

    assert str(refusal.value).startswith(why)
    assert refusal.value.conflict is conflict
    assert bench.events == []


def test_process_that_started_at_another_time_is_refused(bench: Bench) -> None:
    """Process ids inside a container are others."""
    with pytest.raises(LeaseRefusedError, match="no process 4242 that started at tick 78 runs here"):
        bench.grant(GIB, start_ticks=78)

    assert bench.grant(GIB, start_ticks=77)


def test_second_lease_of_a_process_in_a_pool_is_refused(bench: Bench) -> None:
    """Its growth does not show for which of the two bytes arrive."""
    granted = bench.grant(GIB)
    with pytest.raises(LeaseRefusedError, match=f"already has {granted.id} in the same pool"):
        bench.grant(GIB)

    assert bench.grant(GIB, "ram")


def lease_all(bench: Bench, uids: Iterable[int], first: int = 1, count: int = MIN_BYTES) -> int:
    """Lease for a process of each user. Return the number of those granted."""
    granted = 0
    for pid, uid in enumerate(uids, first):
        bench.run(pid, uid=uid)
        with suppress(LeaseRefusedError):
            granted += bool(bench.grant(count, pid=pid, is_operator=False))
    return granted


def test_account_with_subordinate_ids_has_a_quarter_of_the_leases(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/subuid").write_text("1001:100000:65536\n")
    assert lease_all(bench, range(100_000, 100_060)) == 16
    bench.run(900, uid=1001)
    with pytest.raises(LeaseRefusedError, match="uid 1001 has 16 of 64 leases, its share; end one first"):
        bench.grant(MIN_BYTES, pid=900, is_operator=False)

    assert lease_all(bench, [1000], 901) == 1
    assert len(bench.book.current()) == 17


def test_leases_leave_places_for_operators_and_root(bench: Bench) -> None:
    """Many accounts together. A lease of one that has two is the smallest, and ends for an account without."""
    users = [uid for uid in range(2000, 2030) for _ in range(2)]
    assert lease_all(bench, users) == 54
    assert len(bench.book.current()) == 48
    assert lease_all(bench, [1000], 900, count=2 * MIN_BYTES) == 1
    assert any("its account had the most leases, and uid 1000 needed a place" in text for text in bench.events)
    for pid in range(1000, 1015):  # an operator, who has one of the users already
        bench.run(pid)
        bench.grant(MIN_BYTES, pid=pid)
    for pid in range(2000, 2070):  # root, for processes of a user
        bench.run(pid)
        bench.grant(MIN_BYTES, pid=pid, by_uid=0)

    assert len(bench.book.current()) == 48 + 15 + 64  # of root's own, the first six ended for the others
    assert bench.budget.refused == 13 + 6


def test_ended_lease_leaves_its_place(bench: Bench) -> None:
    assert lease_all(bench, [1000] * 17) == 16
    bench.book.end(bench.book.current()[0].id, "root (uid 0)")
    assert lease_all(bench, [1000], 100) == 1


def test_wall_clock_that_is_set_moves_the_shown_end_only(bench: Bench) -> None:
    granted = bench.grant(GIB, seconds=60)
    bench.pass_time(1, wall=3600)
    shown = bench.book.current()[0]
    bench.pass_time(60)

    assert shown.until_unix == granted.until_unix + 3600
    assert bench.book.current() == ()


def test_lease_that_is_ended_is_gone_at_once(bench: Bench) -> None:
    granted = bench.grant(GIB)

    assert bench.book.end(granted.id, "root (uid 0)")
    assert not bench.book.end(granted.id, "root (uid 0)")
    assert bench.published == ()
    assert bench.events[-1].endswith("ended by root (uid 0)")


def test_leases_are_published_when_they_change_and_only_then(bench: Bench) -> None:
    """Each publication wakes the clients that wait for a change."""
    published: list[int] = []
    bench.book = bench.create_book(lambda leases: published.append(len(leases)))
    bench.pass_time()
    before = list(published)
    bench.grant(GIB, seconds=5)
    for _ in range(3):
        bench.pass_time()
    granted = list(published)
    bench.pass_time(3.0)

    assert (before, granted, published) == ([], [1], [1, 0])
