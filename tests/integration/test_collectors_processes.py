"""The processes collector: owners and sizes of the largest processes, also with ten thousand of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from memwatch.core.collectors.processes import RESCAN_TURNS, Collector
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.process_files import Stat, parse_boot_time, parse_passwd, parse_stat, parse_uid
from memwatch.core.linux.process_owners import SHOWN_TURNS
from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import ProcessScan
from support.daemon_process import descriptors
from support.machine_folders import machine_folder
from support.process_folders import add_process, folder_of, stat_line, statm_line
from support.zombie_leader import zombie_leader

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
HOLD = "import sys; block = bytearray(b'x') * (200 << 20); print('ready', flush=True); sys.stdin.read()"


def find(processes: tuple[Process, ...], pid: int) -> Process:
    return next(process for process in processes if process.pid == pid)


def test_real_process_matches_psutil() -> None:
    """A process that allocates 200 MiB is found. psutil reports the same size, start, name and user."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        collector = Collector(Roots(), top=1000, page_size=PAGE, clock_ticks=TICKS)

        found = find(collector.collect().processes, child.pid)
        expected = psutil.Process(child.pid)
        rss, start = expected.memory_info().rss, expected.create_time()
        name, user = expected.name(), expected.username()
        collector.close()
        child.communicate()

    assert found.rss_bytes == pytest.approx(rss, rel=0.02)
    assert isinstance(found.rss_bytes, int)
    assert found.rss_bytes > 200 << 20
    assert found.start_time == pytest.approx(start, abs=2)
    assert (found.name, found.user) == (name, user)


def test_process_with_an_exited_first_thread_keeps_its_values() -> None:
    """Size, swap, owner and command line come from another thread. psutil reports an RSS of 0."""
    with zombie_leader(200) as child:
        collector = Collector(Roots(), top=1000, page_size=PAGE, clock_ticks=TICKS, commands=True)
        before = find(collector.collect().processes, child.pid)
        child.end_first_thread()
        after = find(collector.collect().processes, child.pid)
        psutil_rss = psutil.Process(child.pid).memory_info().rss
        collector.close()

    assert psutil_rss == 0
    assert after.rss_bytes == pytest.approx(before.rss_bytes, rel=0.02)
    assert replace(after, rss_bytes=before.rss_bytes, footprint_bytes=before.footprint_bytes) == before
    assert "zombie_leader" in str(after.command)


def test_changed_process_is_read_at_once_and_others_within_12_scans(tmp_path: Path) -> None:
    """A new name is shown with the next change of the process's pages, or within 12 scans."""
    roots = folder_of(tmp_path)
    for pid in (7, 8):
        add_process(tmp_path, stat_line(pid, "before"), statm=statm_line(5))
    collector = Collector(roots)
    collector.collect()
    collector.collect()
    for pid, pages in ((7, 6), (8, 5)):
        add_process(tmp_path, stat_line(pid, "after", pages), statm=statm_line(pages))

    rounds = [collector.collect().processes for _ in range(SHOWN_TURNS)]
    collector.close()

    assert (find(rounds[0], 7).name, find(rounds[0], 7).rss_bytes) == ("after", 6 * 4096)
    seen = [find(processes, 8).title for processes in rounds]
    assert seen == sorted(seen, reverse=True), seen
    assert seen[-1] == "after"


def test_processes_of_equal_size_keep_their_places(tmp_path: Path) -> None:
    """Workers of one server: stat and statm differ by a page, and being shown must not change the order."""
    roots = folder_of(tmp_path)
    for pid in range(10, 40):
        add_process(tmp_path, stat_line(pid, rss=499), statm=statm_line(500))
    collector = Collector(roots, top=5)

    rounds = [collector.collect().processes for _ in range(SHOWN_TURNS + 2)]
    collector.close()

    assert {tuple(process.pid for process in shown) for shown in rounds[1:]} == {(39, 38, 37, 36, 35)}
    assert {process.rss_bytes for shown in rounds[1:] for process in shown} == {500 * 4096}


def test_process_with_a_closed_file_is_read_fresh(tmp_path: Path) -> None:
    """When the descriptor limit falls, the last value of the closed file is no longer used."""
    roots = folder_of(tmp_path)
    add_process(tmp_path, stat_line(7), statm=statm_line(5))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    collector = Collector(roots)
    collector.collect()
    collector.collect()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        seen = []
        for pages in range(6, 6 + SHOWN_TURNS):
            add_process(tmp_path, stat_line(7, rss=pages), statm=statm_line(pages))
            seen.append(find(collector.collect().processes, 7).rss_bytes)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        collector.close()

    assert seen == [pages * 4096 for pages in range(6, 6 + SHOWN_TURNS)]


def test_process_that_failed_once_is_shown_at_the_next_scan(tmp_path: Path) -> None:
    """Not after 12 scans: a missing process does not count as shown."""
    roots = folder_of(tmp_path)
    add_process(tmp_path, stat_line(7), statm=statm_line(5))
    collector = Collector(roots)
    collector.collect()
    seen = []
    for stat in (b"nonsense", stat_line(7, rss=6), stat_line(7, rss=6)):
        (tmp_path / "7/stat").write_bytes(stat)
        (tmp_path / "7/statm").write_bytes(statm_line(6))
        seen.append([process.pid for process in collector.collect().processes])
    collector.close()

    assert seen == [[], [7], [7]]


def test_clock_change_moves_every_start_time(tmp_path: Path) -> None:
    """Also that of a process whose memory has not changed since."""
    roots = folder_of(tmp_path)
    add_process(tmp_path, stat_line(7), statm=statm_line(5))
    collector = Collector(roots)
    collector.collect()
    before = find(collector.collect().processes, 7).start_time
    (tmp_path / "stat").write_bytes(b"cpu 1\nbtime 1700000500\n")

    rounds = [collector.collect().processes for _ in range(RESCAN_TURNS)]
    collector.close()

    assert isinstance(before, float)
    assert [find(shown, 7).start_time for shown in (rounds[0], rounds[-1])] == [before, before + 500]


def test_missing_boot_time_is_retried(tmp_path: Path) -> None:
    """Nothing is published with an unknown start time. The next scan reads the file again."""
    collector = Collector(folder_of(tmp_path, stat_line(5, start=500)), page_size=4096, clock_ticks=100)
    (tmp_path / "stat").write_bytes(b"cpu 1\n")
    for _ in range(2):
        with pytest.raises(ParseError, match="btime"):
            collector.collect()
    (tmp_path / "stat").write_bytes(b"cpu 1\nbtime 1700000500\n")

    found = find(collector.collect().processes, 5)
    collector.close()

    assert found.start_time == 1_700_000_505.0


def test_short_lived_processes_never_fail_a_scan() -> None:
    """While processes start and exit, every scan succeeds and lists every process once."""
    collector = Collector(Roots(), top=1000, page_size=PAGE, clock_ticks=TICKS)
    rounds = []
    for _ in range(60):
        children = [subprocess.Popen(["true"]) for _ in range(5)]
        rounds.append(collector.collect())
        for child in children:
            child.wait()
    collector.close()

    own = [find(found.processes, os.getpid()) for found in rounds]
    assert len({(process.pid, process.start_time) for process in own}) == 1
    assert all(len({process.pid for process in found.processes}) == len(found.processes) for found in rounds)


def test_largest_processes_come_first_up_to_the_limit(tmp_path: Path) -> None:
    """The largest are listed; all are counted."""
    roots = folder_of(tmp_path, *(stat_line(pid, rss=pid) for pid in range(10, 20)))
    collector = Collector(roots, top=3, page_size=4096)

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [19, 18, 17]
    assert findings.process_scan == ProcessScan(seen=10, unreadable=0)


def test_ten_thousand_processes_take_less_than_a_second(tmp_path: Path) -> None:
    """Less than 1 s of CPU time."""
    roots = folder_of(tmp_path, *(stat_line(pid, f"worker {pid}", rss=pid % 997) for pid in range(1, 10_001)))
    collector = Collector(roots, page_size=4096)

    started = time.process_time()
    findings = collector.collect()
    spent = time.process_time() - started
    collector.close()

    assert findings.process_scan == ProcessScan(seen=10_000, unreadable=0)
    assert len(findings.processes) == 50
    assert spent < 1.0


@pytest.mark.parametrize("name", ["x", "tmux: server", "a) (b", "(sd-pam)", ") S 1 1 1", "line\nbreak", "", "é"])
def test_process_names_never_shift_columns(name: str) -> None:
    """A process name may contain anything, including blanks and brackets."""
    stat = parse_stat(stat_line(42, name, rss=7, start=99))

    assert stat == Stat(rss_pages=7, pid=42, start_ticks=99, name=name.encode(), parent=1, group=42)


def test_kernel_threads_are_skipped() -> None:
    assert parse_stat(stat_line(2, "kthreadd", rss=0, flags=0x208040)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"12",
        stat_line(5)[:-1],
        stat_line(5)[:50] + b"\n",
        stat_line(5, rss=-1),
        stat_line(0),
        stat_line(5, start=-3),
    ],
)
def test_invalid_stat_line_is_rejected(data: bytes) -> None:
    """Truncated lines and negative values."""
    with pytest.raises(ParseError, match="is not a valid line of"):
        parse_stat(data)


def test_unreadable_process_is_counted(tmp_path: Path) -> None:
    """A process that exits during the scan does not affect the others."""
    roots = folder_of(tmp_path, stat_line(5), stat_line(6))
    (tmp_path / "6/stat").unlink()
    collector = Collector(roots, page_size=4096)

    findings = collector.collect()
    collector.close()

    assert [process.pid for process in findings.processes] == [5]
    assert findings.process_scan == ProcessScan(seen=2, unreadable=1)


def test_unreadable_owner_is_absent(tmp_path: Path) -> None:
    """Without status and cgroup, user, unit and container are absent, not invented."""
    collector = Collector(folder_of(tmp_path, stat_line(5)), page_size=4096)

    (process,) = collector.collect().processes
    collector.close()

    rejected = Absent.NOT_PERMITTED
    assert (process.user, process.unit, process.container) == (rejected, rejected, rejected)


def test_effective_user_is_reported() -> None:
    """A daemon that dropped root runs as its effective user."""
    assert parse_uid(b"Name:\tnginx\nUid:\t0\t33\t33\t33\nGid:\t0\t33\t33\t33\n") == 33
    assert parse_uid(b"Name:\tnginx\n") is None


def test_users_are_named_from_passwd(tmp_path: Path) -> None:
    """From the host's passwd, read again when it changes. Unknown users are shown by number."""
    roots = folder_of(tmp_path / "proc", stat_line(5))
    roots = Roots(roots.procfs, tmp_path, tmp_path)
    (roots.procfs / "5/status").write_bytes(b"Uid:\t7\t7\t7\t7\n")
    collector = Collector(roots, page_size=4096)
    before = collector.collect().processes[0].user

    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "# comment\nlp:x:7:7::/:/bin/sh\nlp2:x:7:7::/:/bin/sh\n+::::::\nbad:x:y:1::/:\n"
    )
    after = collector.collect().processes[0].user
    collector.close()

    assert (before, after) == ("7", "lp")
    assert parse_passwd(b"a:b") == {}


def test_clock_set_after_boot_corrects_start_times(tmp_path: Path) -> None:
    """A board that booted in 1970 is corrected after time sync. A jitter of 1 s changes nothing."""
    collector = Collector(folder_of(tmp_path, stat_line(5, start=500)), page_size=4096, clock_ticks=100)
    starts = []
    for boot_time in (10, 11, 1_700_000_000, 1_700_000_001):
        (tmp_path / "stat").write_text(f"btime {boot_time}\n")
        rounds = [collector.collect().processes[0].start_time for _ in range(RESCAN_TURNS)]
        starts.append(rounds[-1])
    collector.close()

    assert starts == [15.0, 15.0, 1_700_000_005.0, 1_700_000_005.0]


def test_stat_without_boot_time_is_rejected() -> None:
    """Start times need the boot time."""
    with pytest.raises(ParseError, match="btime"):
        parse_boot_time(b"cpu 1\nbtime 17")


def test_64_kib_pages_are_counted() -> None:
    """1000 pages of 64 KiB are 65,536,000 bytes."""
    machine = machine_folder("arm64-64k-pages")
    collector = Collector(machine.roots, page_size=65536)

    found = find(collector.collect().processes, 9001)
    collector.close()

    assert found.rss_bytes == 65_536_000


def test_missing_procfs_makes_the_collector_unavailable(tmp_path: Path) -> None:
    """The reason names the path."""
    with pytest.raises(SourceUnavailable, match="nowhere"):
        Collector(Roots(procfs=tmp_path / "nowhere"))


def test_descriptors_do_not_leak() -> None:
    """A hundred scans keep as many files open as one scan. Closing leaves none."""
    before = len(os.listdir("/proc/self/fd"))
    collector = Collector(Roots(), top=10, page_size=PAGE)
    collector.collect()
    own = descriptors(os.getpid())

    for _ in range(100):
        collector.collect()

    assert descriptors(os.getpid()) == own
    collector.close()
    assert len(os.listdir("/proc/self/fd")) == before
