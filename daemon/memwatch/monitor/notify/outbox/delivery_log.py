"""Log of the latest deliveries to one receiver, in memory. Pure data structure without locks or clocks."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

MAX_DELIVERIES = 50


class Delivery(Struct, frozen=True):
    """Last attempt to deliver a message.

    `seq`, `id`, `alert`, `kind`: those of the message. `result`: an outcome. `attempts`: number since memwatchd
    started. `status`: HTTP status, None without a response. `failure`: empty after a success. `unix`: end of the
    attempt, None before the first one.
    """

    seq: int
    id: str
    alert: str
    kind: str
    result: str
    attempts: int
    status: int | None = None
    failure: str = ""
    unix: float | None = None


class DeliveryLog:
    """The last attempt of each of the `max_deliveries` messages that were attempted last."""

    def __init__(self, max_deliveries: int = MAX_DELIVERIES) -> None:
        self._max_deliveries = max_deliveries
        self._by_seq: dict[int, Delivery] = {}

    def record(self, delivery: Delivery) -> None:
        """Add an attempt in place of an earlier one of the same message."""
        self._by_seq.pop(delivery.seq, None)
        self._by_seq[delivery.seq] = delivery
        if len(self._by_seq) > self._max_deliveries:
            del self._by_seq[next(iter(self._by_seq))]

    def end(self, seq: int, result: str) -> None:
        """Set the result of a message that gets no further attempt. Does nothing for one without an attempt."""
        if seq in self._by_seq:
            self._by_seq[seq] = replace(self._by_seq[seq], result=result)

    def find(self, seq: int) -> Delivery | None:
        return self._by_seq.get(seq)

    def latest(self) -> list[Delivery]:
        """Return the deliveries, the latest attempt first."""
        return list(reversed(self._by_seq.values()))
