"""Retries of a training step with half the batch size: sizes, the final error, and steps that cannot be retried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import memwatch
from memwatch.library.reporter import reporter
from memwatch.planning.arguments import InvalidInputError
from memwatch.training import oom_recovery


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the marks that would be sent to the daemon. No snapshot of an allocator is written."""
    sent: list[str] = []
    monkeypatch.setattr(reporter, "mark", sent.append)
    monkeypatch.setattr(oom_recovery, "autopsy", lambda *_: None)
    monkeypatch.setattr(oom_recovery, "clear_all", lambda: None)
    return sent


def test_oom_is_retried_with_half_the_batch_size(marks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Halved until it works. Later calls start with that size. All pools are cleared in between."""
    tried: list[int] = []
    cleared: list[int] = []
    monkeypatch.setattr(oom_recovery, "clear_all", lambda: cleared.append(tried[-1]))

    @memwatch.retry_on_oom(batch_size=64)
    def step(scale: int, batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 16:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return scale * batch_size

    assert (step(2), step(3)) == (32, 48)
    assert tried == [64, 32, 16, 16]
    assert cleared == [64, 32]
    assert marks == [f"out of memory with batch size {size}: retrying with {size // 2}" for size in (64, 32)]


def test_final_oom_is_the_first_error_with_a_note() -> None:
    """The note lists the attempts. Other errors are raised at once."""
    errors = []

    @memwatch.retry_on_oom(batch_size=8, attempts=3)
    def step(batch_size: int) -> None:
        errors.append(MemoryError(f"batch of {batch_size}"))
        raise errors[-1]

    with pytest.raises(MemoryError) as raised:
        step()
    assert raised.value is errors[0]
    assert raised.value.__notes__ == ["memwatch: out of memory with all batch sizes tried: 8, 4, 2"]

    @memwatch.retry_on_oom(batch_size=8)
    def other(batch_size: int) -> None:
        raise ValueError(batch_size)

    with pytest.raises(ValueError, match="8"):
        other()


@pytest.mark.parametrize(
    ("first", "least", "sizes"),
    [
        (8, 8, [8]),
        (8, 5, [8]),
        (8, 4, [8, 4]),
        (9, 4, [9, 4]),
        (2, 1, [2, 1]),
        (1, 1, [1]),
        (64, 1, [64, 32, 16, 8, 4]),
    ],
)
def test_least_batch_size_is_the_last_that_is_tried(first: int, least: int, sizes: list[int]) -> None:
    """With five attempts at most, as the default is."""
    tried: list[int] = []

    @memwatch.retry_on_oom(batch_size=first, least=least)
    def step(batch_size: int) -> None:
        tried.append(batch_size)
        raise MemoryError

    with pytest.raises(MemoryError):
        step()
    assert tried == sizes


def plain(batch_size: int) -> int:
    return batch_size


def by_keyword(*, batch_size: int = 1) -> int:
    return batch_size


def any_options(**options: int) -> int:
    return options["batch_size"]


@pytest.mark.parametrize("step", [plain, by_keyword, any_options])
def test_step_with_the_keyword_is_accepted(step: Callable[..., Any]) -> None:
    oom_recovery.check_step(step)


def without(data: object) -> None: ...


def any_values(*batch_sizes: int) -> None: ...


async def coroutine(batch_size: int) -> None: ...


def generator(batch_size: int) -> Iterator[int]:
    yield batch_size


async def stream(batch_size: int) -> AsyncIterator[int]:
    yield batch_size


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (without, "without has no parameter batch_size; for example def without(batch_size): …"),
        (any_values, "any_values has no parameter batch_size"),
        (coroutine, "coroutine is a coroutine or a generator, whose errors come after the call"),
        (generator, "generator is a coroutine or a generator"),
        (stream, "stream is a coroutine or a generator"),
    ],
)
def test_step_that_cannot_be_retried_is_refused(step: Callable[..., Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        oom_recovery.check_step(step)
    assert words in str(raised.value)
