"""Deliveries of the alerts about an incident, for its record. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from memwatch.reporting.incidents.records import Incident, Told, ToldResult
from memwatch_monitor.incidents.assemble import BEFORE_SECONDS
from memwatch_monitor.incidents.store import RECENT_SECONDS
from memwatch_monitor.notify.queue import Delivery

MAX_TOLD = 16
# Results of deliveries that say whether a receiver got the alert. One that was superseded was never to arrive.
RESULTS: Mapping[str, ToldResult] = {
    "delivered": "delivered",
    "queued": "waiting",
    "retry": "waiting",
    "gave_up": "failed",
    "disabled": "failed",
}


def update_told(one: Incident, receivers: Iterable[tuple[str, Sequence[Delivery]]]) -> tuple[Told, ...]:
    """Return the deliveries of an incident's record, brought up to date. `receivers`: names with their deliveries,
    newest first. A receiver that is gone keeps what is recorded. Of more than MAX_TOLD the first ones stay, so that
    a second call changes nothing."""
    found = {(told.receiver, told.rule): told for told in one.told or ()}
    for name, deliveries in receivers:
        for told in reversed(list(_list_told(one, name, deliveries))):
            found[told.receiver, told.rule] = told
    return tuple(found.values())[:MAX_TOLD]


def _list_told(one: Incident, receiver: str, deliveries: Iterable[Delivery]) -> Iterator[Told]:
    for delivery in deliveries:
        rule, _, rest = delivery.alert.partition(" ")
        is_about = rest.partition(" ")[0] == one.target and delivery.kind in ("firing", "fact")
        if is_about and delivery.result in RESULTS and _is_within(one, delivery.unix):
            yield Told(receiver, rule, delivery.unix, RESULTS[delivery.result], delivery.failure)


def _is_within(one: Incident, unix: float | None) -> bool:
    if unix is None:
        return one.ended is None
    return one.began - BEFORE_SECONDS <= unix <= (unix if one.ended is None else one.ended + RECENT_SECONDS)
