"""Functions of memwatch.training that several threads call at once, as data loaders do."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from memwatch import training
from support.custom_pool import OwnPool

THREADS, CALLS = 8, 25


def register(_folder: Path) -> object:
    pool = OwnPool()
    training.register_pool(pool)
    is_listed = any(one is pool for one in training.pools())
    training.unregister_pool(pool)
    return is_listed, any(one is pool for one in training.pools())


def read_tensors(folder: Path) -> object:
    with training.open_safetensors(folder / "model.safetensors") as file:
        return [one.name for one in file], bytes(file.read("a"))


def examine(_folder: Path) -> object:
    with pytest.raises(ValueError, match="no memory error"), training.autopsy_on_oom():
        raise ValueError("no memory error")
    return training.is_out_of_memory(MemoryError())


# Each call has the same answer in all threads.
RIGHT: dict[str, tuple[Callable[[Path], object], object]] = {
    "register_pool, pools, unregister_pool": (register, (True, False)),
    "open_safetensors": (read_tensors, (["a"], bytes(4))),
    "autopsy_on_oom, is_out_of_memory": (examine, True),
    "shrink": (lambda _: training.shrink(), 0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    head = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\0" * 4)
    return tmp_path


def in_threads(call: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as threads:
        return [one.result() for one in [threads.submit(call) for _ in range(THREADS * CALLS)]]


@pytest.mark.parametrize("name", RIGHT)
def test_call_has_the_same_answer_in_every_thread(name: str, folder: Path) -> None:
    call, expected = RIGHT[name]

    assert in_threads(lambda: call(folder)) == [expected] * THREADS * CALLS
    assert training.pools() == []


def test_allocations_of_all_threads_add_up() -> None:
    """Each id is given once, and what every thread removes is gone."""
    tracker = training.AllocationTracker()

    kept = in_threads(lambda: tracker.add("step", 3))
    removed = in_threads(lambda: tracker.remove(tracker.add("step", 5)))

    assert len(set(kept)) == len(kept) == len(removed)
    assert tracker.holdings().current_bytes == 3 * len(kept)
    assert tracker.holdings().live == len(kept)
    assert all(removed)
