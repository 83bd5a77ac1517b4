"""Traces: readings of a machine over time with the verdict that was due, as JSON lines.

The first line describes the machine and the verdict, every other line is a reading: `at` (seconds) and any of
`COLUMNS`, a line of the kernel log (`log`), or an error that a driver logged (`driver_error`: the driver and the
kind), each `times` times. A column is linear between its own readings, so a rebuilt trace needs only
the figures of the report; two readings at the same time are a step. Sizes may have a unit ("29GiB").
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, ValidationError, convert

FORMAT = 1
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB)")
COUNTERS = frozenset(
    {
        "psi_some_seconds",
        "psi_full_seconds",
        "evicted_seconds",
        "allocstall_total",
        "compact_stall_total",
        "compact_fail_total",
        "pgscan_direct_total",
        "pgsteal_direct_total",
        "workingset_refault_file_total",
        "pswpin_total",
        "pswpout_total",
        "oom_kills_total",
        "failed_allocations",
    }
)
GAUGES = frozenset(
    {
        "available_bytes",
        "used_bytes",
        "free_bytes",
        "swap_used_bytes",
        "mlocked_bytes",
        "arc_bytes",
        "device_bytes",
        "vram_used_bytes",
        "large_blocks_bytes",
        "cgroup_some_ratio",
    }
)
COLUMNS = COUNTERS | GAUGES
LevelName = Literal["low", "medium", "high", "critical"]


class TraceError(ValueError):
    """A trace that cannot be used: file, line, and what is wrong in it."""


class Due(Struct, frozen=True, forbid_unknown_fields=True):
    """At least this level was due at `by` seconds."""

    level: LevelName
    by: float


class Gpu(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine's GPU. `unified`: it allocates from System RAM. `vram_bytes` is its own memory, if it has any."""

    vendor: Literal["NVIDIA", "AMD"]
    name: str
    pci: str
    unified: bool
    vram_bytes: int | str = 0


class Repeat(Struct, frozen=True, forbid_unknown_fields=True):
    """The readings from `begin` on are repeated every `seconds` until the end; counters go on from their value."""

    begin: float
    seconds: float


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """First line of a trace.

    `given` and `assumed`: the figures of the source, and those that were added to rebuild it. `highest`: the
    highest level that is justified at any time of a healthy trace. `begins` and `ends`: start of a collapse, and
    the time at which the machine or a process was lost. `noise`: amplitude (bytes) and period (seconds) by column.
    """

    trace: int
    name: str
    half: Literal["healthy", "wedge"]
    source: str
    given: str
    assumed: str
    size_bytes: int | str
    seconds: float
    highest: LevelName = "critical"
    begins: float = 0.0
    ends: float | None = None
    due: tuple[Due, ...] = ()
    swap_bytes: int | str = 0
    huge_pages_bytes: int | str = 0
    cgroup: str = ""
    gpu: Gpu | None = None
    resident: int | str | None = None
    suspended: tuple[float, float] | None = None
    repeat: Repeat | None = None
    noise: Mapping[str, tuple[int | str, float]] = {}


class LogLine(NamedTuple):
    """A line of the kernel log at a time, `times` times; or an error, as driver and kind."""

    at: float
    text: str
    times: int
    is_error: bool = False


class Curve:
    """One column: linear between its points, constant before and after them."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._times = [at for at, _ in points]
        self._values = [value for _, value in points]

    def at(self, seconds: float) -> float:
        after = bisect_right(self._times, seconds)
        if not after:
            return self._values[0]
        if after == len(self._times):
            return self._values[-1]
        begin, end = self._times[after - 1], self._times[after]
        part = (seconds - begin) / (end - begin)
        return self._values[after - 1] + part * (self._values[after] - self._values[after - 1])


class Trace:
    """A parsed trace. Times are seconds from its start."""

    def __init__(self, header: Header, curves: Mapping[str, Curve], log: Sequence[LogLine]) -> None:
        self.header = header
        self.size = read_size(header.size_bytes)
        self._curves = curves
        self._log = log

    def __str__(self) -> str:
        return self.header.name

    def has(self, column: str) -> bool:
        return column in self._curves

    def value(self, column: str, at: float) -> float:
        """Return a column at a time, with repetition and noise; 0 for a column that the trace does not have."""
        curve = self._curves.get(column)
        if curve is None:
            return 0.0
        within, rounds = self._fold(at)
        value = curve.at(within)
        if rounds and column in COUNTERS:
            repeat = self.header.repeat
            assert repeat is not None
            value += rounds * (curve.at(repeat.begin + repeat.seconds) - curve.at(repeat.begin))
        return value + self._noise(column, at)

    def log_between(self, after: float, until: float) -> Iterator[LogLine]:
        """Yield the lines logged after one time and up to another."""
        before_round, last_round = self._fold(after)[1], self._fold(until)[1]
        for number in range(before_round, last_round + 1):
            shift = number * (self.header.repeat.seconds if self.header.repeat else 0.0)
            for line in self._log:
                is_repeated = self.header.repeat is not None and line.at >= self.header.repeat.begin
                if (is_repeated or number == 0) and after < line.at + shift <= until:
                    yield line._replace(at=line.at + shift)

    def _fold(self, at: float) -> tuple[float, int]:
        repeat = self.header.repeat
        if repeat is None or at < repeat.begin + repeat.seconds:
            return at, 0
        rounds, rest = divmod(at - repeat.begin, repeat.seconds)
        return repeat.begin + rest, int(rounds)

    def _noise(self, column: str, at: float) -> float:
        """Return a triangular wave: about as rough as meminfo on a busy machine, and the same in every run."""
        if column not in self.header.noise:
            return 0.0
        amplitude, period = self.header.noise[column]
        phase = at / period % 1.0
        return read_size(amplitude) * (4 * abs(phase - 0.5) - 1)


def read_size(value: int | str) -> int:
    """Return bytes. Raises ValueError for text without a known unit."""
    if isinstance(value, int):
        return value
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f'"{value}" is no size: write bytes, or a number with KiB, MiB, GiB or TiB')
    return int(float(found[1]) * UNITS[found[2]])


def load_trace(path: Path) -> Trace:
    """Read a trace. Raises TraceError with the line that contradicts itself or another one."""
    return parse_trace(path.read_text(), path.name)


def parse_trace(text: str, name: str) -> Trace:
    lines = text.splitlines()
    if not lines:
        raise TraceError(f"{name} is empty: line 1 must be the header")
    header = _read_header(lines[0], name)
    points: dict[str, list[tuple[float, float]]] = {}
    log: list[LogLine] = []
    before = 0.0
    for number, line in enumerate(lines[1:], 2):
        where = f"{name}, line {number}"
        reading = _read_line(line, where)
        at = reading.pop("at", None)
        if isinstance(at, bool) or not isinstance(at, int | float) or at < 0:
            raise TraceError(f'{where}: "at" must be seconds from the start, not {json.dumps(at)}')
        if at < before:
            raise TraceError(f"{where}: time goes back from {before:g} to {at:g} s")
        before = at
        times = int(reading.pop("times", 1))
        keys = [key for key in ("log", "driver_error") if key in reading]
        log += [LogLine(at, str(reading.pop(key)), times, key == "driver_error") for key in keys]
        for column, value in _read_columns(reading, where):
            points.setdefault(column, []).append((at, value))
        _check_sums(reading, points, read_size(header.size_bytes), where)
    if "available_bytes" not in points:
        raise TraceError(f"{name}: no line has available_bytes")
    return Trace(header, {column: Curve(found) for column, found in points.items()}, log)


def _read_header(line: str, name: str) -> Header:
    try:
        header = convert(json.loads(line), Header)
    except (ValueError, ValidationError) as error:
        raise TraceError(f"{name}, line 1: {error}") from None
    if header.trace != FORMAT:
        raise TraceError(f"{name}, line 1: format {header.trace} is unknown; this version reads {FORMAT}")
    if header.half == "wedge" and header.ends is None:
        raise TraceError(f"{name}, line 1: a wedge needs the time at which it ends")
    return header


def _read_line(line: str, where: str) -> dict[str, Any]:
    try:
        reading = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from None
    if not isinstance(reading, dict):
        raise TraceError(f"{where}: not an object")
    return reading


def _read_columns(reading: Mapping[str, Any], where: str) -> Iterator[tuple[str, float]]:
    for column, value in reading.items():
        if column not in COLUMNS:
            raise TraceError(f'{where}: "{column}" is no column; these are: {", ".join(sorted(COLUMNS))}')
        try:
            number = read_size(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError) as error:
            raise TraceError(f"{where}: {column}: {error}") from None
        if number < 0:
            raise TraceError(f"{where}: {column} is {number:g}, below 0")
        yield column, number


def _check_sums(
    reading: Mapping[str, Any], points: Mapping[str, list[tuple[float, float]]], size: int, where: str
) -> None:
    """Refuse contradictions: used + available is the size, no part is larger than it, and counters rise."""
    at_line = {column: points[column][-1][1] for column in reading}
    available, used = at_line.get("available_bytes"), at_line.get("used_bytes")
    if available is not None and used is not None and available + used != size:
        raise TraceError(f"{where}: used {used:.0f} + available {available:.0f} is not size {size}")
    for column in ("available_bytes", "free_bytes", "used_bytes"):
        if at_line.get(column, 0) > size:
            raise TraceError(f"{where}: {column} is {at_line[column]:.0f}, more than size {size}")
    for column in COUNTERS & reading.keys():
        if len(points[column]) > 1 and points[column][-1][1] < points[column][-2][1]:
            raise TraceError(f"{where}: {column} falls from {points[column][-2][1]:g} to {points[column][-1][1]:g}")
