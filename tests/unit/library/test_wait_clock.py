"""Test how long `wait_for` waits, by a clock that only the wait itself moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memwatch.core.model import Absent, Bytes
from memwatch.library.wait import Check, wait_until_free
from support.fakes import GIB, FakeClock

TOTAL = 64 * GIB
UNKNOWN = Absent.NOT_AVAILABLE


class Wait:
    """A wait for 8 GiB with a manual clock. `room`: what is left, by the second since its start."""

    def __init__(self, room: Callable[[float], Bytes], total: int = TOTAL) -> None:
        self.room, self.total = room, total
        self.clock = FakeClock()
        self.began = self.clock.now
        self.checks: list[float] = []

    def run(self, interval: float = 1.0, timeout: float | None = None, need: int = 8 * GIB) -> bool:
        return wait_until_free(need, self._check, interval, self.began, timeout, self.clock.monotonic, self._sleep)

    def _check(self) -> Check:
        self.checks.append(self.clock.now - self.began)
        assert len(self.checks) < 10_000, "the wait does not end"
        return Check(self.room(self.checks[-1]), self.total)

    def _sleep(self, seconds: float) -> None:
        self.clock.now += seconds


def test_wait_ends_with_the_first_check_that_finds_room() -> None:
    wait = Wait(lambda second: 8 * GIB if second >= 3 else 8 * GIB - 1)

    assert wait.run()
    assert wait.checks == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("room", "has_room", "last"),
    [
        (lambda _second: UNKNOWN, False, 61.0),
        # The driver answers once, half a minute after the start.
        (lambda second: GIB if second == 30 else UNKNOWN, False, 91.0),
        (lambda second: 9 * GIB if second >= 60 else UNKNOWN, True, 60.0),
    ],
    ids=["never known", "known once", "known in time"],
)
def test_headroom_that_is_unknown_for_a_minute_ends_the_wait(
    room: Callable[[float], Bytes], has_room: bool, last: float
) -> None:
    """Without a timeout, in a training script, it would last for ever."""
    wait = Wait(room)

    assert wait.run() is has_room
    assert wait.checks[-1] == last


def test_known_headroom_is_waited_for_without_end() -> None:
    """Two days, with no timeout."""
    wait = Wait(lambda second: 9 * GIB if second >= 172_800 else GIB)

    assert wait.run(interval=60.0)


@pytest.mark.parametrize(("timeout", "last"), [(0.0, 0.0), (0.9, 0.0), (1.0, 1.0), (2.5, 2.0)])
def test_no_check_begins_after_the_timeout(timeout: float, last: float) -> None:
    """Also one that would begin after it is left out, instead of sleeping in vain."""
    wait = Wait(lambda _second: GIB)

    assert not wait.run(timeout=timeout)
    assert wait.checks[-1] == last


@pytest.mark.parametrize(("need", "checks"), [(TOTAL, 3), (TOTAL + 1, 1)])
def test_more_than_the_total_is_not_waited_for(need: int, checks: int) -> None:
    wait = Wait(lambda _second: GIB)

    assert not wait.run(need=need, timeout=2.0)
    assert len(wait.checks) == checks
