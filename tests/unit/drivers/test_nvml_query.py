"""A figure is asked by the newest call that works, and what can never work is not asked again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memwatch.drivers.nvml.errors import HANDLE_GONE, Code, Refused, failure_of, reason_of
from memwatch.drivers.nvml.query import Question
from memwatch.model import Absent
from memwatch.runtime.backoff import Patience


class Script:
    """A call that answers, in turn, what it was given; codes are refusals. It counts how often it was made."""

    def __init__(self, *answers: int | Code) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Code):
            raise Refused(answer)
        return answer


@pytest.mark.parametrize("code", [Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED])
def test_an_older_call_answers_where_the_newest_is_unknown(code: Code) -> None:
    """The older form is found in the same breath, remembered, and the newer one's code is kept as evidence."""
    codes: dict[str, int] = {}
    new, old = Script(code), Script(1, 2)
    question: Question[int] = Question(codes, ("v2", new), ("v1", old))

    assert [question.ask(), question.ask()] == [1, 2]

    assert (new.calls, old.calls, codes) == (1, 2, {"v2": code})


def test_what_is_not_supported_is_asked_once() -> None:
    """NOT_SUPPORTED is a fact about the device: no older form is tried and no second time."""
    codes: dict[str, int] = {}
    new, old = Script(Code.NOT_SUPPORTED), Script()
    question: Question[int] = Question(codes, ("v2", new), ("v1", old))

    assert [question.ask(), question.ask()] == [Absent.NOT_SUPPORTED] * 2

    assert (new.calls, old.calls, codes) == (1, 0, {"v2": 3})


def test_a_call_that_no_library_has_is_not_supported() -> None:
    """When every form is unknown there is no such figure."""
    question: Question[int] = Question({}, ("v1", Script(Code.FUNCTION_NOT_FOUND)))

    assert [question.ask(), question.ask()] == [Absent.NOT_SUPPORTED] * 2


def test_a_passing_failure_is_asked_again_and_forgotten() -> None:
    """A refusal leaves its reason and its code for as long as it lasts."""
    codes: dict[str, int] = {}
    question: Question[int] = Question(codes, ("v1", Script(Code.UNKNOWN, Code.NO_PERMISSION, 5)))

    assert (question.ask(), dict(codes)) == (Absent.NOT_AVAILABLE, {"v1": 999})
    assert (question.ask(), dict(codes)) == (Absent.NOT_PERMITTED, {"v1": 4})
    assert (question.ask(), codes) == (5, {})


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND, Code.UNINITIALIZED])
def test_what_concerns_the_whole_gpu_is_not_the_answer_to_one_question(code: Code) -> None:
    """It is raised, for whoever looks after the GPU."""
    question: Question[int] = Question({}, ("v1", Script(code)))

    with pytest.raises(Refused) as raised:
        question.ask()

    assert raised.value.code == code


def test_a_handle_that_means_nothing_is_fatal_only_where_it_is_the_only_suspect() -> None:
    """INVALID_ARGUMENT may be about the question; the asker decides."""
    refuse: Callable[[], int] = Script(Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT)
    assert Question({}, ("v1", refuse)).ask() is Absent.NOT_AVAILABLE

    with pytest.raises(Refused):
        Question({}, ("v1", refuse), fatal=HANDLE_GONE).ask()


def test_a_code_nobody_has_heard_of_is_not_available() -> None:
    """Drivers to come will have more codes."""
    assert reason_of(4711) is Absent.NOT_AVAILABLE
    assert failure_of(4711).reason == "failed"


def test_patience_grows_while_trying_does_not_help() -> None:
    """At once, then after 10, 20, 40, 60, 60 seconds."""
    patience, now, waited = Patience(10, longest_seconds=60), 1000.0, []
    assert patience.is_over(now)

    for _ in range(5):
        patience.tried(now)
        pause = next(seconds for seconds in range(200) if patience.is_over(now + seconds))
        waited.append(pause)
        now += pause

    assert waited == [10, 20, 40, 60, 60]


def test_patience_is_short_again_after_all_was_well() -> None:
    """New trouble is tried for at the old distance, and never sooner."""
    patience = Patience(10)
    for now in (0.0, 10.0, 30.0):
        patience.tried(now)

    patience.helped()

    assert not patience.is_over(69)
    patience.tried(70)
    assert patience.is_over(80)
