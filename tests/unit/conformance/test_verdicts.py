"""Verdicts of the conformance suite, both sides of each rule."""

from __future__ import annotations

import pytest

from conformance.data import Figure, Other, parse_figure
from conformance.rules import Answer, Verdict, judge, judge_all

GIB = 1 << 30


def figure(value: float | None = 100 * GIB, **more: object) -> Figure:
    return parse_figure({"value": value, "unit": "bytes", "tolerance": 0, "reason": "", "source": "", **more})


def verdict(one: Figure, answer: Answer | None, *others: str) -> Verdict:
    return judge(one, answer, others).verdict


@pytest.mark.parametrize(
    ("said", "expected"), [(100 * GIB, Verdict.RIGHT), (100 * GIB + 1, Verdict.WRONG), (0, Verdict.WRONG)]
)
def test_value_is_compared_exactly_without_a_tolerance(said: float, expected: Verdict) -> None:
    assert verdict(figure(), Answer(said)) is expected


def test_figure_that_a_tool_does_not_claim_is_absent() -> None:
    assert verdict(figure(), None) is Verdict.ABSENT
    assert verdict(figure(None), None) is Verdict.ABSENT


def test_zero_for_a_value_that_is_not_known_is_wrong() -> None:
    assert verdict(figure(None), Answer(0)) is Verdict.WRONG


def test_rounding_of_the_tool_widens_the_tolerance_and_nothing_more() -> None:
    one = figure(tolerance=10)

    assert verdict(one, Answer(100 * GIB + 10)) is Verdict.RIGHT
    assert verdict(one, Answer(100 * GIB + 11)) is Verdict.WRONG
    assert verdict(one, Answer(99.9 * GIB, step=0.1 * GIB)) is Verdict.RIGHT
    assert verdict(one, Answer(99.8 * GIB, step=0.1 * GIB)) is Verdict.WRONG


def test_every_published_formula_is_right() -> None:
    one = figure(also=[{"value": 7, "reason": "another"}])

    assert verdict(one, Answer(7)) is Verdict.RIGHT
    assert verdict(one, Answer(8)) is Verdict.WRONG


def test_sum_of_the_same_bytes_is_counted_twice() -> None:
    one = figure(twice=[{"value": 200 * GIB, "reason": "added"}])

    judged = judge(one, Answer(200 * GIB), ["gpu0.used"])

    assert (judged.verdict, judged.why) == (Verdict.TWICE, "added")
    assert verdict(one, Answer(100 * GIB)) is Verdict.RIGHT


def test_size_of_ram_as_that_of_a_gpu_is_counted_twice_only_beside_ram_and_without_its_name() -> None:
    twice = [{"value": 100 * GIB, "reason": "again", "together_with": "ram.size"}]
    one = figure(within="ram", twice=twice)

    assert verdict(one, Answer(100 * GIB), "ram.size", "gpu0.size") is Verdict.TWICE
    assert verdict(one, Answer(100 * GIB, within="ram"), "ram.size", "gpu0.size") is Verdict.RIGHT
    assert verdict(one, Answer(100 * GIB), "gpu0.size") is Verdict.RIGHT


def test_known_mistake_is_explained_and_an_unknown_one_is_said_to_be_unknown() -> None:
    one = figure(wrong=[{"value": 5, "reason": "page cache counted"}])

    assert judge(one, Answer(5), []).why == "page cache counted"
    assert judge(one, Answer(6), []).why == "no known figure of this machine"


def test_every_figure_of_a_machine_gets_a_verdict_and_others_of_the_tool_none() -> None:
    judged = judge_all({"ram.size": figure(), "gpu0.used": figure()}, {"ram.size": Answer(1), "cpu": Answer(2)})

    assert {key: one.verdict for key, one in judged.items()} == {
        "ram.size": Verdict.WRONG,
        "gpu0.used": Verdict.ABSENT,
    }
    assert isinstance(figure(also=[{"value": 1, "reason": ""}]).also[0], Other)
