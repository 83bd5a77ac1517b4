"""Test that each value is read by the newest NVML call that works, and unsupported calls are not repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memwatch.core.drivers.nvml.records import HANDLE_GONE, Code, NvmlError, Query, absent_reason, build_failure
from memwatch.core.model import Absent
from memwatch.core.runtime.worker import Backoff


class Script:
    """Fake NVML call that returns its answers in turn, raises codes, and counts its calls."""

    def __init__(self, *answers: int | Code) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Code):
            raise NvmlError(answer)
        return answer


@pytest.mark.parametrize("code", [Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED])
def test_older_call_is_used_if_the_newest_is_unknown(code: Code) -> None:
    """The older form is tried at once and kept; the code of the newer one is recorded as evidence."""
    codes: dict[str, int] = {}
    new, old = Script(code), Script(1, 2)
    question: Query[int] = Query(codes, ("v2", new), ("v1", old))

    assert [question.ask(), question.ask()] == [1, 2]

    assert (new.calls, old.calls, codes) == (1, 2, {"v2": code})


def test_unsupported_call_is_made_once() -> None:
    """NOT_SUPPORTED is a property of the device: no older form is tried, and no second call made."""
    codes: dict[str, int] = {}
    new, old = Script(Code.NOT_SUPPORTED), Script()
    question: Query[int] = Query(codes, ("v2", new), ("v1", old))

    assert [question.ask(), question.ask()] == [Absent.NOT_SUPPORTED] * 2

    assert (new.calls, old.calls, codes) == (1, 0, {"v2": 3})


def test_call_missing_in_every_form_is_not_supported() -> None:
    """If no form exists, the value is not supported."""
    question: Query[int] = Query({}, ("v1", Script(Code.FUNCTION_NOT_FOUND)))

    assert [question.ask(), question.ask()] == [Absent.NOT_SUPPORTED] * 2


def test_transient_error_is_retried_and_cleared() -> None:
    """An error leaves its reason and its code while it lasts."""
    codes: dict[str, int] = {}
    question: Query[int] = Query(codes, ("v1", Script(Code.UNKNOWN, Code.NO_PERMISSION, 5)))

    assert (question.ask(), dict(codes)) == (Absent.NOT_AVAILABLE, {"v1": 999})
    assert (question.ask(), dict(codes)) == (Absent.NOT_PERMITTED, {"v1": 4})
    assert (question.ask(), codes) == (5, {})


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND, Code.UNINITIALIZED])
def test_error_of_the_whole_gpu_is_raised(code: Code) -> None:
    """Such an error is handled by the caller, for the GPU as a whole."""
    question: Query[int] = Query({}, ("v1", Script(code)))

    with pytest.raises(NvmlError) as raised:
        question.ask()

    assert raised.value.code == code


def test_invalid_argument_is_fatal_only_if_requested() -> None:
    """INVALID_ARGUMENT may concern another argument than the handle, so the caller decides."""
    refuse: Callable[[], int] = Script(Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT)
    assert Query({}, ("v1", refuse)).ask() is Absent.NOT_AVAILABLE

    with pytest.raises(NvmlError):
        Query({}, ("v1", refuse), fatal=HANDLE_GONE).ask()


def test_unknown_code_is_not_available() -> None:
    """Future drivers will have more codes."""
    assert absent_reason(4711) is Absent.NOT_AVAILABLE
    assert build_failure(4711).reason == "failed"


def test_backoff_grows_while_attempts_fail() -> None:
    """At once, then after 10, 20, 40, 60 and 60 seconds."""
    backoff, now, waited = Backoff(10, max_seconds=60), 1000.0, []
    assert backoff.is_due(now)

    for _ in range(5):
        backoff.failed(now)
        pause = next(seconds for seconds in range(200) if backoff.is_due(now + seconds))
        waited.append(pause)
        now += pause

    assert waited == [10, 20, 40, 60, 60]


def test_backoff_is_reset_after_a_success() -> None:
    """The next attempt keeps the wait that was set; the one after it waits 10 seconds again."""
    backoff = Backoff(10)
    for now in (0.0, 10.0, 30.0):
        backoff.failed(now)

    backoff.reset()

    assert not backoff.is_due(69)
    backoff.failed(70)
    assert backoff.is_due(80)
