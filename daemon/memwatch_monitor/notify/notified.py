"""Notification of the state that a page shows: to which receivers it went, or would go. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from memwatch_monitor.alerts.rules import LEVELS
from memwatch_monitor.notify.status import AlertView, DeliveryRow, ReceiverRow


class Receipt(Struct, frozen=True):
    """A receiver. `state`: of the newest notification about the level; "idle" before one is sent.

    `reason`: of a failure, empty otherwise.
    """

    name: str
    state: Literal["delivered", "failed", "queued", "idle"]
    reason: str = ""


class Notified(Struct, frozen=True):
    """Receivers of the alerts about a level. `firing`: one of them fires. `unix`: the last delivery of it.

    `has_receivers`: any receiver exists, although none may be among `receipts`.
    """

    firing: bool
    unix: float | None
    receipts: tuple[Receipt, ...]
    has_receivers: bool


def find_notified(view: AlertView, target: str | None) -> Notified:
    """Return where alerts about the level of a target go, and which of the firing ones arrived."""
    rules = {
        one.rule for one in view.alerts if one.target == target and one.rule in LEVELS and one.state == "firing"
    }
    getting = [one for one in view.receivers if _gets(one, target, rules)]
    newest = [_find_newest(one.deliveries, target, rules) for one in getting]
    receipts = [_build_receipt(one, last) for one, last in zip(getting, newest, strict=True)]
    arrived = [last.unix for last in newest if last and last.result == "delivered" and last.unix is not None]
    return Notified(bool(rules), max(arrived, default=None), tuple(receipts), bool(view.receivers))


def _gets(receiver: ReceiverRow, target: str | None, rules: Iterable[str]) -> bool:
    wanted = set(rules) or set(LEVELS)
    return bool(wanted.intersection(receiver.events)) and (not receiver.targets or target in receiver.targets)


def _find_newest(deliveries: Iterable[DeliveryRow], target: str | None, rules: Iterable[str]) -> DeliveryRow | None:
    """Return the newest firing notification: the queued ones come first, then the last attempts."""
    wanted = set(rules)
    mine = (one for one in deliveries if one.kind == "firing" and one.target == target and one.rule in wanted)
    return next(mine, None)


def _build_receipt(receiver: ReceiverRow, last: DeliveryRow | None) -> Receipt:
    if receiver.disabled:
        return Receipt(receiver.name, "failed", "disabled")
    if last is None:
        return Receipt(receiver.name, "idle")
    if last.result == "delivered":
        return Receipt(receiver.name, "delivered")
    return Receipt(receiver.name, "failed" if last.failure else "queued", last.failure)
