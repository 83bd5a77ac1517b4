"""Test that a ring file keeps intact records, detects missing ones, and never grows."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch_monitor.history.ring_file import (
    BLOCK,
    MAX_RECORDS,
    REPAIRED,
    IncompatibleFileError,
    RingContents,
    RingFile,
    Stamp,
    open_ring_set,
)

STAMP = Stamp(3, 12.5, 1_700_000_000.0, b"0123456789abcdef")
SIZE = 16 * BLOCK


def written(path: Path, payloads: list[bytes], size: int = SIZE) -> None:
    ring = RingFile(path, size)
    ring.prepare(ring.read())
    for payload in payloads:
        ring.append(1, STAMP, payload)
    ring.close()


def read(path: Path, size: int = SIZE) -> tuple[RingContents, list[bytes]]:
    ring = RingFile(path, size)
    contents = ring.read()
    payloads = [ring.payload(record) for record in contents.records]
    ring.close()
    return contents, payloads


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def test_records_are_read_in_order(tmp_path: Path) -> None:
    """Payloads of any length are read with their stamps, and the file has its final size from the start."""
    payloads = [b"", b"a", b"b" * BLOCK, b"c" * 10_000]

    written(tmp_path / "ring", payloads)
    contents, found = read(tmp_path / "ring")

    assert found == payloads
    assert [record.seq for record in contents.records] == [1, 2, 3, 4]
    assert {record.stamp for record in contents.records} == {STAMP}
    assert (contents.lost, contents.damaged) == (0, ())
    assert (tmp_path / "ring").stat().st_size == SIZE


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 5 * BLOCK), min_size=1, max_size=80), restarts=st.sets(st.integers(0, 80)))
def test_wrap_overwrites_the_oldest_and_reports_no_loss(
    tmp_path: Path, lengths: list[int], restarts: set[int]
) -> None:
    """For any lengths and any point of reopening, the newest records are there without a gap."""
    path = tmp_path / "ring"
    path.unlink(missing_ok=True)
    payloads = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    ring = RingFile(path, SIZE)
    ring.prepare(ring.read())
    for number, payload in enumerate(payloads):
        if number in restarts:
            ring.close()
            ring = RingFile(path, SIZE)
            ring.prepare(ring.read())
        ring.append(1, STAMP, payload)
    ring.close()

    contents, found = read(path)

    assert found == payloads[len(payloads) - len(found) :]
    assert found
    assert contents.lost == 0
    assert path.stat().st_size == SIZE


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bit_loses_at_most_one_record(tmp_path: Path, seed: int) -> None:
    """A flipped bit anywhere: only written payloads are read, and at most one record is missing."""
    chance = random.Random(seed)
    path = tmp_path / "ring"
    payloads = [chance.randbytes(chance.randrange(3 * BLOCK)) for _ in range(40)]
    written(path, payloads)
    _, whole = read(path)

    for _ in range(50):
        bit = chance.randrange(SIZE * 8)
        flipped(path, bit)
        contents, found = read(path)
        flipped(path, bit)

        assert set(found) <= set(whole)
        assert len(found) >= len(whole) - 1
        newest = whole[-1] in found
        assert contents.lost == len(whole) - len(found) or not newest or whole[0] not in found


def test_damage_is_reported_once(tmp_path: Path) -> None:
    """A record of the repair ends the count; new damage is counted again."""
    path = tmp_path / "ring"
    written(path, [b"a", b"b", b"c"])
    flipped(path, (BLOCK + 200) * 8)
    flipped(path, (BLOCK + 50) * 8)

    ring = RingFile(path, SIZE)
    contents = ring.read()
    ring.prepare(contents)
    ring.append(REPAIRED, STAMP, b"")
    ring.append(1, STAMP, b"d")
    ring.close()
    again, found = read(path)

    assert contents.lost == 1
    assert [offset for offset, _ in contents.damaged] == [BLOCK]
    assert again.lost == 0
    assert found == [b"a", b"c", b"", b"d"]


def test_torn_record_at_the_end_is_reported(tmp_path: Path) -> None:
    """With half of the newest record on disk, the others are used and the loss is reported."""
    path = tmp_path / "ring"
    written(path, [b"a", b"b" * 3 * BLOCK])
    data = bytearray(path.read_bytes())
    data[2 * BLOCK : 5 * BLOCK] = bytes(3 * BLOCK)
    path.write_bytes(data)

    contents, found = read(path)

    assert found == [b"a"]
    assert contents.lost == 1


@pytest.mark.parametrize("left", [0, 100, BLOCK, BLOCK + 7, 3 * BLOCK])
def test_truncated_file_keeps_the_rest(tmp_path: Path, left: int) -> None:
    """Truncated anywhere: no exception, no invented record; the file is extended to its size again."""
    path = tmp_path / "ring"
    payloads = [bytes([number]) * 5000 for number in range(4)]
    written(path, payloads)
    os.truncate(path, left)

    contents, found = read(path)
    written(path, [b"new"])

    assert found == payloads[: left // (2 * BLOCK)]
    assert bool(contents.lost) == bool(left)
    assert read(path)[1][-1] == b"new"
    assert path.stat().st_size == SIZE


def test_file_of_zeros_is_new_and_random_bytes_are_damage(tmp_path: Path) -> None:
    """Neither yields records; the random bytes are returned to be quarantined, all of them."""
    zeros, garbage = tmp_path / "zeros", tmp_path / "garbage"
    zeros.write_bytes(bytes(SIZE))
    garbage.write_bytes(random.Random(1).randbytes(SIZE))

    nothing, all_of_it = read(zeros)[0], read(garbage)[0]

    assert nothing == RingContents()
    assert (all_of_it.records, all_of_it.lost) == ((), 1)
    assert b"".join(data for _, data in all_of_it.damaged) == garbage.read_bytes()


def test_smaller_size_keeps_the_newest(tmp_path: Path) -> None:
    """A reduced size drops the oldest records and nothing else."""
    path = tmp_path / "ring"
    payloads = [bytes([number]) * 3000 for number in range(12)]
    written(path, payloads)

    written(path, [b"new"], size=4 * BLOCK)
    contents, found = read(path, size=4 * BLOCK)

    assert found == [*payloads[-3:], b"new"]
    assert contents.lost == 0
    assert path.stat().st_size == 4 * BLOCK


def test_larger_size_keeps_all_records(tmp_path: Path) -> None:
    """An increased size adds room after the existing records."""
    path = tmp_path / "ring"
    written(path, [bytes([number]) for number in range(20)])

    written(path, [b"new"], size=2 * SIZE)

    assert read(path, size=2 * SIZE)[1][-16:] == [*(bytes([number]) for number in range(5, 20)), b"new"]
    assert read(path, size=2 * SIZE)[0].lost == 0


@pytest.mark.parametrize("left", [0, 1, 2])
def test_sequence_restarts_near_its_limit(tmp_path: Path, left: int) -> None:
    """No writer reaches the limit; such a file keeps its records, and later ones do not look damaged."""
    path = tmp_path / "ring"
    ring = RingFile(path, SIZE)
    ring.prepare(ring.read())
    ring._seq = MAX_RECORDS - 2 - left
    ring.append(1, STAMP, b"last but one")
    ring.append(1, STAMP, b"last")
    ring.close()

    written(path, [b"new", b"newer", b"newest"])
    contents, found = read(path)

    assert found == [b"last but one", b"last", b"new", b"newer", b"newest"]
    assert [record.seq for record in contents.records] == [1, 2, 3, 4, 5]
    assert contents.lost == 0


def test_link_folder_and_pipe_are_not_touched(tmp_path: Path) -> None:
    """The error names the path, and the target of the link stays unchanged."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "folder", "pipe"):
        with pytest.raises(IncompatibleFileError) as caught:
            RingFile(tmp_path / name, SIZE)
        assert str(tmp_path / name) in str(caught.value)
    assert victim.read_text() == "precious"


def test_record_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    """Later records are written as before."""
    path = tmp_path / "ring"
    ring = RingFile(path, 2 * BLOCK)
    ring.prepare(ring.read())

    with pytest.raises(OSError, match="does not fit"):
        ring.append(1, STAMP, b"x" * 3 * BLOCK)
    ring.append(1, STAMP, b"small")
    ring.close()

    assert read(path, 2 * BLOCK)[1] == [b"small"]


@pytest.mark.parametrize(
    "wrong",
    [{"run": (1 << 32) - 1}, {"boottime": float("nan")}, {"boottime": 1e300}, {"wall": 1e300}, {"wall": -1.0}],
    ids=["run", "no time", "boot time", "wall", "before 1970"],
)
def test_impossible_record_with_a_valid_checksum_is_skipped(wrong: dict[str, Any], tmp_path: Path) -> None:
    """The next run continues from the stored numbers: the run number after this one would not fit its field."""
    path = tmp_path / "a.ring"
    ring = RingFile(path, SIZE)
    ring.prepare(ring.read())
    ring.append(1, STAMP, b"right")
    ring.append(1, replace(STAMP, **wrong), b"wrong")
    ring.close()

    _, payloads = read(path)

    assert payloads == [b"right"]


def test_damaged_data_is_not_written_through_a_prepared_link(tmp_path: Path) -> None:
    """The name of a file for damaged data can be guessed: it has the time of the start."""
    ring = tmp_path / "fine.ring"
    written(ring, [b"one", b"two", b"three"])
    data = bytearray(ring.read_bytes())
    data[BLOCK + 65] ^= 1
    ring.write_bytes(data)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    aside = tmp_path / "fine.ring.damaged-20231114T221320Z"
    aside.symlink_to(victim)

    opened = open_ring_set(tmp_path, 1 << 20, 1_700_000_000.0)
    for one in opened.rings.values():
        one.close()

    assert victim.read_text() == "precious"
    assert (opened.lost, opened.aside) == (1, [f"{aside.name}.1"])
    assert len(Path(f"{aside}.1").read_bytes()) == BLOCK
    assert Path(f"{aside}.1").stat().st_mode & 0o777 == 0o600


def test_ring_with_a_second_name_is_set_aside(tmp_path: Path) -> None:
    """A hard link gives a file of root or this user a name that another user chose."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.link(victim, tmp_path / "fine.ring")

    opened = open_ring_set(tmp_path, 1 << 20, 1_700_000_000.0)
    for one in opened.rings.values():
        one.close()

    assert victim.read_text() == "precious"
    assert "fine.ring has 2 names (hard links): it was renamed" in opened.complaints[0]
