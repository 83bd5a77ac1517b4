"""Test that packed rows are restored as they were, and that constant series cost next to nothing."""

from __future__ import annotations

import sys
from array import array
from math import isnan, nan

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwatch.reporting.history.tier import (
    BLOCK_ROWS,
    PLACES,
    Aggregate,
    Aggregates,
    Column,
    Row,
    RowBlock,
    Tier,
    TierSpec,
    pack,
    unpack,
)
from support.sample_history import jumping, memory_mb, noise, still

NAMES = ("a", "b", "c")
FIGURES = st.floats(width=32, allow_nan=False, allow_infinity=False)
SPANS = st.sampled_from((0, 2))
# Runs of rows: values counting up from a start, each read once or spread over a span, or a gap.
RUNS = st.lists(
    st.tuples(st.integers(1, 400), st.sets(st.sampled_from(NAMES)), st.integers(0, 1 << 20), SPANS), max_size=8
)


@settings(deadline=None, max_examples=30)
@example(runs=[(400, {"a"}, 0, 0)], rows=900, begun=0, queried_every=500)
@given(runs=RUNS, rows=st.integers(1, 900), begun=st.integers(0, 500), queried_every=st.integers(1, 500))
def test_tier_holds_the_rows_that_fit_and_no_other(
    runs: list[tuple[int, set[str], int, int]], rows: int, begun: int, queried_every: int
) -> None:
    """Compared with a plain list: gaps, series that come and go, any position in a lap or block, and queries."""
    tier = Tier(TierSpec(1.0, float(rows)), len(NAMES), begun)
    everything: list[dict[str, tuple[float, float]]] = []
    for count, names, start, span in runs:
        for value in range(start, start + count):
            row: Row = {
                name: Aggregate(value, value + span / 2, value + span) if span else float(value) for name in names
            }
            tier.add(float(begun + len(everything)), row)
            everything.append(dict.fromkeys(names, (value, value + span)))
            if len(everything) % queried_every == 0:
                assert list(tier.series_slice(NAMES[0], tier.added - 1, tier.added).times) == [tier.end]

    kept = everything[-rows:]
    first = begun + len(everything) - len(kept)
    middle = first + len(kept) // 3
    assert (tier.first, len(tier)) == (first, len(kept))
    for name in NAMES:
        for start, end in (
            (first, tier.added),
            (middle, tier.added),
            (first, middle),
            (middle, min(middle + 1, tier.added)),
        ):
            found = tier.series_slice(name, start, end)
            wanted = [row.get(name) for row in everything[start - begun : end - begun]]
            pairs = list(zip(found.minimum, found.mean, found.maximum, strict=True))
            assert [None if isnan(low) else (low, high) for low, _, high in pairs] == wanted
            assert list(found.times) == [float(number) for number in range(start, end)]
            assert all(isnan(low) or abs(mean - (low + high) / 2) <= 1e-3 for low, mean, high in pairs)


@given(st.lists(st.tuples(FIGURES, FIGURES, st.integers(0, PLACES)), max_size=BLOCK_ROWS))
def test_block_is_restored_bit_by_bit(rows: list[tuple[float, float, int]]) -> None:
    gaps = BLOCK_ROWS - len(rows)
    block = Aggregates(
        array("f", [least for least, _, _ in rows] + [nan] * gaps),
        array("f", [most for _, most, _ in rows] + [nan] * gaps),
        array("H", [place for _, _, place in rows] + [0] * gaps),
    )

    kept = pack(block)

    again = unpack(kept)
    assert [again.minimum.tobytes(), again.maximum.tobytes()] == [block.minimum.tobytes(), block.maximum.tobytes()]
    means = [
        [low + (high - low) * place / PLACES for low, high, place in zip(*one, strict=True)]
        for one in (again, block)
    ]
    assert repr(means[0]) == repr(means[1])
    assert len(kept) <= BLOCK_ROWS * (4 + 4 + 2) + 20


@pytest.mark.parametrize("begun", [0, 100, BLOCK_ROWS, 1000])
def test_stored_strips_are_loaded_unchanged(begun: int) -> None:
    """A strip may end inside a block, and the next may have other series."""
    source = Tier(TierSpec(1.0, 2000.0), 10, begun)
    for number in range(1500):
        names = ("a", "b") if number < 700 else ("b", "c")
        source.add(float(number), {name: Aggregate(number, number + 0.5, number + 1) for name in names})
    other = Tier(TierSpec(1.0, 2000.0), 10, begun)
    for start in range(begun, begun + 1500, 333):
        other.load(source.row_block(start, min(begun + 1500, start + 333)))

    assert other.added == source.added
    for name in ("a", "b", "c"):
        one, again = (tier.series_slice(name, begun, begun + 1500) for tier in (source, other))
        assert [repr(value) for value in one.minimum] == [repr(value) for value in again.minimum]
        assert list(one.times) == list(again.times)


def test_strip_with_too_many_series_keeps_the_last() -> None:
    """The first series are replaced by the last; nothing raises."""
    aggregates = still(5)
    tier = Tier(TierSpec(1.0, 60.0), 3)

    tier.load(RowBlock(array("d", range(5)), {f"s{number}": aggregates for number in range(5)}))

    assert len(tier.columns) == 3
    assert len(tier) == 5


def test_memory_of_full_tiers_is_bounded() -> None:
    """A hundred series: next to nothing if values are constant, and bounded if they are noise."""
    assert memory_mb(still) <= 2
    assert memory_mb(jumping) <= 17
    assert memory_mb(noise) <= 24


def test_column_does_not_grow_lap_after_lap() -> None:
    column = Column(BLOCK_ROWS * 3, 0)
    sizes = []
    for number in range(BLOCK_ROWS * 12):
        if number and number % BLOCK_ROWS == 0:
            column.turn(number // BLOCK_ROWS)
            sizes.append(sum(map(sys.getsizeof, column._packed)))
        column.put(number, Aggregate(5e9, 5e9, 5e9))

    assert len(set(sizes[3:])) == 1, sizes


@pytest.mark.parametrize("queried_at", [None, 0, 3, 7])
def test_gathered_rows_do_not_depend_on_their_place(queried_at: int | None) -> None:
    """A row of a coarser tier is built from rows that still wait for their columns, or already lie in them."""
    tier = Tier(TierSpec(1.0, 60.0), len(NAMES))
    rows: list[Row] = [{"a": 5.0 * at % 7, "b": 0.5} for at in range(10)]
    for at, row in enumerate(rows):
        if at == queried_at:
            tier.series_slice("a", 0, at)
        tier.add(float(at), row)

    found = [tier.combined(first, 9) for first in (0, 2, 5)]
    tier.series_slice("a", 0, 10)
    settled = [tier.combined(first, 9) for first in (0, 2, 5)]

    assert found == settled
    assert found[2] == {"a": Aggregate(0.0, 2.75, 5.0), "b": Aggregate(0.5, 0.5, 0.5)}
    assert tier.combined(4, 4) == {}
