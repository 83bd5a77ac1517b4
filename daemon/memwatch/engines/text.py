"""Parse what engines print: samples of a Prometheus text, and JSON of a known form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from memwatch.engines.records import MAX_BYTES, MAX_COUNT
from memwatch.model import Absent, Bytes, Words
from memwatch.printable import printable

# Ranks of one server that report the same metric: some hundreds at most.
MAX_SAMPLES = 512
MAX_NAME_CHARACTERS = 200
T = TypeVar("T")


class Exposition:
    """A Prometheus text of which only some names are wanted.

    vLLM prints 60 kB, mostly buckets of histograms. `bytes.find` takes 3 µs a name; a parser of all lines 15 ms.
    """

    def __init__(self, data: bytes | None) -> None:
        self._data = b"\n" + (data or b"")

    def samples(self, name: str) -> Iterator[tuple[bytes, float]]:
        """Yield labels and value of each sample. Values that are no finite number of at least 0 are left out."""
        start, end = b"\n" + name.encode(), 0
        for _ in range(MAX_SAMPLES):
            at = self._data.find(start, end)
            if at < 0:
                return
            end = at + len(start)
            line = self._data[end : self._line_end(end)]
            value = parse_value(line)
            if value is not None:
                yield line.rpartition(b"}")[0], value

    def total(self, *names: str) -> float | None:
        """Return the sum of the first name that has samples, None if none has."""
        for name in names:
            values = [value for _, value in self.samples(name)]
            if values:
                return sum(values)
        return None

    def mean(self, *names: str) -> float | None:
        for name in names:
            values = [value for _, value in self.samples(name)]
            if values:
                return sum(values) / len(values)
        return None

    def per_rank(self, name: str, rank: str) -> float | None:
        """Return the sum over the values of one label. Ranks that share it report the same figure."""
        largest: dict[str, float] = {}
        for labels, value in self.samples(name):
            key = label(labels, rank) or ""
            largest[key] = max(value, largest.get(key, 0.0))
        return sum(largest.values()) if largest else None

    def value(self, name: str, **wanted: str) -> float | None:
        """Return the first sample with these labels."""
        for labels, value in self.samples(name):
            if all(label(labels, key) == text for key, text in wanted.items()):
                return value
        return None

    def labels(self, name: str) -> list[bytes]:
        return [labels for labels, _ in self.samples(name)]

    def _line_end(self, start: int) -> int:
        end = self._data.find(b"\n", start)
        return len(self._data) if end < 0 else end


def parse_value(line: bytes) -> float | None:
    """Parse the rest of a line after the metric's name. None for another name that begins the same."""
    if line[:1] not in (b"{", b" "):
        return None
    columns = line.rpartition(b"}")[2].split()
    try:
        value = float(columns[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def label(labels: bytes, name: str) -> str | None:
    """Return the value of a label, None without it."""
    found = re.search(rb"[{,]\s*" + name.encode() + rb'="((?:[^"\\]|\\.)*)"', labels)
    return found[1].decode("utf-8", "replace") if found else None


def parse_json(data: bytes | None, kind: type[T]) -> T | None:
    """Decode an answer; unknown fields are skipped. None if there is none or if it has another form."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def name_of(value: str | None) -> Words:
    return printable(value[:MAX_NAME_CHARACTERS]) if value else Absent.NOT_AVAILABLE


def count_of(value: float | None) -> int | Absent:
    """Return a count that an engine reports. A negative or absurd one is inconsistent."""
    if value is None:
        return Absent.NOT_AVAILABLE
    return int(value) if math.isfinite(value) and 0 <= value <= MAX_COUNT else Absent.INCONSISTENT


def bytes_of(value: float | None) -> Bytes:
    if value is None:
        return Absent.NOT_AVAILABLE
    return int(value) if math.isfinite(value) and 0 <= value <= MAX_BYTES else Absent.INCONSISTENT


def ratio_of(value: float | None) -> float | Absent:
    """Return a fraction from 0 to 1."""
    if value is None:
        return Absent.NOT_AVAILABLE
    return value if 0 <= value <= 1 else Absent.INCONSISTENT


def number_in(text: str | None) -> int | None:
    """Return a positive integer of at most 12 digits, None for anything else such as "None"."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 12 else None
