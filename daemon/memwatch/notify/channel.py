"""How one receiver is told: what it is sent, and what came of sending it. Webhooks; the others are beside."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from memwatch.alerts.state import Notice
from memwatch.notify.http_post import Answer, Clock, Poster
from memwatch.notify.webhook_payload import Endpoint, Secret, body_of, headers_of
from memwatch.snapshot import Snapshot

if TYPE_CHECKING:
    import ssl


class Reminder(Struct, frozen=True):
    """What fires is said again every `seconds`, all bodies at once: some receivers forget."""

    seconds: float
    send: Callable[[Sequence[bytes]], Answer]


class Channel(Protocol):
    """One way to one receiver. Whatever it needs exists when it is made; `send` is called by one thread only.

    `kind` is a word for readers. `title` names it in the log, without anything secret. `reminder` is None where
    telling once is enough.
    """

    kind: str
    title: str
    reminder: Reminder | None

    def prepare(self) -> None:
        """Once, in the thread that sends: load what would otherwise be loaded for the first message."""
        ...

    def body(self, notice: Notice, snapshot: Snapshot, dashboard_url: str | None) -> bytes:
        """What is sent, the same at every attempt."""
        ...

    def send(self, message_id: str, body: bytes) -> Answer:
        """One attempt. It never raises, and ends in its own time."""
        ...

    def abort(self) -> None:
        """End the attempt under way, from another thread."""
        ...


class WebhookChannel:
    """A POST signed as Standard Webhooks."""

    kind = "webhook"
    reminder: Reminder | None = None

    def __init__(
        self, name: str, endpoint: Endpoint, secret: Secret, poster: Poster, wall: Clock = time.time
    ) -> None:
        self.title = f"webhook {name} ({endpoint.origin})"
        self._secret = secret
        self._poster = poster
        self._wall = wall

    def prepare(self) -> None:
        self._poster.prepare()

    def body(self, notice: Notice, snapshot: Snapshot, dashboard_url: str | None) -> bytes:
        return body_of(notice, snapshot, dashboard_url)

    def send(self, message_id: str, body: bytes) -> Answer:
        return self._poster.post(headers_of(self._secret, message_id, int(self._wall()), body), body)

    def abort(self) -> None:
        self._poster.abort()


def context_for(endpoint: Endpoint) -> ssl.SSLContext | None:
    """TLS that checks certificate and name. Imported here: without an https receiver it would cost 4.5 MiB."""
    if endpoint.scheme != "https":
        return None
    import ssl

    return ssl.create_default_context()
