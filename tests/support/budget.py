"""Budgets of the measured lane: the budget is printed beside what was measured, and three times as much fails.

A budget is what users are promised on an idle machine. The machine that runs the tests may be busy or slower, so a
measurement somewhat above it is a line to read, and one far above it a fault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from support.paths import ROOT

FACTOR = 3.0
RESULTS = ROOT / "out" / "ci" / "measures.jsonl"
TEST = "PYTEST_CURRENT_TEST"  # set by pytest


class Measure(msgspec.Struct, frozen=True):
    """One measurement, in `unit`, and the greatest value that is promised."""

    test: str
    name: str
    value: float
    budget: float
    unit: str

    @property
    def is_above(self) -> bool:
        return self.value > self.budget

    @property
    def is_far_above(self) -> bool:
        return self.value > FACTOR * self.budget

    def __str__(self) -> str:
        mark = "ABOVE" if self.is_above else "ok"
        return f"{mark:5} {_short(self.value)} of {_short(self.budget)} {self.unit}: {self.name}"


def record(name: str, value: float, budget: float, unit: str) -> Measure:
    """Add a measurement to those that are printed at the end."""
    test = os.environ.get(TEST, "").rpartition(" ")[0]
    measure = Measure(test, name, value, budget, unit)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("ab") as file:
        file.write(msgspec.json.encode(measure) + b"\n")
    return measure


def within(name: str, value: float, budget: float, unit: str) -> None:
    """Record a measurement. Fail if it is above three times the budget."""
    measure = record(name, value, budget, unit)
    assert not measure.is_far_above, f"more than {FACTOR:g} times the budget: {measure}"


def read_measures(path: Path = RESULTS) -> Iterator[Measure]:
    if path.exists():
        for line in path.read_bytes().splitlines():
            yield msgspec.convert(json.loads(line), Measure)


def summarize(measures: Iterable[Measure]) -> list[str]:
    """Return a line for each measurement, those above their budget last."""
    found = sorted(measures, key=lambda one: (one.is_above, one.test))
    above = sum(one.is_above for one in found)
    return [*map(str, found), f"{len(found)} measurements, {above} above their budget"] if found else []


def _short(value: float) -> str:
    return f"{value:.4g}"
