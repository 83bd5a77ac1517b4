"""Test that the laws of alerts hold in generated histories: hung sources, liars, kill loops, restarts at any point.

`make alert-laws` checks many more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import AlertRules
from support.generated.alert_history import EVENTS, Act, Plan, Run, Step, Told, draw_plan
from support.generated.alert_laws import check_history, complaints_about
from support.generated.choices import RandomChoices, ReplayedChoices

HISTORIES = 250


def test_generated_histories_keep_every_law() -> None:
    """Seeds from 0 on: `make alert-laws COUNT=250` shows a violation in small."""
    for seed in range(HISTORIES):
        check_history(draw_plan(RandomChoices(seed)))


def test_recorded_choices_make_the_same_history() -> None:
    """A violation can be repeated from its choices, or from its seed."""
    choices = RandomChoices(7)

    assert draw_plan(choices) == draw_plan(RandomChoices(7)) == draw_plan(ReplayedChoices(choices.taken))


def plan_of(*acts: tuple[Act, int]) -> Plan:
    """Return a history of changes with this many seconds after each."""
    return Plan(AlertRules(events=EVENTS), tuple(Step(act, (1.0,) * seconds) for act, seconds in acts))


class ForgetfulRun(Run):
    """A daemon that does not send some notifications."""

    def __init__(self, plan: Plan, is_lost: Callable[[Notification], bool]) -> None:
        self._is_lost = is_lost
        super().__init__(plan)

    def tick(self, is_written: bool = True, is_sent: bool = True) -> Told:
        told = super().tick(is_written, is_sent)
        return replace(told, notifications=tuple(one for one in told.notifications if not self._is_lost(one)))


class DeafRun(Run):
    """A receiver to which nothing is sent."""

    def deliver(self) -> None:
        pass


KILL, FLOOR, HANG = Act("ram", 0, 1), Act("ram", 3, 2), Act("hang")


@pytest.mark.parametrize(
    ("acts", "is_lost", "law"),
    [
        ([(KILL, 10), (FLOOR, 60)], lambda one: bool(one.new_reasons), "news: ('pressure.critical', 'ram')"),
        ([(Act("ram", 3), 3), (HANG, 20)], lambda one: one.firing, "due: ('pressure.critical', 'ram')"),
        ([(FLOOR, 5), (HANG, 60)], lambda one: one.rule == "collector.failed", "due: ('collector.failed'"),
        ([(Act("die"), 60)], lambda one: one.rule == "neighbour.silent", "due: ('neighbour.silent', 'b')"),
        ([(Act("kill"), 5)], lambda one: one.fact, "kills: a notification is due"),
    ],
    ids=["news", "pending", "collector", "neighbour", "kill"],
)
def test_daemon_that_loses_a_notification_breaks_a_law(
    acts: list[tuple[Act, int]], is_lost: Callable[[Notification], bool], law: str
) -> None:
    plan = plan_of(*acts)

    assert list(complaints_about(plan)) == []
    assert law in next(complaints_about(plan, ForgetfulRun(plan, is_lost)))


def test_receiver_that_gets_nothing_breaks_a_law() -> None:
    plan = plan_of((KILL, 10))

    assert "delivery: 2 notifications never arrive" in list(complaints_about(plan, DeafRun(plan)))[-1]


def test_alert_that_ends_after_a_crash_is_reported_as_ended() -> None:
    """It is delivered, the daemon ends before that is saved, and the receiver refuses until the alert is over."""
    check_history(plan_of((FLOOR, 1), (Act("restart"), 0), (Act("receiver", 1), 0), (Act("ram"), 200)))


def test_alert_that_fires_during_a_silence_has_to_fire_for_its_time() -> None:
    """It fires for 2 min from its start on, which nothing notified: the last notification is of an earlier time."""
    calm, silence, no_damping = Act("ram"), Act("silence", 2), Act("reload", 1)
    plan = plan_of((no_damping, 1), (KILL, 2), (silence, 1), (calm, 150), (KILL, 1), (calm, 130))

    assert list(complaints_about(plan)) == []


@pytest.mark.parametrize(
    ("times", "law"),
    [
        ({"keep_firing_seconds": 119.0}, "has not been over for its time and ends"),
        ({"keep_firing_seconds": 121.0}, "has been over for long and still fires"),
        ({"keep_firing_seconds": 0.0, "resolve_seconds": 59.0}, "has not been over for its time and ends"),
        ({"keep_firing_seconds": 0.0, "resolve_seconds": 141.0}, "has been over for long and still fires"),
    ],
    ids=["fires too briefly", "fires too long", "ends too early", "ends too late"],
)
def test_daemon_that_ends_an_alert_at_another_time_breaks_a_law(times: dict[str, float], law: str) -> None:
    plan = plan_of((FLOOR, 20), (Act("ram"), 170))
    other = replace(plan.rules, **times)

    assert list(complaints_about(plan)) == []
    assert law in next(complaints_about(plan, Run(replace(plan, rules=other))))


def test_daemon_that_does_not_damp_a_returning_alert_breaks_a_law() -> None:
    """It returned within 5 min, and so has to be clear for 5 min."""
    calm = Act("ram")
    plan = plan_of((FLOOR, 1), (calm, 130), (FLOOR, 1), (calm, 310))
    hasty = replace(plan.rules, again_seconds=0.0)

    assert list(complaints_about(plan)) == []
    assert "has not been over for its time and ends" in next(
        complaints_about(plan, Run(replace(plan, rules=hasty)))
    )


def test_last_word_of_a_machine_delays_until_that_machine_is_silent_itself() -> None:
    """Another machine reports that it receives the silent one, and dies. Words that it would have are no words."""
    claims_up, claims_nothing = Act("claim", 0, 0), Act("claim", 0, 5)
    plan = plan_of((claims_up, 1), (Act("die"), 3), (Act("liar_dies"), 2), (claims_nothing, 30))

    assert list(complaints_about(plan)) == []
