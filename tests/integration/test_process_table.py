"""All processes at every look: cheap by files kept open, right when numbers are reused, within the descriptors."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from memwatch.collectors.processes import Collector
from memwatch.linux.files import ParseError, Roots
from memwatch.linux.process_files import parse_statm, read_at
from memwatch.linux.process_table import KERNEL_TURNS, LISTED_TURNS, NewProcessCheck, ProcessTable, ScanResult
from memwatch.runtime.limits import descriptors_for_processes
from support.calibration import best_ratio
from support.daemon_process import kept_files
from support.process_folders import add_process, folder_of, stat_line, statm_line
from support.sleeping_processes import sleepers
from support.waiting import wait_until
from support.zombie_leader import zombie_leader

KERNEL = 0x208040


@contextmanager
def table_of(procfs: Path, room: Callable[[], int] = lambda: 100) -> Iterator[ProcessTable]:
    folder = os.open(procfs, os.O_RDONLY | os.O_DIRECTORY)
    table = ProcessTable(folder, room)
    try:
        yield table
    finally:
        table.close()
        os.close(folder)


def pages(table: ProcessTable) -> dict[int, int]:
    return {entry.pid: entry.pages for entry in table}


@pytest.mark.alone
def test_a_repeated_look_is_cheap() -> None:
    """At 600 real processes a repeated look costs at most half of opening, reading and closing every stat."""
    with sleepers(600), table_of(Path("/proc"), lambda: 2000) as table:
        table.scan()
        folder = os.open("/proc", os.O_RDONLY)
        part = best_ratio(table.scan, lambda: every_stat(folder))
        os.close(folder)

    assert part < 0.5


@pytest.mark.alone
def test_a_repeated_scan_is_cheap() -> None:
    """All of a repeated scan, owners included, costs at most a fifth of what psutil takes for memory and names.

    That is the budget: 15 ms for 5,000 processes where psutil takes 68, once in ten seconds.
    """
    wanted = ["name", "create_time", "memory_info"]
    with sleepers(600):
        collector = Collector(Roots(), top=20, page_size=os.sysconf("SC_PAGE_SIZE"))
        collector.collect()
        collector.collect()
        part = best_ratio(collector.collect, lambda: list(psutil.process_iter(wanted)))
        collector.close()

    assert part < 15 / 68


def every_stat(folder: int) -> None:
    for name in os.listdir(folder):
        if name.isdecimal():
            read_at(folder, name + "/stat", 1200)


def test_what_a_process_takes_is_seen_at_the_next_look() -> None:
    """A look through a kept file is no older than the look."""
    with table_of(Path("/proc")) as table:
        table.scan()
        before = pages(table)[os.getpid()]
        block = bytearray(b"x") * (64 << 20)
        table.scan()
        after = pages(table)[os.getpid()]

    assert (after - before) * os.sysconf("SC_PAGE_SIZE") == pytest.approx(len(block), rel=0.1)


def test_a_process_that_ended_is_gone_at_the_next_look() -> None:
    """An open file of a dead process answers nothing; its descriptor is given back."""
    with table_of(Path("/proc"), lambda: 2000) as table:
        with sleepers(5) as pids:
            table.scan()
            os.kill(pids[2], signal.SIGKILL)
            wait_for_zombie(pids[2])
            table.scan()
            held = pages(table)
        table.scan()

        assert held[pids[2]] == 0
        assert held[pids[1]] > 0
        assert not pages(table).keys() & set(pids)


@pytest.mark.parametrize("room", [0, 2000], ids=["read anew", "kept"])
def test_a_process_whose_first_thread_has_ended_keeps_its_memory(room: int) -> None:
    """The kernel says 0 of it then, and so does ps; it is in the files of the thread that goes on."""
    with zombie_leader(64) as process, table_of(Path("/proc"), lambda: room) as table:
        table.scan()
        before = pages(table)[process.pid]
        process.end_first_thread()
        table.scan()
        after = pages(table)[process.pid]
        table.scan()
        again = pages(table)[process.pid]
        process.end()
        table.scan()
        ended = pages(table)[process.pid]

    assert before * os.sysconf("SC_PAGE_SIZE") > 64 << 20
    assert after == again == pytest.approx(before, rel=0.02)
    assert ended == 0


@pytest.mark.parametrize("room", [0, 2000], ids=["read anew", "kept"])
def test_one_whose_first_thread_had_ended_before_is_seen_as_well(room: int) -> None:
    """A daemon may start later than that."""
    with zombie_leader(64) as process, table_of(Path("/proc"), lambda: room) as table:
        process.end_first_thread()
        table.scan()
        found = pages(table)[process.pid]

    assert found * os.sysconf("SC_PAGE_SIZE") > 64 << 20


def wait_for_zombie(pid: int) -> None:
    """Its parent reaps it at the end of all."""
    wait_until(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes())


def test_beyond_the_descriptors_stat_is_read(tmp_path: Path) -> None:
    """With room for three files, five processes are seen all the same, and their changes too."""
    roots = folder_of(tmp_path)
    for pid in range(11, 16):
        add_process(tmp_path, stat_line(pid, rss=pid), statm=statm_line(pid))
    with table_of(roots.procfs, lambda: 3) as table:
        table.scan()
        before = kept_files(os.getpid())
        for pid in range(11, 16):
            add_process(tmp_path, stat_line(pid, rss=2 * pid), statm=statm_line(2 * pid))
        tally = table.scan()

        assert before == kept_files(os.getpid()) == 3
        assert tally == ScanResult(seen=5, unreadable=0, rejected=0)
        assert pages(table) == {pid: 2 * pid for pid in range(11, 16)}


def test_a_lowered_limit_is_respected(tmp_path: Path) -> None:
    """When the limit falls files are given back at the next look; when it rises again they are opened again."""
    roots = folder_of(tmp_path)
    for pid in range(11, 21):
        add_process(tmp_path, stat_line(pid, rss=pid), statm=statm_line(pid))
    room = [10]
    held = []
    with table_of(roots.procfs, lambda: room[0]) as table:
        for most in (10, 4, 0, 7):
            room[0] = most
            table.scan()
            held.append(kept_files(os.getpid()))
            assert pages(table) == {pid: pid for pid in range(11, 21)}

    assert held == [10, 4, 0, 7]
    assert kept_files(os.getpid()) == 0


def with_numbers(procfs: Path, last: int, own: str = "77") -> None:
    """What the kernel says of numbers given out, and of the reader's own."""
    (procfs / "self").mkdir(exist_ok=True)
    (procfs / "self/status").write_text(f"Name:\tx\nNSpid:\t{own}\nVmSwap:\t       0 kB\n")
    (procfs / "loadavg").write_text(f"0.00 0.01 0.05 1/389 {last}\n")


def test_the_folder_is_listed_when_a_number_was_given_out(tmp_path: Path) -> None:
    """Without one nobody can have begun; at every sixth look it is listed whatever the kernel says."""
    roots = folder_of(tmp_path, stat_line(11, rss=11))
    with_numbers(tmp_path, 11)
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(12, rss=12))
        table.scan()
        unlisted = pages(table)
        with_numbers(tmp_path, 12)
        table.scan()
        listed = pages(table)
        add_process(tmp_path, stat_line(13, rss=13))
        for _ in range(LISTED_TURNS):
            table.scan()

        assert unlisted == {11: 11}
        assert listed == {11: 11, 12: 12}
        assert pages(table) == {11: 11, 12: 12, 13: 13}


def test_the_folder_is_listed_when_somebody_ended(tmp_path: Path) -> None:
    """Then its number may be another's, and who is gone is gone at once."""
    roots = folder_of(tmp_path, stat_line(11, rss=11), stat_line(12, rss=12))
    with_numbers(tmp_path, 12)
    with table_of(roots.procfs) as table:
        table.scan()
        shutil.rmtree(tmp_path / "12")
        add_process(tmp_path, stat_line(13, rss=13))
        table.scan()

        assert pages(table) == {11: 11, 13: 13}


@pytest.mark.parametrize(
    ("own", "loadavg"),
    [
        ("4711\t7", "0.00 0.01 0.05 1/389 11\n"),
        ("77", ""),
        ("77", "0.00 0.01 0.05\n"),
        ("77", "1 2 3 4 five\n"),
        ("77", "0.00 0.00 0.00 0/0 0\n"),
    ],
    ids=["another namespace", "empty", "cut", "no number", "gVisor's"],
)
def test_where_nobody_counts_the_folder_is_listed_always(tmp_path: Path, own: str, loadavg: str) -> None:
    """In a process id namespace of our own, loadavg is about that one, and the folder may be about the host's."""
    roots = folder_of(tmp_path, stat_line(11, rss=11))
    with_numbers(tmp_path, 11, own)
    (tmp_path / "loadavg").write_text(loadavg)
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(12, rss=12))
        table.scan()

        assert pages(table) == {11: 11, 12: 12}


def test_what_somebody_put_over_loadavg_is_not_believed(tmp_path: Path) -> None:
    """lxcfs mounts a file of its own there, with the greatest number of a moment ago."""
    with_numbers(tmp_path, 11)
    (tmp_path / "loadavg").unlink()
    (tmp_path / "loadavg").symlink_to("/proc/loadavg")  # of another file system than the folder
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        numbers = NewProcessCheck(folder)
        found = [numbers.has_changed() for _ in range(100)]
    finally:
        os.close(folder)

    assert all(found)


def test_the_kernel_says_that_a_number_was_given_out() -> None:
    """The real one; in between it says the same for a while."""
    folder = os.open("/proc", os.O_RDONLY)
    try:
        numbers = NewProcessCheck(folder)
        first = numbers.has_changed()
        wait_until(lambda: not numbers.has_changed())
        with sleepers(1):
            by_process = numbers.has_changed()
    finally:
        os.close(folder)

    assert (first, by_process) == (True, True)


def test_half_of_the_limit_is_for_processes() -> None:
    """The other half is for clients and drivers; a small limit is theirs alone, and no limit is not endless."""
    assert [descriptors_for_processes(limit) for limit in (64, 511, 1024, 4096, 1 << 20, -1)] == [
        0,
        0,
        512,
        2048,
        8192,
        8192,
    ]


def test_number_that_went_to_another(tmp_path: Path) -> None:
    """A number that was given to another process between two looks belongs to the newcomer."""
    roots = folder_of(tmp_path, stat_line(42, "victim", rss=900, start=100))
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(42, "newcomer", rss=1, start=101))
        table.scan()

        (entry,) = table
        assert (entry.start_ticks, entry.pages) == (101, 1)


def test_number_of_a_kernel_thread_that_went_to_a_process(tmp_path: Path) -> None:
    """Kernel threads are left alone, but not for ever: a process with the number of one is found."""
    roots = folder_of(tmp_path, stat_line(42, "kworker", rss=0, flags=KERNEL))
    with table_of(roots.procfs) as table:
        table.scan()
        assert pages(table) == {}
        add_process(tmp_path, stat_line(42, "newcomer", rss=7, start=101))
        for _ in range(KERNEL_TURNS):
            table.scan()

        assert pages(table) == {42: 7}


@pytest.mark.parametrize("garbage", [b"", b"12", b"999 x 3 1 0 40 0\n", b"999 5", b"1 %s 3\n" % (b"9" * 30)])
def test_a_garbled_file_costs_its_own_process_only(tmp_path: Path, garbage: bytes) -> None:
    """Nonsense about one process is counted; the others keep their figures."""
    roots = folder_of(tmp_path)
    for pid in (11, 12):
        add_process(tmp_path, stat_line(pid, rss=pid), statm=statm_line(pid))
    (tmp_path / "11/statm").write_bytes(garbage)
    with table_of(roots.procfs) as table:
        table.scan()
        tally = table.scan()

        assert tally.rejected == 1
        assert pages(table)[12] == 12
    with pytest.raises(ParseError, match="statm"):
        parse_statm(garbage)


def test_nonsense_is_left_out_and_counted(tmp_path: Path) -> None:
    """A process whose stat makes no sense is in no list, and is counted as unreadable and as rejected."""
    roots = folder_of(tmp_path, stat_line(5), stat_line(6))
    (tmp_path / "6/stat").write_bytes(b"6 (x) S 1\n")
    collector = Collector(roots)

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [5]
    assert findings.process_scan is not None
    assert (findings.process_scan.unreadable, findings.rejected) == (1, 1)


def test_real_machine_without_room() -> None:
    """Without a single descriptor to spare for them, the processes of this machine are seen all the same."""
    with table_of(Path("/proc"), lambda: 0) as table, sleepers(20) as pids:
        table.scan()
        found = pages(table)

    assert set(pids) <= found.keys()
    assert kept_files(os.getpid()) == 0


def test_collector_lists_who_holds_a_device(tmp_path: Path) -> None:
    """However small, a process that a device names is listed, once."""
    roots = folder_of(tmp_path, *(stat_line(pid, rss=pid) for pid in range(10, 20)))
    collector = Collector(Roots(roots.procfs), top=2, wanted=lambda: {11, 19, 4711})

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [19, 18, 11]
