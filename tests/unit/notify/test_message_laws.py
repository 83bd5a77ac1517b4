"""Test that a message which contradicts itself breaks a law of messages, and a right one none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.alerts.notification import GROUPED, Notification
from memwatch_monitor.notify.channel import build_title
from support.generated.message_laws import complaints_about_message
from support.sample_snapshots import critical_gb10
from support.webhook_samples import notice

FIRES, HELD = notice(), replace(notice(), level_now=Level.LOW, repeated=True)
ENDS = replace(notice(firing=False), level=Level.LOW, level_now=Level.LOW)


@pytest.mark.parametrize(
    ("message", "is_right"),
    [
        (FIRES, True),
        (HELD, True),
        (ENDS, True),
        (replace(FIRES, level=Level.LOW), False),
        (replace(HELD, level=Level.LOW), False),
        (replace(FIRES, rule="pressure.high", event="pressure.high", level=Level.HIGH), False),
        (replace(ENDS, level=Level.CRITICAL), False),
        (replace(ENDS, level=Level.CRITICAL, level_now=Level.CRITICAL), False),
        (replace(ENDS, event="pressure.critical"), False),
    ],
    ids=["fires", "held", "ends", "low", "held low", "below its target", "ends high", "ends critical", "no end"],
)
def test_message_that_contradicts_itself_breaks_a_law(message: Notification, is_right: bool) -> None:
    assert (list(complaints_about_message(message, critical_gb10())) == []) is is_right


def test_number_of_events_is_in_the_title() -> None:
    killed = replace(notice(target="kernel", rule="kernel.oom_kill"), fact=True, level=None, level_now=None)
    count = Reason(GROUPED, "12 more events in the last 10 min")

    title = build_title(replace(killed, reasons=(count, *killed.reasons)), critical_gb10())

    assert title == "spark-1: the OOM killer killed a process (kernel): 12 more events in the last 10 min"
