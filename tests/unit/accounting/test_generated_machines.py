"""Test that the laws of the accounting hold on generated machines of every maker, with drivers that report wrong
figures or none.

`make machines` checks many more. `test_broken_laws` has the machines that broke a law once.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from support.generated.choices import RandomChoices, ReplayedChoices, generated, shrink
from support.generated.laws import check_machine
from support.generated.machine import GeneratedMachine, draw_machine


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(generated(draw_machine))
def test_generated_machine_keeps_every_law(machine: GeneratedMachine) -> None:
    """Pools are disjoint, parts within their whole, and no unknown figure is 0; so in JSON and in the metrics."""
    check_machine(machine)


def test_recorded_choices_build_the_same_machine() -> None:
    """A violation can be repeated from its choices, or from its seed."""
    choices = RandomChoices(7)

    assert draw_machine(choices) == draw_machine(RandomChoices(7)) == draw_machine(ReplayedChoices(choices.taken))


def test_shrunk_choices_are_short_and_still_fail() -> None:
    recorded = [5, 0, 9, 3, 80, 2]

    assert shrink(recorded, lambda choices: any(one > 70 for one in choices)) == [71]
