"""Counters since boot: kills for want of memory, and failures to make room in one piece."""

from __future__ import annotations

from memwatch.collector import Findings, Roots, kept_file
from memwatch.model import Absent
from memwatch.snapshot import Kernel

MOST_DIGITS = 20


def parse_vmstat(data: bytes) -> Kernel:
    """`oom_kill` is there since Linux 4.13, `compact_fail` where compaction is compiled in."""
    return Kernel(
        oom_kills_total=_counter(data, b"\noom_kill "), compact_fail_total=_counter(data, b"\ncompact_fail ")
    )


def _counter(data: bytes, key: bytes) -> int | Absent:
    """The number after `key` to the end of its line; a search for two keys costs a tenth of splitting 180 lines."""
    start = data.find(key) + len(key)
    end = data.find(b"\n", start)
    digits = data[start:end]
    found = start >= len(key) and end > 0 and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if found else Absent.NOT_SUPPORTED


class Collector:
    name = "vmstat"
    # Summing the per-processor counters makes this the dearest file of all: 19 of the 26 µs that the kernel
    # takes for meminfo, pressure and vmstat together. So it is not read on every fast tick.
    period_seconds = 1.0
    may_block = False

    def __init__(self, roots: Roots) -> None:
        self._file = kept_file(roots.procfs / "vmstat")

    def collect(self) -> Findings:
        return Findings(kernel=parse_vmstat(self._file.read()))

    def close(self) -> None:
        self._file.close()
