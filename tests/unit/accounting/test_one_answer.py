"""Test that all surfaces report the same figures, on generated machines and on those without an NVIDIA driver."""

from __future__ import annotations

import pytest

from memwatch.core.model import Absent
from support.one_answer import Cell, Comparison, Shown, complaints, is_same, read_table
from support.one_answer_runs import committed, compare, generated

GIB = 1 << 30
MACHINES = (
    "headless-server",
    "lunar-lake",
    "mi300a-x4",
    "n100",
    "phoenix",
    "rk3588-panthor",
    "steam-deck",
    "strix-halo",
    "strix-halo-96g",
)
# In the last two what is free now is not known, and what is free after reclaim is.
SEEDS = (*range(40), 44, 59)
MIN_FIGURES = {"committed": 1_400, "generated": 8_000}


@pytest.mark.parametrize("kind", MIN_FIGURES)
def test_surfaces_show_the_same_figures(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the NVIDIA driver are read in another process: tests/integration has those machines."""
    monkeypatch.setattr("support.machine_exports.nvml_responses", dict)
    found = compare(committed(MACHINES) if kind == "committed" else generated(SEEDS))

    assert list(complaints(found, read_table(), every=False)) == []
    assert found.compared.total() >= MIN_FIGURES[kind]


@pytest.mark.parametrize(
    ("known", "shown", "is_equal"),
    [
        (5 * GIB, 5 * GIB, True),
        (5 * GIB, 5 * GIB + 1, False),
        (5 * GIB, "5.0 GiB", True),
        (5 * GIB, "5.1 GiB", False),
        (5 * GIB, Shown(5 * GIB, "5.0 GiB"), True),
        (5 * GIB, Shown(5 * GIB + 1, "5.0 GiB"), False),
        (5 * GIB, 5.0, True),
        (5 * GIB, 5.01, False),
        (0, None, False),
        (0, Absent.STALE, False),
        (Absent.STALE, 0, False),
        (Absent.STALE, Absent.NOT_SUPPORTED, False),
        (Absent.STALE, "stale", True),
        (True, 1, False),
    ],
)
def test_figure_is_the_same_in_bytes_or_in_the_text_of_the_formatter(
    known: object, shown: object, is_equal: bool
) -> None:
    assert is_same(known, shown) is is_equal


def test_figure_that_is_neither_shown_nor_listed_is_a_complaint() -> None:
    found = Comparison()
    found.add("box", "page", {Cell("ram", "size"): GIB, Cell("ram", "used"): Absent.STALE}, {})
    (text,) = complaints(found, {}, every=True)

    assert text == "page does not show pool size of 1 objects: show it, or add why to not_shown.toml"
    assert list(complaints(found, {"page": {"pool": "why"}}, every=True)) == []


def test_entry_that_is_not_needed_is_a_complaint_if_all_machines_were_compared() -> None:
    found = Comparison()
    found.add("box", "page", {Cell("ram", "size"): GIB}, {Cell("ram", "size"): GIB})
    table = {"page": {"pool size": "why"}}

    assert list(complaints(found, table, every=False)) == []
    assert list(complaints(found, table, every=True)) == [
        "not_shown.toml: page shows pool size of every object: remove the entry"
    ]
