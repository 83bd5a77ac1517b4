"""The process table: cheap scans through open files, correct with reused PIDs, within the descriptor limit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from memwatch.core.collectors.processes import Collector
from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.linux.process_files import parse_statm, read_at
from memwatch.core.linux.process_table import (
    KERNEL_TURNS,
    LISTED_TURNS,
    NewProcessCheck,
    ProcessTable,
    ScanResult,
    descriptors_for_processes,
)
from support.budget import within
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


@pytest.mark.measure
def test_repeated_table_scan_is_cheap() -> None:
    """With 600 real processes, it costs at most half of opening, reading and closing every stat."""
    with sleepers(600), table_of(Path("/proc"), lambda: 2000) as table:
        table.scan()
        folder = os.open("/proc", os.O_RDONLY)
        part = best_ratio(table.scan, lambda: every_stat(folder))
        os.close(folder)

    within("repeated scan, of opening and reading each stat", part, 0.5, "")


@pytest.mark.measure
def test_repeated_collector_scan_is_cheap() -> None:
    """With owners, it costs at most a fifth of what psutil takes for memory and names.

    That is the budget: 15 ms for 5,000 processes where psutil takes 68 ms, once in ten seconds.
    """
    wanted = ["name", "create_time", "memory_info"]
    with sleepers(600):
        collector = Collector(Roots(), top=20, page_size=os.sysconf("SC_PAGE_SIZE"))
        collector.collect()
        collector.collect()
        part = best_ratio(collector.collect, lambda: list(psutil.process_iter(wanted)))
        collector.close()

    within("repeated scan with owners, of psutil's", part, 15 / 68, "")


def every_stat(folder: int) -> None:
    for name in os.listdir(folder):
        if name.isdecimal():
            read_at(folder, name + "/stat", 1200)


def test_allocated_memory_is_seen_at_the_next_scan() -> None:
    """A file kept open returns the current value."""
    with table_of(Path("/proc")) as table:
        table.scan()
        before = pages(table)[os.getpid()]
        block = bytearray(b"x") * (64 << 20)
        table.scan()
        after = pages(table)[os.getpid()]

    assert (after - before) * os.sysconf("SC_PAGE_SIZE") == pytest.approx(len(block), rel=0.1)


def test_ended_process_is_gone_at_the_next_scan() -> None:
    """A zombie has no memory, and a reaped process is in no list."""
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


@pytest.mark.parametrize("room", [0, 2000], ids=["read again", "kept"])
def test_process_whose_first_thread_ended_keeps_its_memory(room: int) -> None:
    """The kernel reports 0 for it, and so does ps. The files of a remaining thread have the memory."""
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


@pytest.mark.parametrize("room", [0, 2000], ids=["read again", "kept"])
def test_process_whose_first_thread_ended_before_the_first_scan_is_read(room: int) -> None:
    with zombie_leader(64) as process, table_of(Path("/proc"), lambda: room) as table:
        process.end_first_thread()
        table.scan()
        found = pages(table)[process.pid]

    assert found * os.sysconf("SC_PAGE_SIZE") > 64 << 20


def wait_for_zombie(pid: int) -> None:
    """Wait until it is a zombie; its parent reaps it at the end of the test."""
    wait_until(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes())


def test_processes_beyond_the_descriptor_limit_are_read_too(tmp_path: Path) -> None:
    """With three descriptors, five processes and their changes are read."""
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


def test_changed_descriptor_limit_is_followed(tmp_path: Path) -> None:
    """At the next scan files are closed when the limit falls, and opened when it rises."""
    roots = folder_of(tmp_path)
    for pid in range(11, 21):
        add_process(tmp_path, stat_line(pid, rss=pid), statm=statm_line(pid))
    room = [10]
    held = []
    with table_of(roots.procfs, lambda: room[0]) as table:
        for limit in (10, 4, 0, 7):
            room[0] = limit
            table.scan()
            held.append(kept_files(os.getpid()))
            assert pages(table) == {pid: pid for pid in range(11, 21)}

    assert held == [10, 4, 0, 7]
    assert kept_files(os.getpid()) == 0


def with_last_pid(procfs: Path, last: int, own: str = "77") -> None:
    """Write the last PID that the kernel assigned, and the PIDs of the reader."""
    (procfs / "self").mkdir(exist_ok=True)
    (procfs / "self/status").write_text(f"Name:\tx\nNSpid:\t{own}\nVmSwap:\t       0 kB\n")
    (procfs / "loadavg").write_text(f"0.00 0.01 0.05 1/389 {last}\n")


def test_folder_is_listed_when_a_pid_was_assigned(tmp_path: Path) -> None:
    """Without a new PID no process can have started. Every sixth scan lists the folder in any case."""
    roots = folder_of(tmp_path, stat_line(11, rss=11))
    with_last_pid(tmp_path, 11)
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(12, rss=12))
        table.scan()
        unlisted = pages(table)
        with_last_pid(tmp_path, 12)
        table.scan()
        listed = pages(table)
        add_process(tmp_path, stat_line(13, rss=13))
        for _ in range(LISTED_TURNS):
            table.scan()

        assert unlisted == {11: 11}
        assert listed == {11: 11, 12: 12}
        assert pages(table) == {11: 11, 12: 12, 13: 13}


def test_folder_is_listed_when_a_process_ended(tmp_path: Path) -> None:
    """Its PID may be reused, and the ended process must leave the list at once."""
    roots = folder_of(tmp_path, stat_line(11, rss=11), stat_line(12, rss=12))
    with_last_pid(tmp_path, 12)
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
def test_folder_is_always_listed_without_a_usable_loadavg(tmp_path: Path, own: str, loadavg: str) -> None:
    """In a PID namespace, loadavg is about that namespace, while the folder may be about the host."""
    roots = folder_of(tmp_path, stat_line(11, rss=11))
    with_last_pid(tmp_path, 11, own)
    (tmp_path / "loadavg").write_text(loadavg)
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(12, rss=12))
        table.scan()

        assert pages(table) == {11: 11, 12: 12}


def test_loadavg_of_another_file_system_is_not_trusted(tmp_path: Path) -> None:
    """lxcfs mounts its own file there, whose last PID is delayed."""
    with_last_pid(tmp_path, 11)
    (tmp_path / "loadavg").unlink()
    (tmp_path / "loadavg").symlink_to("/proc/loadavg")  # on another file system than the folder
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        check = NewProcessCheck(folder)
        found = [check.has_changed() for _ in range(100)]
    finally:
        os.close(folder)

    assert all(found)


def test_real_loadavg_changes_with_a_new_process() -> None:
    """Between new processes it stays the same for a while."""
    folder = os.open("/proc", os.O_RDONLY)
    try:
        check = NewProcessCheck(folder)
        first = check.has_changed()
        wait_until(lambda: not check.has_changed())
        with sleepers(1):
            by_process = check.has_changed()
    finally:
        os.close(folder)

    assert (first, by_process) == (True, True)


def test_half_of_the_descriptor_limit_is_for_processes() -> None:
    """The rest is for clients and drivers. A small limit is theirs alone, and an unlimited one is capped."""
    assert [descriptors_for_processes(limit) for limit in (64, 511, 1024, 4096, 1 << 20, -1)] == [
        0,
        0,
        512,
        2048,
        8192,
        8192,
    ]


def test_reused_pid_belongs_to_the_new_process(tmp_path: Path) -> None:
    roots = folder_of(tmp_path, stat_line(42, "victim", rss=900, start=100))
    with table_of(roots.procfs) as table:
        table.scan()
        add_process(tmp_path, stat_line(42, "newcomer", rss=1, start=101))
        table.scan()

        (entry,) = table
        assert (entry.start_ticks, entry.pages) == (101, 1)


def test_pid_of_a_kernel_thread_reused_by_a_process_is_found(tmp_path: Path) -> None:
    """A kernel thread is read again only once in KERNEL_TURNS scans."""
    roots = folder_of(tmp_path, stat_line(42, "kworker", rss=0, flags=KERNEL))
    with table_of(roots.procfs) as table:
        table.scan()
        assert pages(table) == {}
        add_process(tmp_path, stat_line(42, "newcomer", rss=7, start=101))
        for _ in range(KERNEL_TURNS):
            table.scan()

        assert pages(table) == {42: 7}


@pytest.mark.parametrize("garbage", [b"", b"12", b"999 x 3 1 0 40 0\n", b"999 5", b"1 %s 3\n" % (b"9" * 30)])
def test_invalid_statm_affects_only_its_process(tmp_path: Path, garbage: bytes) -> None:
    """It is counted as rejected; the others keep their figures."""
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


def test_process_with_an_invalid_stat_is_left_out_and_counted(tmp_path: Path) -> None:
    """It counts as unreadable and as rejected."""
    roots = folder_of(tmp_path, stat_line(5), stat_line(6))
    (tmp_path / "6/stat").write_bytes(b"6 (x) S 1\n")
    collector = Collector(roots)

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [5]
    assert findings.process_scan is not None
    assert (findings.process_scan.unreadable, findings.rejected) == (1, 1)


def test_processes_are_read_without_any_kept_descriptor() -> None:
    """Real processes of this machine are found with a descriptor limit of 0."""
    with table_of(Path("/proc"), lambda: 0) as table, sleepers(20) as pids:
        table.scan()
        found = pages(table)

    assert set(pids) <= found.keys()
    assert kept_files(os.getpid()) == 0


def test_collector_lists_every_process_that_uses_a_device(tmp_path: Path) -> None:
    """However small it is, and only once."""
    roots = folder_of(tmp_path, *(stat_line(pid, rss=pid) for pid in range(10, 20)))
    collector = Collector(Roots(roots.procfs), top=2, wanted=lambda: {11, 19, 4711})

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [19, 18, 11]
