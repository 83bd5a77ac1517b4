"""Reading the files of models: apart from the round, one at a time, with a limit of time for each account."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memwatch.core.collectors.engines import (
    BUSY_RATIO,
    MAX_BUSY_SECONDS,
    MAX_DONE,
    MAX_WAITING,
    MAX_WAITING_OF_ACCOUNT,
    ModelReader,
)
from memwatch.core.engines.records import ModelQuery, ModelSizes
from support.thread_limit import no_threads

ANA, BEN, EVE = 1000, 1001, 1002
SIZES = ModelSizes(1 << 30)


def query(name: object) -> ModelQuery:
    return ModelQuery(f"/models/{name}")


def far() -> float:
    return time.monotonic() + 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowDisk:
    """Reads that take virtual seconds. They wait until they are released."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.read: list[str] = []
        self.released = threading.Event()

    def __call__(self, asked: ModelQuery) -> ModelSizes:
        self.read.append(asked.name.rpartition("/")[2])
        self.released.wait()
        self.clock.now += self.seconds
        return SIZES


@contextmanager
def reader_of(seconds: float = 0.0, is_held: bool = False) -> Iterator[tuple[ModelReader, SlowDisk, Clock]]:
    clock = Clock()
    disk = SlowDisk(clock, seconds)
    if not is_held:
        disk.released.set()
    yield ModelReader(disk, clock), disk, clock
    disk.released.set()


def read_now(reader: ModelReader, asked: ModelQuery, account: int) -> ModelSizes | None:
    reader.size(asked, account)
    reader.wait(far())
    return reader.size(asked, account)


def test_sizes_are_there_after_a_short_wait() -> None:
    with reader_of() as (reader, disk, _):
        assert read_now(reader, query("a"), ANA) == SIZES
    assert disk.read == ["a"]


def test_disk_that_hangs_delays_no_round() -> None:
    with reader_of(is_held=True) as (reader, disk, _):
        assert reader.size(query("a"), ANA) is None
        reader.wait(time.monotonic() - 1.0)  # returns although nothing was read
        for _ in range(100):
            assert reader.size(query("a"), ANA) is None
            reader.wait(far())  # waited for once
        disk.released.set()
        assert read_now(reader, query("b"), ANA) == SIZES
        assert reader.size(query("a"), ANA) == SIZES
    assert disk.read == ["a", "b"]


def test_account_with_less_work_is_first() -> None:
    with reader_of(seconds=1.0, is_held=True) as (reader, disk, _):
        for number in range(4):
            reader.size(query(f"eve-{number}"), EVE)
        reader.size(query("ana"), ANA)
        disk.released.set()
        reader.wait(far())
    assert disk.read == ["eve-0", "ana", "eve-1", "eve-2", "eve-3"]


def test_account_that_takes_the_time_of_the_disk_gets_a_twentieth_of_it() -> None:
    """A server that starts again and again, each time with another model that takes 5 s."""
    with reader_of(seconds=5.0) as (reader, disk, clock):
        for number in range(2000):
            reader.size(query(number), EVE)
            reader.wait(far())
            clock.now += 5.0
        most = MAX_BUSY_SECONDS + clock.now * BUSY_RATIO + 5.0
        assert 100 < len(disk.read) <= most / 5.0
        assert read_now(reader, query("ana"), ANA) == SIZES


def test_account_that_waited_is_read_when_asked_again() -> None:
    with reader_of(seconds=MAX_BUSY_SECONDS) as (reader, disk, clock):
        assert read_now(reader, query("a"), EVE) == SIZES
        assert read_now(reader, query("b"), EVE) is None
        clock.now += 1.0
        assert read_now(reader, query("b"), EVE) == SIZES
    assert disk.read == ["a", "b"]


@pytest.mark.parametrize(("accounts", "most"), [((EVE,), MAX_WAITING_OF_ACCOUNT), ((ANA, BEN, EVE), MAX_WAITING)])
def test_models_that_wait_are_few(accounts: tuple[int, ...], most: int) -> None:
    with reader_of(is_held=True) as (reader, disk, _):
        for number in range(100):
            for account in accounts:
                reader.size(query((account, number)), account)
        disk.released.set()
        reader.wait(far())
    assert len(disk.read) == most


def test_sizes_that_no_server_takes_are_dropped() -> None:
    with reader_of() as (reader, _, _):
        for number in range(MAX_DONE + 1):
            reader.size(query(number), ANA)
            reader.wait(far())
        assert reader.size(query(MAX_DONE), ANA) == SIZES
        assert reader.size(query(0), ANA) is None


def test_defect_costs_one_model(caplog: pytest.LogCaptureFixture) -> None:
    def read(asked: ModelQuery) -> ModelSizes:
        if asked == query("bad"):
            raise ZeroDivisionError
        return SIZES

    reader = ModelReader(read)
    assert read_now(reader, query("bad"), ANA) == ModelSizes()
    assert read_now(reader, query("good"), ANA) == SIZES
    assert "Defect while a model was read" in caplog.text


def test_reader_without_a_thread_tries_again() -> None:
    reader = ModelReader(lambda _: SIZES)
    with no_threads():
        assert [reader.size(query("a"), ANA) for _ in range(3)] == [None] * 3
    assert reader.size(query("a"), ANA) is None  # starts the thread
    reader.wait(far())
    assert reader.size(query("a"), ANA) == SIZES
