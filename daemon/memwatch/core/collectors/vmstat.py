"""OOM kills, work of tasks that wait for memory, and memory that cannot be reclaimed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ALLOCSTALL, OOM_KILL, Counter, Roots, kept_file
from memwatch.core.model import Absent
from memwatch.core.snapshot import Kernel

# By field of Kernel; several lines are added. `oom_kill` exists since Linux 4.13, compaction if it is compiled in,
# `allocstall` by zone since 4.10, `pgscan_direct` without zone since 4.8, and `workingset_refault_file` since 5.9.
LINES: Mapping[str, Sequence[bytes]] = {
    "oom_kills_total": (OOM_KILL,),
    "compact_fail_total": (b"compact_fail",),
    "compact_stall_total": (b"compact_stall",),
    "allocstall_total": ALLOCSTALL,
    "pgscan_direct_total": (b"pgscan_direct",),
    "pgsteal_direct_total": (b"pgsteal_direct",),
    "workingset_refault_file_total": (b"workingset_refault_file",),
    "pswpin_total": (b"pswpin",),
    "pswpout_total": (b"pswpout",),
}
# Fields in bytes; the file has pages.
PAGES: Mapping[str, Sequence[bytes]] = {"mlocked_bytes": (b"nr_mlock",), "unevictable_bytes": (b"nr_unevictable",)}


class Vmstat:
    """Parser that returns the same object as long as none of its lines changes."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._counters = {
            name: [Counter(key) for key in keys] for name, keys in chain(LINES.items(), PAGES.items())
        }
        self._all = list(chain.from_iterable(self._counters.values()))
        self._places = [counter.place() for counter in self._all]
        self._file_size = -1
        self._kernel = Kernel()

    def parse(self, data: bytes) -> Kernel:
        # A missing line is searched again when the file's size changes.
        if len(data) != self._file_size:
            self._search(data, range(len(self._all)))
        elif changed := [number for number, (line, at) in enumerate(self._places) if not data.startswith(line, at)]:
            self._search(data, changed)
        return self._kernel

    def _search(self, data: bytes, numbers: Iterable[int]) -> None:
        self._file_size = len(data)
        for number in numbers:
            self._all[number].search(data)
            self._places[number] = self._all[number].place()
        kernel = Kernel(**{name: self._read(name) for name in self._counters})
        self._kernel = self._kernel if kernel == self._kernel else kernel

    def _read(self, name: str) -> int | Absent:
        """Add the lines of one field that this machine has. A running kernel removes none."""
        counters = [counter for counter in self._counters[name] if counter.was_found]
        values = [counter.value for counter in counters if isinstance(counter.value, int)]
        unit = self._page_size if name in PAGES else 1
        return sum(values) * unit if values and len(values) == len(counters) else Absent.NOT_SUPPORTED


class Collector(BaseCollector):
    name = "vmstat"
    # The kernel sums per-CPU counters for this file, the most expensive one: 19 of the 26 µs for meminfo, pressure
    # and vmstat together. So it is not read on every fast tick.
    period_seconds: float = 1.0

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
