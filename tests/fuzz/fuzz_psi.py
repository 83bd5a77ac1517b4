"""/proc/pressure/memory: ratios are from 0 to 1, and totals are in the file."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_valid, numbers_of
from memwatch.core.collectors.psi import parse_pressure
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.memory_events import parse_waiting
from memwatch.core.model import Absent


def check(data: bytes) -> None:
    micros = {number / 1e6 for number in numbers_of(data)}
    waited = parse_waiting(data)
    assert waited is None or waited in micros
    with suppress(ParseError):
        psi = parse_pressure(data)
        are_valid(psi)
        for time in (psi.some, psi.full):
            if not isinstance(time, Absent):
                assert time.total_seconds in micros
                assert max(time.ratio_10s, time.ratio_60s, time.ratio_300s) <= 1
