"""Test that a memoized rule returns its earlier result for identical objects only."""

from __future__ import annotations

import threading

from memwatch.core.accounting.memoize import memoize


class Rule:
    """Sum of lengths that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *given: list[int]) -> int:
        self.calls += 1
        return sum(map(len, given))


def test_identical_objects_are_computed_once() -> None:
    """Equal objects are not identical, and neither are fewer, more, or the same in another order."""
    rule = Rule()
    add = memoize(rule)
    one, two = [1], [1, 2]

    assert [add(one, two), add(one, two)] == [3, 3]
    assert rule.calls == 1
    for at, given in enumerate(((one,), (one, two), (two, one), (one, two, two), (one, list(two)), ()), 2):
        assert add(*given) == sum(map(len, given))
        assert rule.calls == at


def test_failed_call_is_repeated() -> None:
    """The earlier result stays cached."""
    add = memoize(lambda one: 10 // len(one))
    good: list[int] = [1]

    assert add(good) == 10
    for _ in range(2):
        try:
            add([])
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert add(good) == 10


def test_keyword_arguments_are_not_cached() -> None:
    """Keyword arguments do not identify a position, so such calls are never cached."""
    made = memoize(lambda one, two=0: (one, two))

    assert [made(1, two=2), made(1), made(1, two=3), made(1)] == [(1, 2), (1, 0), (1, 3), (1, 0)]


def test_threads_do_not_share_results() -> None:
    """Each thread gets the result for its arguments, however calls interleave."""
    add = memoize(lambda given: len(given))
    wrong: list[int] = []

    def check(given: list[int]) -> None:
        wrong.extend(found for _ in range(2000) if (found := add(given)) != len(given))

    threads = [threading.Thread(target=check, args=([0] * length,)) for length in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
