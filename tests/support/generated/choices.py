"""Source of a generated machine: a sequence of numbers that Hypothesis draws, that is random, or that is replayed.

A generator makes every decision with `Choices.below`, and 0 always is its simplest one. So a recorded sequence
can be shortened and lowered while the machine that it makes still fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(ABC):
    """Decisions of a generator."""

    @abstractmethod
    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1."""

    def integer(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def pick(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def many(self, most: int, build: Callable[[int], T]) -> list[T]:
        return [build(number) for number in range(self.below(most + 1))]


class RandomChoices(Choices):
    """Random decisions, which are recorded."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        taken = int(self._random() * count)
        self.taken.append(taken)
        return taken


class ReplayedChoices(Choices):
    """Recorded decisions. Behind their end, each is the simplest."""

    def __init__(self, recorded: Sequence[int]) -> None:
        self._recorded = iter(recorded)

    def below(self, count: int) -> int:
        return min(next(self._recorded, 0), count - 1)


class DrawnChoices(Choices):
    """Decisions that Hypothesis draws and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def below(self, count: int) -> int:
        return self._draw(_numbers(count)) if count > 1 else 0


@lru_cache
def _numbers(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


def generated(make: Callable[[Choices], T]) -> st.SearchStrategy[T]:
    """Return the strategy of a generator."""

    @st.composite
    def build(draw: st.DrawFn) -> T:
        return make(DrawnChoices(draw))

    return build()


def shrink(recorded: Sequence[int], fails: Callable[[Sequence[int]], bool], tries: int = 4000) -> list[int]:
    """Return a shorter or lower sequence that still fails."""
    kept, left = list(recorded), tries
    changed = True
    while changed and left > 0:
        changed = False
        for simpler in _simpler(kept):
            left -= 1
            if simpler != kept and fails(simpler):
                kept, changed = simpler, True
                break
            if left <= 0:
                break
    return kept


def _simpler(kept: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    size = len(kept)
    while size:
        for start in range(0, len(kept), size):
            end = start + size
            found.append([*kept[:start], *kept[end:]])
            if any(kept[start:end]):
                found.append([*kept[:start], *[0] * len(kept[start:end]), *kept[end:]])
        size //= 2
    for at, value in enumerate(kept):
        found += [[*kept[:at], lower, *kept[at + 1 :]] for lower in dict.fromkeys((value // 2, value - 1)) if value]
    return found
