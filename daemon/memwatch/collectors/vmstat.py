"""OOM kills, work of tasks that wait for memory, and memory that cannot be reclaimed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from memwatch.collectors.base import BaseCollector, Host
from memwatch.findings import Findings
from memwatch.linux.files import Roots, kept_file
from memwatch.model import Absent, Bytes
from memwatch.snapshot import Kernel

MAX_DIGITS = 20


class Counter:
    """One line of vmstat, searched first at its last position: the file has about 180 lines."""

    def __init__(self, key: bytes) -> None:
        self._key = b"\n" + key + b" "
        self._at = 0

    def read(self, data: bytes) -> int | Absent:
        """Parse the number after the key up to the end of the line."""
        key = self._key
        if not data.startswith(key, self._at):
            self._at = max(0, data.find(key))
        start = self._at + len(key)
        end = data.find(b"\n", start)
        digits = data[start:end]
        found = data.startswith(key, self._at) and end > 0 and digits.isdigit() and len(digits) <= MAX_DIGITS
        return int(digits) if found else Absent.NOT_SUPPORTED


class Sum:
    """Sum of the lines of vmstat that a machine has, of those that differ by zone."""

    def __init__(self, *keys: bytes) -> None:
        self._counters = [Counter(key) for key in keys]
        self._known: list[Counter] | None = None

    def read(self, data: bytes) -> int | Absent:
        """Add the lines found in the first file: a running kernel adds and removes none."""
        if self._known is None:
            self._known = [counter for counter in self._counters if isinstance(counter.read(data), int)]
        found = [counter.read(data) for counter in self._known]
        values = [value for value in found if isinstance(value, int)]
        return sum(values) if values and len(values) == len(found) else Absent.NOT_SUPPORTED


# By field of Kernel. `oom_kill` exists since Linux 4.13, compaction if it is compiled in, `allocstall` by zone
# since 4.10, `pgscan_direct` without zone since 4.8, and `workingset_refault_file` since 5.9.
LINES: Mapping[str, Counter | Sum] = {
    "oom_kills_total": Counter(b"oom_kill"),
    "compact_fail_total": Counter(b"compact_fail"),
    "compact_stall_total": Counter(b"compact_stall"),
    "allocstall_total": Sum(
        *(b"allocstall_" + zone for zone in (b"dma", b"dma32", b"normal", b"highmem", b"movable", b"device"))
    ),
    "pgscan_direct_total": Counter(b"pgscan_direct"),
    "pgsteal_direct_total": Counter(b"pgsteal_direct"),
    "workingset_refault_file_total": Counter(b"workingset_refault_file"),
    "pswpin_total": Counter(b"pswpin"),
    "pswpout_total": Counter(b"pswpout"),
}


# Fields in bytes; the file has pages.
PAGES: Mapping[str, Counter] = {
    "mlocked_bytes": Counter(b"nr_mlock"),
    "unevictable_bytes": Counter(b"nr_unevictable"),
}


class Vmstat:
    """Parser that keeps the positions of its lines."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._lines, self._pages = deepcopy(LINES), deepcopy(PAGES)

    def parse(self, data: bytes) -> Kernel:
        return Kernel(
            **{name: line.read(data) for name, line in self._lines.items()},
            **{name: self._bytes(line.read(data)) for name, line in self._pages.items()},
        )

    def _bytes(self, pages: int | Absent) -> Bytes:
        return pages if isinstance(pages, Absent) else pages * self._page_size


class Collector(BaseCollector):
    name = "vmstat"
    # The kernel sums per-CPU counters for this file, the most expensive one: 19 of the 26 µs for meminfo, pressure
    # and vmstat together. So it is not read on every fast tick.
    period_seconds = 1.0
    may_block = False

    def __init__(self, roots: Roots, page_size: int) -> None:
        self._file = kept_file(roots.procfs / "vmstat")
        self._vmstat = Vmstat(page_size)

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.page_size)

    def collect(self) -> Findings:
        return Findings(kernel=self._vmstat.parse(self._file.read()))

    def close(self) -> None:
        self._file.close()
