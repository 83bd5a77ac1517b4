"""Test that all surfaces report the same figures on every committed machine, with the answers of its drivers."""

from __future__ import annotations

from scripts.golden import RUN_HERE
from support.one_answer import complaints, read_table
from support.one_answer_runs import committed, compare

MIN_FIGURES = 11_000


def test_surfaces_show_the_same_figures_of_every_committed_machine() -> None:
    found = compare(committed(RUN_HERE))

    assert list(complaints(found, read_table(), every=True)) == []
    assert found.compared.total() >= MIN_FIGURES
