"""Hostile heads are refused in little time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import read_checkpoint
from support.calibration import HOT_SECONDS, seconds_of_work, slowness

MAX_SECONDS, MAX_BYTES = 0.2, 20_000_000


def _gguf(tensors: int, keys: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def _key(name: bytes, kind: int, length: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, kind, length)


def _arrays(count: int, kind: int, length: int, data: bytes) -> Iterator[bytes]:
    return (_key(b"%06d" % at, kind, length) + data for at in range(count))


HEADS = {
    "arrays of strings.gguf": _gguf(0, 6, b"".join(_arrays(6, 8, 400_000, bytes(3_200_000)))),
    "strings without end.gguf": _gguf(0, 1, _key(b"k", 8, 900_000) + bytes(1_600_000)),
    "a long string.gguf": _gguf(0, 1, _key(b"k", 8, 2) + struct.pack("<Q", 1 << 62)),
    "numbers.gguf": _gguf(0, 400, b"".join(_arrays(200, 11, 4096, bytes(8 * 4096)))),
    "tensors.gguf": _gguf(1 << 20, 0, b""),
    "keys.gguf": _gguf(0, 1 << 20, b""),
    "nested arrays.safetensors": struct.pack("<Q", 3_000_000) + b"[" * 3_000_000,
    "nested objects.safetensors": struct.pack("<Q", 3_000_000) + b'{"a":' * 600_000,
    "numbers.safetensors": struct.pack("<Q", 5_000_010) + b'{"a":[' + b"1," * 2_500_000 + b"1]}",
    "config.json": b'{"a":[' + b"1," * 500_000 + b"1]}",
    "nested/config.json": b'{"model_type":"llama","a":' + b'{"b":' * 150_000,
    "images/model_index.json": b'{"unet":' * 120_000,
    "model.safetensors.index.json": b'{"weight_map":' + b'{"b":' * 1_000_000,
}


@pytest.mark.parametrize("name", HEADS)
def test_hostile_head_is_refused_fast_and_in_little_memory(name: str, tmp_path: Path) -> None:
    """200 ms of processor time on a machine of this speed, once in three times, and 20 MB.

    The slowest takes 90 to 150 ms, and 216 ms with Python 3.10 on a machine that has other work.
    """
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(HEADS[name])

    is_fast = any(_refusal(path) < MAX_SECONDS * _slowness() for _ in range(3))
    tracemalloc.start()
    _refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_fast
    assert peak < MAX_BYTES


def _slowness() -> float:
    return slowness(min(seconds_of_work() for _ in range(5)), HOT_SECONDS)


def _refusal(path: Path) -> float:
    before = time.process_time()
    with pytest.raises(InvalidInputError):
        read_checkpoint(path)
    return time.process_time() - before
