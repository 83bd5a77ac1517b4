"""Snapshots of PyTorch's allocator: read as pickle itself reads them, or refused. Nothing in them is called."""

from __future__ import annotations

import io
import pickle
import reprlib
from contextlib import suppress
from typing import NoReturn

from memwatch.training.allocator_snapshot import read_pickle
from memwatch.training.pickle_reader import PickleReader, PickleRefusedError

MAX_BYTES = 4096
# The C unpickler allocates what a damaged pickle asks for; the reader has refused such a file before.
short = reprlib.Repr()
short.maxlevel = 20


class Unpickler(pickle.Unpickler):
    """Unpickler that finds no function."""

    def find_class(self, _module: str, _name: str) -> NoReturn:
        raise AssertionError("the reader accepted an operation that imports")

    def persistent_load(self, _key: object) -> NoReturn:
        raise AssertionError("the reader accepted an operation that calls")


def check(data: bytes) -> None:
    with suppress(PickleRefusedError):
        summary = read_pickle(io.BytesIO(data))
        figures = [summary.blocks, summary.unrecorded_bytes, summary.out_of_memory or 0]
        figures += [size for one in summary.devices for size in (one.reserved_bytes, one.unused_bytes)]
        assert all(figure >= 0 for figure in figures)
        assert sum(one.blocks for one in summary.sites) <= summary.blocks <= len(data) ** 2
    with suppress(PickleRefusedError):
        value = PickleReader(io.BytesIO(data)).read()
        compare(value, data)


def compare(value: object, data: bytes) -> None:
    """Compare with what pickle reads. It refuses some files that the reader takes, such as a wrong frame size."""
    try:
        expected = Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, OverflowError, IndexError, TypeError):
        return
    assert short.repr(value) == short.repr(expected)
