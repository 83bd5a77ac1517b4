"""Channels, which deliver notifications to one receiver. Webhooks; other kinds have their own modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.state import Notification
from memwatch.monitor.notify.http_post import Poster, PostResult, WallClock
from memwatch.monitor.notify.sender import Sender
from memwatch.monitor.notify.webhook_payload import Endpoint, Secret, build_body, build_headers

if TYPE_CHECKING:
    import ssl


class Reminder(Struct, frozen=True):
    """Repeats all firing alerts every `seconds` in one call, for receivers that expire alerts."""

    seconds: float
    send: Callable[[Sequence[bytes]], PostResult]


class Channel(Protocol):
    """Delivery to one receiver. `send` is called by one thread only.

    `kind`: name of the kind of channel. `title`: its name in logs, without secrets. `reminder`: None if sending a
    notification once is enough. A channel allocates all it needs when it is created.
    """

    kind: str
    title: str
    reminder: Reminder | None

    def prepare(self) -> None:
        """Load everything needed to send. Called once, in the sending thread, before the first notification."""
        ...

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        """Render the body to send, the same in every attempt."""
        ...

    def send(self, message_id: str, body: bytes) -> PostResult:
        """Make one attempt. Never raises, and ends by its own timeout."""
        ...

    def abort(self) -> None:
        """End the current attempt, from another thread."""
        ...


class WebhookChannel:
    """Webhook: a POST signed according to Standard Webhooks."""

    kind = "webhook"
    reminder: Reminder | None = None

    def __init__(
        self, name: str, endpoint: Endpoint, secret: Secret, poster: Poster, wall: WallClock = time.time
    ) -> None:
        self.title: str = f"webhook {name} ({endpoint.origin})"
        self._secret = secret
        self._poster = poster
        self._wall = wall

    def prepare(self) -> None:
        self._poster.prepare()

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        return build_body(notification, snapshot, sender)

    def send(self, message_id: str, body: bytes) -> PostResult:
        return self._poster.post(build_headers(self._secret, message_id, int(self._wall()), body), body)

    def abort(self) -> None:
        self._poster.abort()


def context_for(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return a TLS context that verifies certificates and host names, None for http.

    `ssl` is imported here because it takes 4.5 MiB, which only https receivers need.
    """
    if endpoint.scheme != "https":
        return None
    import ssl

    return ssl.create_default_context()
