"""Test wrong arguments of each name of memwatch.training: one class of error, a sentence, nothing is spoiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwatch import InvalidInputError, training
from memwatch.core.model import Absent
from memwatch.library import frameworks, program_safety
from support.custom_pool import OwnPool

wrong: Any = training  # calls with wrong types
TRACKER = training.AllocationTracker()
PRESET: Any = training.Preset("x", ())


class NoDevice(OwnPool):
    device = 3  # type: ignore[assignment]


async def coroutine(batch_size: int) -> None: ...


# Name, call, and the beginning of the sentence.
TABLE: list[tuple[str, Callable[[], object], str]] = [
    ("AllocationTracker", lambda: wrong.AllocationTracker(1), "clock is 1, which is not a function; for example"),
    (
        "AllocationTracker",
        lambda: wrong.AllocationTracker.add(TRACKER, None, 1),
        "tag is None, which is not a text",
    ),
    ("AllocationTracker", lambda: TRACKER.add("x", -1), "size_bytes is -1, which is not a size above zero"),
    ("AllocationTracker", lambda: TRACKER.add("x", 1, "tpu"), 'location is "tpu", which is not one of gpu, cpu'),  # type: ignore[arg-type]
    ("AllocationTracker", lambda: TRACKER.remove([]), "allocation_id is [], which is not a whole number from 1"),  # type: ignore[arg-type]
    (
        "AllocationTracker",
        lambda: TRACKER.remove(True),
        "allocation_id is True, which is not a whole number from 1",
    ),
    (
        "AllocationTracker",
        lambda: TRACKER.find_old_allocations(-1),
        "older_than is -1, which is not a number of sec",
    ),
    (
        "AllocationTracker",
        lambda: TRACKER.find_old_allocations(float("nan")),
        "older_than is nan, which is not a nu",
    ),
    ("AllocationTracker", lambda: TRACKER.holdings("GPU"), 'location is "GPU", which is not one of gpu, cpu'),  # type: ignore[arg-type]
    (
        "Preset",
        lambda: PRESET.apply(3),
        "environ is 3, which is not a mapping that can be changed; for example os.env",
    ),
    (
        "SafetensorsFile",
        lambda: wrong.SafetensorsFile(None),
        'path is None, which is not a path; for example "model',
    ),
    (
        "accelerate_tracker",
        lambda: wrong.accelerate_tracker("1"),
        'interval is "1", which is not a number of seconds',
    ),
    (
        "allocate_with_fallback",
        lambda: wrong.allocate_with_fallback(3),
        "make is 3, which is not a function; for ex",
    ),
    (
        "allocate_with_fallback",
        lambda: wrong.allocate_with_fallback(bytes, ["cuda:0"]),
        "device is an object of c",
    ),
    (
        "allocate_with_fallback",
        lambda: wrong.allocate_with_fallback(bytes, ""),
        'device is "", which is not the n',
    ),
    (
        "autopsy_on_oom",
        lambda: wrong.autopsy_on_oom(coroutine),
        "folder is an object of class function, which is not",
    ),
    (
        "autopsy_on_oom",
        lambda: training.autopsy_on_oom("a\0b"),
        'folder is "a\\u0000b", which is not a path; for ex',
    ),
    ("autopsy_on_oom", lambda: training.autopsy_on_oom(__file__), "folder is "),
    ("clear", lambda: wrong.clear(None), "framework is None, which is not a text"),
    ("clear", lambda: training.clear("pytroch"), 'framework is "pytroch", which is not one of '),
    (
        "keras_callback",
        lambda: wrong.keras_callback(exact="no"),
        'exact is "no", which is not True or False; for exam',
    ),
    (
        "lightning_callback",
        lambda: training.lightning_callback(1e6),
        "interval is 1000000.0, which is not from 0.01",
    ),
    (
        "open_safetensors",
        lambda: wrong.open_safetensors(b"model"),
        "path is an object of class bytes, which is not a",
    ),
    (
        "open_safetensors",
        lambda: training.open_safetensors(""),
        'path is "", which is not a path; for example "model',
    ),
    (
        "preset",
        lambda: wrong.preset([]),
        "preset is an object of class list, which is not one of inference, training",
    ),
    (
        "preset",
        lambda: training.preset("fast"),
        'preset is "fast", which is not one of inference, training, constrai',
    ),
    (
        "register_pool",
        lambda: wrong.register_pool(1),
        "pool is 1, which is no memory pool: it has no stats(); for ex",
    ),
    (
        "register_pool",
        lambda: wrong.register_pool(OwnPool),
        "pool is the class OwnPool, which is no object of one;",
    ),
    (
        "register_pool",
        lambda: wrong.register_pool(NoDevice()),
        "pool is an object of class NoDevice, whose device",
    ),
    ("retry_on_oom", lambda: wrong.retry_on_oom(None), "batch_size is None, which is not a whole number from 1"),
    (
        "retry_on_oom",
        lambda: training.retry_on_oom(8, 0),
        "attempts is 0, which is not a whole number from 1 to 64",
    ),
    (
        "retry_on_oom",
        lambda: training.retry_on_oom(8, least=9),
        "least is 9, which is not a whole number from 1 to 8",
    ),
    (
        "retry_on_oom",
        lambda: wrong.retry_on_oom(8)(3),
        "the decorated step is 3, which is not a function; for exampl",
    ),
    (
        "retry_on_oom",
        lambda: training.retry_on_oom(8)(lambda: 1),
        "<lambda> has no parameter batch_size; for example",
    ),
    ("retry_on_oom", lambda: training.retry_on_oom(8)(coroutine), "coroutine is a coroutine or a generator, whose"),
    (
        "retry_on_oom",
        lambda: wrong.retry_on_oom(8, folder=3),
        'folder is 3, which is not a path; for example "autop',
    ),
    (
        "shrink_on_pressure",
        lambda: wrong.shrink_on_pressure(None),
        "level is None, which is not one of low, medium",
    ),
    ("swap_blocks", lambda: wrong.swap_blocks(None), "blocks is None, which is not a list of modules; for example"),
    ("swap_blocks", lambda: training.swap_blocks([]), "blocks is empty, which leaves nothing to swap; for example"),
    (
        "swap_blocks",
        lambda: training.swap_blocks([object()]),
        "blocks[0] is an object of class object, which is no m",
    ),
    ("swap_blocks", lambda: training.swap_blocks(iter(int, 1)), "blocks has more than 10000 modules; for example"),
    (
        "transformers_callback",
        lambda: wrong.transformers_callback(folder=3),
        "folder is 3, which is not a path; for",
    ),
]
REASONS = {
    **dict.fromkeys(
        ("Autopsy", "BlockSwap", "FallbackBuffer", "Released"), "results, which a program does not make"
    ),
    **dict.fromkeys(("pools", "shrink"), "no arguments"),
    "MemoryPool": "a protocol: register_pool checks the object",
    "PoolStats": "checked where a pool returns it: test_statistics_that_do_not_add_up_are_refused",
    "autopsy": "never raises: test_functions_that_never_raise_log_a_wrong_argument",
    "is_out_of_memory": "never raises: test_oom_errors.py",
    "unregister_pool": "documented to accept what is not registered",
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "call", "sentence"), TABLE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_wrong_argument_is_named_with_one_that_would_do(
    name: str, call: Callable[[], object], sentence: str
) -> None:
    assert name in training.__all__
    before = training.pools()

    with pytest.raises(InvalidInputError) as caught:
        call()

    assert str(caught.value).startswith(sentence)
    assert str(caught.value).isprintable()
    assert "; " in str(caught.value)
    assert training.pools() == before


def test_every_name_is_in_the_table_or_has_a_reason_not_to_be() -> None:
    assert {name for name, _, _ in TABLE} | REASONS.keys() == set(training.__all__)
    assert {name for name, _, _ in TABLE} & REASONS.keys() == set()


@pytest.mark.process
def test_functions_that_never_raise_log_a_wrong_argument(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong folder costs the files of an autopsy, not the autopsy."""
    monkeypatch.setattr(program_safety, "_logged", set())
    monkeypatch.setenv("MEMWATCHD_PROCFS", str(tmp_path))
    with caplog.at_level(logging.WARNING, "memwatch"):
        assert wrong.autopsy(None) is None
        found = wrong.autopsy("CUDA out of memory", 3)

    assert found is not None
    assert found.file is None
    for sentence in (
        "error is None, which",
        "folder is 3",
    ):
        assert sum(sentence in one.getMessage() for one in caplog.records) == 1, sentence


@pytest.mark.process
@pytest.mark.parametrize("stats", [None, training.PoolStats("2", 1), training.PoolStats(1, 1.5)])  # type: ignore[arg-type]
def test_statistics_that_do_not_add_up_are_refused(stats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is not known then, and the others are."""
    monkeypatch.setattr(program_safety, "_logged", set())
    broken, whole = OwnPool(), OwnPool()
    monkeypatch.setattr(broken, "stats", lambda: stats)
    for pool in (broken, whole):
        training.register_pool(pool)
    try:
        assert frameworks.read_stats(broken).allocated_bytes is Absent.NOT_AVAILABLE
        total = frameworks.total_stats()
        assert total is not None
        assert total.allocated_bytes == whole.stats().allocated_bytes
    finally:
        for pool in (broken, whole):
            training.unregister_pool(pool)


def test_pool_that_is_registered_twice_is_counted_once() -> None:
    pool = OwnPool()
    training.register_pool(pool)
    training.register_pool(pool)
    try:
        assert frameworks._registered == [pool]
    finally:
        training.unregister_pool(pool)
    assert frameworks._registered == []


@pytest.mark.process
def test_closed_safetensors_file_says_so(tmp_path: Path) -> None:
    """Its descriptor may be another file's by then."""
    path = tmp_path / "model.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"ab")
    file = training.open_safetensors(path)
    assert bytes(file.read("a")) == b"ab"
    with pytest.raises(InvalidInputError, match="name is None, which is not a text"):
        file.read(None)  # type: ignore[arg-type]
    file.close()
    file.close()

    for call in (lambda: file.read("a"), file.__enter__, lambda: file._map_tensor("a", 1)):
        with pytest.raises(InvalidInputError, match=r"model\.safetensors: is closed; read its tensors before that"):
            call()
