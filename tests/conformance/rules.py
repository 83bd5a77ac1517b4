"""The verdict on each figure of a tool. Pure functions; README.md has the same rules in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from conformance.data import Figure, Other


class Verdict(Enum):
    RIGHT = "right"
    WRONG = "wrong"
    ABSENT = "absent"
    TWICE = "counted twice"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Answer:
    """Value in the unit of the figure. `step`: the unit in which the tool prints it, for rounding.

    `within`: the pool that the tool itself names as the one that these bytes are part of.
    """

    value: float
    step: float = 0.0
    within: str | None = None


@dataclass(frozen=True)
class Judged:
    """Verdict with the tool's value, and the reason where it is not right."""

    verdict: Verdict
    said: float | None = None
    why: str = ""


def judge_all(figures: Mapping[str, Figure], answers: Mapping[str, Answer]) -> dict[str, Judged]:
    """Return the verdict on every figure of the machine. Figures that only the tool has are not judged."""
    return {name: judge(figure, answers.get(name), answers) for name, figure in figures.items()}


def judge(figure: Figure, answer: Answer | None, all_answers: Iterable[str]) -> Judged:
    """Return the verdict on one figure. `all_answers`: the names of all figures that the tool has here."""
    if answer is None:
        return Judged(Verdict.ABSENT)
    if figure.value is None:
        return Judged(Verdict.WRONG, answer.value, f"not known: {figure.reason}")
    twice = _match(figure, answer, [one for one in figure.twice if _applies(one, answer, set(all_answers))])
    if twice is not None:
        return Judged(Verdict.TWICE, answer.value, twice.reason)
    if _match(figure, answer, [Other(figure.value, ""), *figure.also]) is not None:
        return Judged(Verdict.RIGHT, answer.value)
    known = _match(figure, answer, figure.wrong)
    return Judged(Verdict.WRONG, answer.value, known.reason if known else "no known figure of this machine")


def _applies(one: Other, answer: Answer, all_answers: set[str]) -> bool:
    """Return if bytes are counted twice: not if the tool names the pool, or has no figure with the same bytes."""
    return answer.within is None and (one.together_with is None or one.together_with in all_answers)


def _match(figure: Figure, answer: Answer, others: Iterable[Other]) -> Other | None:
    near = max(figure.tolerance, answer.step)
    return next((one for one in others if abs(one.value - answer.value) <= near), None)
