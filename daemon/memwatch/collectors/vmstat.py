"""Counters since boot: OOM kills and compaction failures."""

from __future__ import annotations

from memwatch.collectors.base import BaseCollector
from memwatch.findings import Findings
from memwatch.linux.files import Roots, kept_file
from memwatch.model import Absent
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


class Vmstat:
    """`oom_kill` exists since Linux 4.13, `compact_fail` if compaction is compiled in."""

    def __init__(self) -> None:
        self._oom_kill, self._compact_fail = Counter(b"oom_kill"), Counter(b"compact_fail")

    def parse(self, data: bytes) -> Kernel:
        return Kernel(oom_kills_total=self._oom_kill.read(data), compact_fail_total=self._compact_fail.read(data))


class Collector(BaseCollector):
    name = "vmstat"
    # The kernel sums per-CPU counters for this file, the most expensive one: 19 of the 26 µs for meminfo, pressure
    # and vmstat together. So it is not read on every fast tick.
    period_seconds = 1.0
    may_block = False

    def __init__(self, roots: Roots) -> None:
        self._file = kept_file(roots.procfs / "vmstat")
        self._vmstat = Vmstat()

    def collect(self) -> Findings:
        return Findings(kernel=self._vmstat.parse(self._file.read()))

    def close(self) -> None:
        self._file.close()
