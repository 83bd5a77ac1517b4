"""Reader of pickles that hold plain values only: nothing is imported or called, and everything is bounded."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import random
import struct
import sys
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from memwatch.training import pickle_reader
from memwatch.training.allocator_snapshot import MAX_BLOCKS
from memwatch.training.pickle_reader import BY_NAME, CAN_RUN_CODE, PickleReader, PickleRefusedError
from support.torch_snapshot import block

FRAME = {"filename": "train.py", "line": 12, "name": "forward"}
PLAIN = {
    "segments": [{"total_size": 1 << 40, "id": (0, 1), "triple": (1, 2, 3), "blocks": [FRAME, FRAME, {}]}] * 2,
    "numbers": [0, -1, 255, 65_535, 1 << 31, -(1 << 62), 1.5, True, False, None, (), ("x",)],
    "text": ["", "ü", "x" * 300, b"bytes", b"y" * 300],
    "many": {f"key {number}": [number] for number in range(300)},
}


def read(data: bytes) -> object:
    return PickleReader(io.BytesIO(data)).read()


def refused(data: bytes) -> str:
    with pytest.raises(PickleRefusedError) as raised:
        read(data)
    return str(raised.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_pickle_writes_them(protocol: int) -> None:
    value = {**PLAIN, "text": ["ü"]} if protocol == 2 else PLAIN  # protocol 2 has no bytes
    assert read(pickle.dumps(value, protocol)) == value


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    """A call of os.system alone, and one inside a snapshot."""
    file = tmp_path / "run"
    alone = refused(pickle.dumps(Evil(file), protocol))
    inside = refused(pickle.dumps({"segments": [Evil(file)]}, protocol))

    assert not file.exists()
    assert "only plain values are read" in alone
    assert "only plain values are read" in inside
    assert protocol < 4 or "the operation STACK_GLOBAL at byte" in alone
    assert protocol < 4 or "which can run code" in alone


def test_every_operation_that_is_not_allowed_is_refused() -> None:
    for operation in pickletools.opcodes:
        if operation.name not in BY_NAME and operation.name != "STOP":
            assert operation.name in refused(operation.code.encode("latin-1") + b"x" * 20)
    assert not CAN_RUN_CODE & BY_NAME.keys()


def test_truncated_pickle_is_refused_at_every_length() -> None:
    data = pickle.dumps(PLAIN, 4)
    for length in range(0, len(data), 7):
        assert refused(data[:length])


def test_damaged_pickle_never_raises_another_error() -> None:
    """3,000 random changes: each is read to the end or refused."""
    chance = random.Random(7)
    original = pickle.dumps(PLAIN, 4)
    for _ in range(3000):
        data = bytearray(original)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(PickleRefusedError):
            read(bytes(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x8d" + struct.pack("<Q", 1 << 60) + b"x", "a text of 1,152,921,504,606,846,976 bytes"),
        (b"B" + struct.pack("<I", 1 << 31), "a text of"),
        (b"X" + struct.pack("<I", 1000) + b"x", "ends at byte 6"),
        (b"\x8b" + struct.pack("<i", 1 << 30), "an integer of"),
        (b"\x8b" + struct.pack("<i", -1), "an integer of"),
        (b"Nr" + struct.pack("<I", (1 << 32) - 1) + b".", "damaged"),
        (b"(((((.", "damaged"),
        (b"\x80\x04K\x01K\x02\x86}K\x01K\x02s.", "damaged"),  # a number as key
        (b"]K\x01a(K\x02K\x03.", ""),
        (b"", "damaged"),
    ],
)
def test_hostile_sizes_are_refused_at_once(data: bytes, words: str) -> None:
    """A few bytes that ask for terabytes: neither memory nor time is spent."""
    began = time.thread_time()
    tracemalloc.start()
    try:
        if words:
            assert words in refused(data)
        else:
            assert read(data) == 3
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
    assert time.thread_time() - began < 5


def test_limits_on_operations_containers_values_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few megabytes that hold millions of lists, references or numbers."""
    monkeypatch.setattr(pickle_reader, "MAX_CONTAINERS", 1000)
    monkeypatch.setattr(pickle_reader, "MAX_VALUES", 2000)
    monkeypatch.setattr(pickle_reader, "MAX_OPERATIONS", 5000)
    monkeypatch.setattr(pickle_reader, "MAX_ALL_TEXT_BYTES", 10_000)

    assert "1,000 lists and dicts" in refused(b"]" * 2000 + b".")
    assert "2,000 values" in refused(b"J\1\2\3\4" * 3000 + b".")
    assert "5,000 operations" in refused(b"N" * 9000 + b".")
    assert "5,000 operations" in refused(b"N\x94" + b"j\0\0\0\0" * 9000 + b".")
    assert "its texts have more than" in refused((b"\x8c\xc8" + b"x" * 200) * 100 + b".")


def test_snapshot_with_the_most_blocks_is_within_the_limits() -> None:
    """250,000 blocks that share their stacks, as PyTorch writes them."""
    frames = [FRAME] * 8
    count = 1000
    segment = {"total_size": 1 << 40, "blocks": [block((1 << 32) + number, frames) for number in range(count)]}
    data = pickle.dumps([segment])
    reader = PickleReader(io.BytesIO(data))
    reader.read()
    operations = sum(1 for _ in pickletools.genops(data))

    most = MAX_BLOCKS / count
    assert reader._values * most <= pickle_reader.MAX_VALUES
    assert reader._containers * most <= pickle_reader.MAX_CONTAINERS
    assert operations * most <= pickle_reader.MAX_OPERATIONS


def test_values_within_the_limits_take_at_most_200_mib() -> None:
    """The largest integers and empty dicts, with a reference to each, and all texts."""
    value = sys.getsizeof(1 << 8 * pickle_reader.MAX_INTEGER_BYTES - 1) + struct.calcsize("P")
    container = sys.getsizeof({}) + struct.calcsize("P")
    texts = pickle_reader.MAX_ALL_TEXT_BYTES

    assert pickle_reader.MAX_VALUES * value + pickle_reader.MAX_CONTAINERS * container + texts <= 200 << 20


def test_window_moves_over_a_file_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values lie across the places where the window is moved, and positions in errors are those of the file."""
    monkeypatch.setattr(pickle_reader, "CHUNK_BYTES", 100)
    monkeypatch.setattr(pickle_reader, "MAX_OPERATION_BYTES", 400)
    data = pickle.dumps(PLAIN, 4)

    assert read(data) == PLAIN
    assert f"at byte {len(data) - 1:,}, which can run code" in refused(data[:-1] + b"R")
    assert f"it ends at byte {len(data) - 3:,}" in refused(data[:-3]) or "damaged" in refused(data[:-3])


def test_reading_stops_at_a_key_of_the_outermost_dict() -> None:
    value = {"segments": [{"_".join(("device", "traces")): 1}], "device_traces": [2], "after": 3}
    reader = PickleReader(io.BytesIO(pickle.dumps(value)))

    assert reader.read("device_traces") == {"segments": [{"device_traces": 1}]}
    assert reader.is_at_last_key
    other = PickleReader(io.BytesIO(pickle.dumps(value)))
    assert other.read("absent") == value
    assert not other.is_at_last_key
