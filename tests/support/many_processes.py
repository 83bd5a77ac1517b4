"""A machine with more processes than are listed, read by the collector from files like those of the kernel."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from memwatch.core.collectors.processes import Collector
from memwatch.core.snapshot import Snapshot
from support.process_folders import add_process, folder_of, stat_line, statm_line
from support.sample_snapshots import calm_workstation


def many_processes(procfs: Path, number: int = 600) -> Snapshot:
    """Return a machine with this many processes, of which 50 are listed."""
    roots = folder_of(procfs)
    for pid in range(1000, 1000 + number):
        hostile = pid == 1007
        status = b"Name:\t%s\nUid:\t0\t0\t0\t0\n" % (b"<b>\xff\x1b[2J" if hostile else b"worker%d" % pid)
        files = {"status": status, "cgroup": b"0::/system.slice/job%d.service\n" % (pid % 7)}
        add_process(procfs, stat_line(pid, f"worker{pid}", rss=pid), statm=statm_line(pid), **files)
    add_process(
        procfs,
        stat_line(9, "python3", rss=1),
        statm=statm_line(1),
        status=b"Name:\tpython3\nUid:\t0\t0\t0\t0\n",
        cmdline=b"python3\0-u\0/srv/nightly.py\0--key=s3cret\0",
    )
    collector = Collector(roots, top=50)
    found = collector.collect()
    collector.close()
    return replace(
        calm_workstation(), processes=found.processes, process_scan=found.process_scan, unlisted=found.unlisted
    )
