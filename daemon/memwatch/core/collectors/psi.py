"""Pressure stall information (PSI): fraction of time in which tasks stalled on memory."""

from __future__ import annotations

import re

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots, kept_file
from memwatch.core.model import Absent
from memwatch.core.snapshot import MemoryPsi, PsiLine

_RATIO = rb"(100\.00|\d{1,2}\.\d\d)"
_NUMBERS = b" avg10=" + _RATIO + b" avg60=" + _RATIO + b" avg300=" + _RATIO + rb" total=(\d{1,19})\n"
_PRESSURE = re.compile(b"some" + _NUMBERS + b"(?:full" + _NUMBERS + b")?")


def parse_pressure(data: bytes) -> MemoryPsi:
    found = _PRESSURE.fullmatch(data)
    if found is None:
        raise ParseError(f"pressure/memory: {data[:120]!r} is not a line `some avg10=…` and a line `full avg10=…`")
    some, full = found.group(1, 2, 3, 4), found.group(5, 6, 7, 8)
    return MemoryPsi(_line(*some), Absent.NOT_SUPPORTED if full[0] is None else _line(*full))


def _line(ten: bytes, sixty: bytes, three_hundred: bytes, total: bytes) -> PsiLine:
    """The kernel prints ratios in percent and the total in microseconds."""
    return PsiLine(float(ten) / 100, float(sixty) / 100, float(three_hundred) / 100, int(total) / 1e6)


class Collector(BaseCollector):
    name = "psi"

    def __init__(self, roots: Roots) -> None:
        # A kernel booted with psi=0 has the file, but reading it fails (EOPNOTSUPP).
        self._file = kept_file(roots.procfs / "pressure/memory", 256)
        self._read = b""
        self._findings = Findings()

    def collect(self) -> Findings:
        data = self._file.read()
        if data != self._read:
            self._findings = Findings(psi=parse_pressure(data))
            self._read = data
        return self._findings

    def close(self) -> None:
        self._file.close()
