"""Scan of a snapshot's history without building it: the count is that of a reader which builds everything."""

from __future__ import annotations

import io
import pickle
import random
from typing import Any

import pytest

from memwatch.training import pickle_reader
from memwatch.training.allocator_snapshot import SnapshotSummary, count_failures, read_pickle
from memwatch.training.pickle_reader import PickleRefusedError
from support.torch_snapshot import sample_snapshot


def summary_of(data: bytes) -> SnapshotSummary:
    return read_pickle(io.BytesIO(data))


def with_history(actions: list[str]) -> dict[str, Any]:
    """Build a snapshot as PyTorch does: one object for each action, frames and their lists shared."""
    texts = {name: "".join(name) for name in ("alloc", "free_completed", "oom")}
    frames = [{"filename": f"file{number}.py", "line": number, "name": "oom"} for number in range(300)]
    trace = [
        {
            "action": texts[action],
            "addr": (1 << 46) + number * 7919,
            "size": number,
            "time_us": 1_700_000_000_000_000 + number,
            "frames": frames[number % 250 : number % 250 + 30],
        }
        for number, action in enumerate(actions)
    ]
    return {**sample_snapshot(), "device_traces": [trace]}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("first", ["oom", "alloc"])
def test_count_is_that_of_the_whole_history(protocol: int, first: str) -> None:
    """5,000 entries in many frames of the pickle, with texts that are also names of functions."""
    chance = random.Random(3)
    found = with_history([first, *chance.choices(["alloc", "free_completed", "oom"], [90, 90, 1], k=5000)])

    assert summary_of(pickle.dumps(found, protocol)).out_of_memory == count_failures(found) > 10


def test_history_without_errors_or_entries_has_none() -> None:
    assert summary_of(pickle.dumps(with_history(["alloc"] * 50))).out_of_memory == 0
    assert summary_of(pickle.dumps(with_history([]))).out_of_memory == 0


def test_window_moves_over_a_longer_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of key and value may lie on both sides of the place where the window moves."""
    monkeypatch.setattr(pickle_reader, "CHUNK_BYTES", 90)
    monkeypatch.setattr(pickle_reader, "MAX_OPERATION_BYTES", 300)
    found = with_history(["alloc", "oom"] * 300)

    assert summary_of(pickle.dumps(found)).out_of_memory == 300


def test_blocks_are_shown_if_the_history_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(with_history(["oom"] * 3000))
    for name, limit in (("MAX_SCAN_BYTES", 10_000), ("MAX_STEPS", 100), ("MAX_CHECKED_BYTES", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(pickle_reader, name, limit)
            summary = summary_of(data)
        assert (summary.blocks, summary.out_of_memory) == (4, None)


@pytest.mark.parametrize(
    "head",
    [b"\x8c\x04", b"X\x04\0\0\0", b"\x8d\x04" + bytes(7), b"C\x04", b"B\x04\0\0\0", b"\x8b\x04\0\0\0"],
    ids=["SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "LONG4"],
)
def test_scan_passes_over_every_operation_with_a_length(head: bytes) -> None:
    """Its content looks like the end of the pickle, and what follows is still checked."""
    data = pickle.dumps(with_history(["alloc", "oom"])).removesuffix(b".") + head + b"...."

    assert summary_of(data + b"N.").out_of_memory == 1
    with pytest.raises(PickleRefusedError, match=f"the operation REDUCE at byte {len(data):,}"):
        summary_of(data + b"R.")


def test_code_in_the_history_is_refused() -> None:
    data = pickle.dumps(with_history(["alloc"]))
    with pytest.raises(PickleRefusedError, match=r"the operation REDUCE at byte .* which can run code"):
        summary_of(data[:-1] + b"R.")
    with pytest.raises(PickleRefusedError, match="damaged"):
        summary_of(data[:-1] + b"\xff.")


def test_damaged_history_never_raises_another_error() -> None:
    """It is counted or refused at every length and with random changes."""
    chance = random.Random(5)
    original = pickle.dumps(with_history(["alloc", "oom"] * 5))
    start = original.index(b"device_traces")
    for number in range(1500):
        data = bytearray(original)
        if number % 2:
            del data[chance.randrange(start, len(data)) :]
        else:
            for _ in range(3):
                data[chance.randrange(start + 13, len(data))] = chance.randrange(256)
        try:
            assert summary_of(bytes(data)).blocks == 4
        except PickleRefusedError:
            continue
