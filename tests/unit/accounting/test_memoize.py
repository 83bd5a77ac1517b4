"""A rule that is given the very same objects answers with what it made before, and with nothing else."""

from __future__ import annotations

import threading

from memwatch.accounting.memoize import remembered


class Rule:
    """Adds lengths up, and counts how often it had to."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *given: list[int]) -> int:
        self.asked += 1
        return sum(map(len, given))


def test_the_same_objects_are_made_once() -> None:
    """Equal ones are not the same, and neither are fewer, more, or the same in another order."""
    rule = Rule()
    add = remembered(rule)
    one, two = [1], [1, 2]

    assert [add(one, two), add(one, two)] == [3, 3]
    assert rule.asked == 1
    for at, given in enumerate(((one,), (one, two), (two, one), (one, two, two), (one, list(two)), ()), 2):
        assert add(*given) == sum(map(len, given))
        assert rule.asked == at


def test_what_fails_is_tried_again() -> None:
    """And what was made before that is still remembered."""
    add = remembered(lambda one: 10 // len(one))
    good: list[int] = [1]

    assert add(good) == 10
    for _ in range(2):
        try:
            add([])
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert add(good) == 10


def test_by_name_nothing_is_remembered() -> None:
    """A name says nothing of the place."""
    made = remembered(lambda one, two=0: (one, two))

    assert [made(1, two=2), made(1), made(1, two=3), made(1)] == [(1, 2), (1, 0), (1, 3), (1, 0)]


def test_threads_get_what_is_their_own() -> None:
    """However they come between each other."""
    add = remembered(lambda given: len(given))
    wrong: list[int] = []

    def ask(given: list[int]) -> None:
        wrong.extend(found for _ in range(2000) if (found := add(given)) != len(given))

    threads = [threading.Thread(target=ask, args=([0] * length,)) for length in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
