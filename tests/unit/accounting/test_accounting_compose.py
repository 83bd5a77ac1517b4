"""Test that findings are composed once, again after a failure, and that rules keep results of identical objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from memwatch.core.accounting import memoize
from memwatch.core.accounting.compose import Composer
from memwatch.core.findings import Findings
from memwatch.core.model import Pool
from memwatch.core.snapshot import Machine
from support.fakes import GIB, ram


class Pools(tuple[Pool, ...]):
    """Pools that raise MemoryError on the first iteration."""

    __slots__ = ()
    left: ClassVar = [1]

    def __iter__(self) -> Iterator[Pool]:
        if self.left:
            self.left.pop()
            raise MemoryError
        return super().__iter__()


def test_findings_are_composed_again_after_a_memory_error() -> None:
    """Unchanged findings are not composed again, except after a tick that failed."""
    composer, machine = Composer(), Machine("workbench")
    findings = [Findings(pools=Pools([ram(GIB)])), Findings(machine=machine, cgroup_oom_kills_total=3)]

    with pytest.raises(MemoryError):
        composer.compose(findings)
    composed = [composer.compose(findings) for _ in range(2)]

    assert [one.pools for one in composed] == [(ram(GIB),)] * 2
    assert [(one.machine, one.cgroup_oom_kills_total) for one in composed] == [(machine, 3)] * 2


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
