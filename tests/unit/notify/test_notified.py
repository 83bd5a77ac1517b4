"""Receivers of the alerts about a level, and whether the firing one reached them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.reporting.answers import AlertRow
from memwatch_monitor.notify.status import AlertView, DeliveryRow, Receipt, ReceiverRow, find_notified

OUTCOMES = {"delivered": 1, "retry": 0, "gave_up": 0, "disabled": 0, "superseded": 0}
FIRING = AlertRow("ram", "pressure.critical", "critical", "firing", 100.0, False, ())


def delivery(result: str, failure: str = "", unix: float | None = 110.0, kind: str = "firing") -> DeliveryRow:
    return DeliveryRow("ops", "msg_1", "pressure.critical", "ram", kind, result, 1, None, failure, unix, None)


def receiver(name: str, *deliveries: DeliveryRow, events: tuple[str, ...] = ("pressure.critical",)) -> ReceiverRow:
    return ReceiverRow(name, "webhook", name, events, (), False, 0, OUTCOMES, "", None, None, deliveries)


@pytest.mark.parametrize(
    ("deliveries", "receipt", "unix"),
    [
        ((delivery("delivered"),), Receipt("ops", "delivered"), 110.0),
        ((delivery("retry", "answered 503"),), Receipt("ops", "failed", "answered 503"), None),
        ((delivery("queued", unix=None),), Receipt("ops", "queued"), None),
        ((), Receipt("ops", "idle"), None),
        ((delivery("delivered", kind="resolved"),), Receipt("ops", "idle"), None),
        ((replace(delivery("delivered"), target="gpu0"),), Receipt("ops", "idle"), None),
    ],
    ids=("arrived", "failed", "waits", "nothing sent", "of an earlier alert", "of another pool"),
)
def test_receiver_of_a_firing_alert_shows_its_newest_notification(
    deliveries: tuple[DeliveryRow, ...], receipt: Receipt, unix: float | None
) -> None:
    found = find_notified(AlertView((FIRING,), receivers=(receiver("ops", *deliveries),)), "ram")

    assert (found.firing, found.receipts, found.unix) == (True, (receipt,), unix)


def test_disabled_receiver_is_failed_even_after_a_delivery() -> None:
    disabled = replace(receiver("ops", delivery("delivered")), disabled=True)

    assert find_notified(AlertView((FIRING,), receivers=(disabled,)), "ram").receipts[0].state == "failed"


def test_receivers_of_other_events_and_targets_are_left_out() -> None:
    """They exist, so that the page does not say that no receiver does."""
    others = (receiver("kills", events=("kernel.oom_kill",)), replace(receiver("gpus"), targets=("gpu0",)))

    found = find_notified(AlertView((FIRING,), receivers=others), "ram")

    assert (found.receipts, found.has_receivers) == ((), True)


def test_receivers_are_named_while_nothing_fires() -> None:
    pending = replace(FIRING, state="pending", since_unix=None)
    found = find_notified(AlertView((pending,), receivers=(receiver("ops", delivery("delivered")),)), "ram")

    assert (found.firing, found.unix, found.receipts) == (False, None, (Receipt("ops", "idle"),))
    assert find_notified(AlertView(), "ram").has_receivers is False
