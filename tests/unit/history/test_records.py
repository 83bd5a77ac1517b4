"""Records of events and of rows: they are read as they were written, and waste no block."""

from __future__ import annotations

import json
import math
import random
import zlib
from array import array
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.events import Event
from memwatch.core.helper.codec import DecodeError, to_line
from memwatch.core.snapshot_json import LAST_UNIX
from memwatch.reporting.history.tier import Aggregates, RowBlock
from memwatch_monitor.history.records import (
    LENGTHS,
    MAX_ROWS,
    MAX_SEQ,
    EventBatch,
    pack_entry,
    pack_events,
    pack_full_blocks,
    pack_holders,
    pack_rows,
    unpack_entry,
    unpack_events,
    unpack_rows,
    unpack_titles,
)
from memwatch_monitor.history.ring_file import BLOCK, HEAD_BYTES, blocks_for

FIRST = 1_000_000


def events_of(length: int, count: int = 300) -> list[Event]:
    text = "x" * length
    return [Event(FIRST + number, 1_700_000_000.123 + number, "level", text, "ram") for number in range(count)]


@pytest.mark.parametrize("length", [0, 1, 20, 40, 100, 300, 700, 1000])
def test_record_of_events_fits_in_a_block_and_fills_it(length: int) -> None:
    """The shorter the texts, the more of the record is around them."""
    events = events_of(length)

    packed = pack_events(events)

    sizes = [len(payload) for payload in packed]
    assert max(sizes) <= BLOCK - HEAD_BYTES
    assert all(one + other > BLOCK // 2 for one, other in pairwise(sizes[:-1]))
    assert [event for payload in packed for event in unpack_events(payload)] == events


def test_event_larger_than_a_record_is_alone_in_its_own() -> None:
    events = events_of(5000, 3)

    assert [unpack_events(one)[-1].seq for one in pack_events(events)] == [FIRST, FIRST + 1, FIRST + 2]


@pytest.mark.parametrize(
    ("seq", "unix", "is_valid"),
    [
        (1, 0.0, True),
        (0, 0.0, False),
        (1, -0.001, False),
        (MAX_SEQ - 1, LAST_UNIX - 1, True),
        (MAX_SEQ, 0.0, False),
        (1, LAST_UNIX, False),
    ],
)
def test_event_with_an_impossible_number_or_time_is_rejected(seq: int, unix: float, is_valid: bool) -> None:
    payload = to_line(EventBatch((Event(seq, unix, "level", "text"),)))

    if is_valid:
        assert [event.seq for event in unpack_events(payload)] == [seq]
    else:
        with pytest.raises(DecodeError, match="impossible"):
            unpack_events(payload)


def first_format(row_block: RowBlock) -> bytes:
    """Encode rows as version 0.1.0 of November did."""
    head = json.dumps({"rows": len(row_block.times), "names": list(row_block.columns)}).encode()
    columns = b"".join(ring.tobytes() for aggregates in row_block.columns.values() for ring in aggregates)
    return zlib.compress(LENGTHS.pack(len(head), len(columns)) + head + row_block.times.tobytes() + columns)


def second_format(row_block: RowBlock) -> bytes:
    """Encode rows as the version of 30 November did: names as they are, maxima as bits that differ from minima."""
    head = json.dumps(
        {"count": len(row_block.times), "nanoseconds": False, "names": list(row_block.columns)}
    ).encode()
    minima, maxima = ([array("I", one[bound].tobytes()) for one in row_block.columns.values()] for bound in (0, 1))
    times = array("Q", row_block.times.tobytes())
    planes = (
        ("Q", [(one - before) % (1 << 64) for one, before in zip(times, [0, *times], strict=False)]),
        ("I", [one[0] for one in minima if one]),
        ("I", [(there - here + 0x80808080) % (1 << 32) for one in minima for here, there in pairwise(one)]),
        ("I", [low ^ high for pair in zip(minima, maxima, strict=True) for low, high in zip(*pair, strict=True)]),
        ("H", [place for one in row_block.columns.values() for place in one.places]),
    )
    raws = [(array(code, numbers).tobytes(), array(code).itemsize) for code, numbers in planes]
    apart = b"".join(data[significance::width] for data, width in raws for significance in range(width))
    return zlib.compress(LENGTHS.pack(len(head), len(minima)) + head + b"\1" * len(minima) + apart)


def raw(row_block: RowBlock) -> tuple[bytes, dict[str, list[bytes]]]:
    """Return all bits of the rows: NaN is not equal to itself."""
    columns = {name: [ring.tobytes() for ring in one] for name, one in row_block.columns.items()}
    return row_block.times.tobytes(), columns


def block_of(times: list[float], bits: list[tuple[list[int], list[int], list[int]]]) -> RowBlock:
    columns = {
        f"pool.ram.{at}": Aggregates(
            array("f", array("I", low).tobytes()), array("f", array("I", high).tobytes()), array("H", places)
        )
        for at, (low, high, places) in enumerate(bits)
    }
    return RowBlock(array("d", times), columns)


def walk(rows: int, series: int, step: float, seed: int = 1) -> RowBlock:
    """Return single readings that change each second by about `step`, with a pause in half of the series."""
    chance = random.Random(seed)
    columns = {}
    for number in range(series):
        value, readings = 3e10 + number * 1e9, array("f")
        for _ in range(rows):
            value += chance.gauss(0, step)
            readings.append(value)
        if number % 2 and rows > 2:
            readings[rows // 2] = math.nan
        columns[f"pool.gpu{number}.used_bytes"] = Aggregates(readings, readings[:], array("H", bytes(2 * rows)))
    return RowBlock(array("d", [500.0 + at + chance.random() for at in range(rows)]), columns)


@st.composite
def row_blocks(draw: st.DrawFn) -> RowBlock:
    rows = draw(st.integers(0, 12))
    times = draw(st.lists(st.floats(-1e11, 1e11), min_size=rows, max_size=rows))
    word = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 0x7FC00000, 0x80000000, 0x50000000]))
    words = st.lists(word, min_size=rows, max_size=rows)
    places = st.lists(st.integers(0, 65535), min_size=rows, max_size=rows)
    still = st.builds(lambda one: ([one] * rows, [one] * rows, [0] * rows), word)
    single = st.builds(lambda some: (some, some, [0] * rows), words)
    columns = draw(st.lists(st.one_of(still, single, st.tuples(words, words, places)), max_size=5))
    return block_of(sorted(times), columns)


@given(row_blocks())
def test_rows_are_read_as_they_were_written_to_the_last_bit(row_block: RowBlock) -> None:
    """Any bits: gaps, both zeros, infinity, times of an earlier boot. Earlier formats have all bits of means."""
    found, _ = unpack_rows(pack_rows(row_block))

    assert [ring[:2] for ring in raw(found)[1].values()] == [ring[:2] for ring in raw(row_block)[1].values()]
    assert list(found.columns) == list(row_block.columns)
    assert found.times == row_block.times
    assert raw(unpack_rows(first_format(row_block))[0]) == raw(row_block)
    assert raw(unpack_rows(second_format(row_block))[0]) == raw(row_block)


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 65535)), min_size=1, max_size=12))
def test_mean_is_within_a_step_of_float32_of_the_one_written(rows: list[tuple[int, int]]) -> None:
    """Its bounds are not more exact. Where they are far apart, it keeps all its bits."""
    lowest = array("I", array("f", [3e10]).tobytes())[0]
    row_block = block_of(
        [float(at) for at in range(len(rows))],
        [([lowest] * len(rows), [lowest + steps for steps, _ in rows], [place for _, place in rows])],
    )

    found, _ = unpack_rows(pack_rows(row_block))

    for (steps, place), one in zip(rows, found.columns["pool.ram.0"].places, strict=True):
        assert abs(one - place) * steps <= (65536 if steps < 65535 else 0)
        assert pack_rows(found) == pack_rows(row_block)


def test_titles_of_holders_are_read_also_as_earlier_versions_wrote_them() -> None:
    names = ["process.7-1.footprint_bytes", "process.7-1.device_bytes", "unit.a.b.footprint_bytes"]
    rows = RowBlock(array("d"), {name: Aggregates(array("f"), array("f"), array("H")) for name in names})
    titles = {"unit.a.b": "a.b"}

    read, rest, _ = unpack_entry(pack_holders(rows, titles))

    assert unpack_titles(read, rest) == titles
    assert unpack_titles(read, b'{"titles":{"unit.a.b":"a.b"}}\n') == titles
    assert unpack_titles(read, b"[]") == {}


@given(st.lists(st.text(st.sampled_from("ab.-/0123789\u0664\n"), max_size=12), unique=True, max_size=6))
def test_any_name_is_read_as_it_was_written(names: list[str]) -> None:
    """Numbers are differences to those of the name before: also with leading zeros, or 30 digits."""
    some = [*names, *(f"pool.gpu{number}.0{number}.{'9' * 30}" for number in (0, 7, 10))]
    row_block = RowBlock(array("d"), {name: Aggregates(array("f"), array("f"), array("H")) for name in some})

    assert list(unpack_rows(pack_rows(row_block))[0].columns) == some


@pytest.mark.parametrize("step", [0.0, 1.0, 1e6, 1e12])
@pytest.mark.parametrize(("rows", "series"), [(1, 1), (60, 100), (3600, 3)])
def test_rows_of_moving_series_are_read_as_they_were_written(rows: int, series: int, step: float) -> None:
    row_block = walk(rows, series, step)

    packed = pack_rows(row_block)

    assert raw(unpack_rows(packed)[0]) == raw(row_block)
    assert rows == 1 or len(packed) < len(first_format(row_block))


def test_series_whose_least_reading_stands_still_is_read_as_it_was_written() -> None:
    """A row of a tier has the least and the largest reading of its time: memory that is idle between two peaks."""
    idle, peak, higher = (array("I", array("f", [value]).tobytes())[0] for value in (3e10, 5e10, 6e10))
    row_block = block_of([10.0, 20.0, 30.0], [([idle] * 3, [idle, peak, higher], [0, 7, 9])])

    assert raw(unpack_rows(pack_rows(row_block))[0]) == raw(row_block)


def test_times_of_the_clock_take_less_than_three_bytes() -> None:
    """Ticks one second apart and up to 1 ms late, in whole nanoseconds, with no series. Other times take more."""
    chance, at, times = random.Random(1), 86_400_123_456_789, []
    for _ in range(600):
        at += 1_000_000_000
        times.append((at + chance.randrange(1_000_000)) / 1e9)

    whole, other = (len(pack_rows(RowBlock(array("d", one), {}))) for one in (times, [at + 1e-10 for at in times]))

    assert whole < 3 * len(times) < other


def test_version_that_knows_only_earlier_formats_rejects_rows() -> None:
    """It reads names from an object. From a list it takes none, and reports the record as unreadable."""
    plain = zlib.decompress(pack_rows(walk(10, 3, 1e6)))
    head_bytes, _ = LENGTHS.unpack_from(plain)

    assert isinstance(json.loads(plain[LENGTHS.size : LENGTHS.size + head_bytes]), list)


def test_cut_or_changed_rows_are_rejected_or_read_within_their_limits() -> None:
    chance = random.Random(7)
    plain = zlib.decompress(pack_rows(walk(20, 6, 1e6)))
    for end in range(0, len(plain), 7):
        with pytest.raises(DecodeError):
            unpack_rows(zlib.compress(plain[:end], 1))
    for _ in range(500):
        changed = bytearray(plain)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        with suppress(DecodeError):
            found, _ = unpack_rows(zlib.compress(changed, 1))
            assert all(len(ring) == len(found.times) for one in found.columns.values() for ring in one)


def test_few_bytes_do_not_unpack_to_more_cells_than_a_record_may_have() -> None:
    """Series that stand still take one byte and a reading, whatever the number of rows."""
    head = json.dumps([MAX_ROWS, [], ["0"] * 5000, [1] * 5000]).encode()

    with pytest.raises(DecodeError, match="4096 rows of 5000 series"):
        unpack_rows(zlib.compress(LENGTHS.pack(len(head), 0) + head + bytes(1 << 20)))


@pytest.mark.parametrize("series", [1, 30, 60, 100, 300])
@pytest.mark.parametrize("tick", [b"", b"x" * 900])
def test_rows_that_are_written_fill_their_blocks(series: int, tick: bytes) -> None:
    """Some of the newest rows are left if a block would be nearly empty. A row then takes fewer blocks."""
    row_block = walk(60, series, 1e6)

    entry, count = pack_full_blocks(row_block, tick)

    rows, kept_tick, _ = unpack_entry(entry)
    blocks, all_blocks = blocks_for(len(entry)), blocks_for(len(pack_entry(row_block, tick)))
    assert rows.times == row_block.times[:count]
    assert kept_tick == tick
    assert blocks / count <= all_blocks / 60
    assert count == 60 or len(entry) + HEAD_BYTES > (blocks - 0.1) * BLOCK


def test_rows_of_holders_in_other_rows_are_ignored_by_versions_that_do_not_know_them() -> None:
    """These read compressed data up to its end. The bytes count when blocks are filled."""
    row_block, holders = walk(60, 40, 1e6), random.Random(1).randbytes(700)

    entry, count = pack_full_blocks(row_block, b"tick", holders)

    plain = zlib.decompressobj().decompress(entry[4 : 4 + int.from_bytes(entry[:4], "little")])
    assert zlib.decompress(pack_rows(unpack_entry(entry).rows)) == plain
    assert unpack_entry(entry)[1:] == (b"tick", holders)
    assert blocks_for(len(entry)) == 1
    assert 1 < count < 60


def test_single_row_is_written_although_it_takes_several_blocks() -> None:
    """The worst tick of its time may be that large, and nothing is left to divide."""
    row_block, tick = walk(1, 3, 1e6), random.Random(1).randbytes(3 * BLOCK)

    entry, count = pack_full_blocks(row_block, tick)

    assert (count, blocks_for(len(entry)) > 1, unpack_entry(entry)[1]) == (1, True, tick)
