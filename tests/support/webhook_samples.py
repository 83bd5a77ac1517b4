"""Notices and receivers for tests of webhooks."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.alerts.rules import CRITICAL
from memwatch_monitor.notify.channel import Channel, Sender
from memwatch_monitor.notify.http_post import Poster, context_for, parse_endpoint
from memwatch_monitor.notify.manager import kind_of
from memwatch_monitor.notify.outbox import NewMessage, Outbox
from memwatch_monitor.notify.receiver import Receiver, close_all
from memwatch_monitor.notify.webhook import WebhookChannel, parse_secret
from support.sample_snapshots import critical_gb10
from support.webhook_receiver import Site

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
QUICK = (0.0, 0.05, 0.05, 0.05, 0.05)


def notice(number: int = 1, firing: bool = True, target: str = "ram", rule: str = CRITICAL) -> Notification:
    return Notification(
        id=f"msg_{number}",
        event=rule if firing else "pressure.resolved",
        unix=1_795_256_553.25,
        target=target,
        level=Level.CRITICAL if firing else Level.LOW,
        previous=Level.HIGH if firing else Level.CRITICAL,
        reasons=(Reason("util", "96.2% used"),),
        firing=firing,
        rule=rule,
        started_unix=1_795_256_500.0,
        level_now=Level.CRITICAL if firing else Level.LOW,
    )


@dataclass
class QueuedReceiver:
    """Receiver with its own outbox."""

    receiver: Receiver
    outbox: Outbox = field(repr=False)

    @property
    def disabled(self) -> bool:
        return self.receiver.disabled

    def counts(self) -> Mapping[str, int]:
        return self.receiver.counts()

    def pending(self) -> int:
        return self.receiver.pending()

    def start(self) -> None:
        self.outbox.start()
        self.receiver.start()

    def close(self, timeout: float = 2.0) -> None:
        close_all([self.receiver], timeout)
        self.outbox.close()


def webhook_channel(
    url: str,
    timeout_seconds: float = 15.0,
    allow_link_local: bool = False,
    tls: ssl.SSLContext | None = None,
    wall: Callable[[], float] = time.time,
    **poster: object,
) -> WebhookChannel:
    endpoint = parse_endpoint(url)
    context = tls or context_for(endpoint)
    made = Poster(endpoint, timeout_seconds, allow_link_local, context, wall, **poster)  # type: ignore[arg-type]
    return WebhookChannel("ops", endpoint, parse_secret(SECRET), made, wall)


def new_receiver(
    channel: Channel, schedule: Sequence[float] = QUICK, outbox: Outbox | None = None
) -> QueuedReceiver:
    box = outbox or Outbox(None)
    return QueuedReceiver(Receiver("ops", channel, box.queue("ops"), schedule=schedule), box)


@contextmanager
def receiver(url: str, schedule: Sequence[float] = QUICK, **options: object) -> Iterator[QueuedReceiver]:
    options = {"timeout_seconds": 2.0, **options}
    made = new_receiver(webhook_channel(url, **options), schedule)  # type: ignore[arg-type]
    made.start()
    try:
        yield made
    finally:
        made.close()


def put_notices(made: QueuedReceiver, *notices: Notification) -> None:
    for one in notices:
        body = made.receiver.channel.body(one, critical_gb10(), Sender())
        made.outbox.put([(made.receiver.queue, NewMessage(one.id, one.alert, kind_of(one), body))], {})


def ids(site: Site) -> list[str]:
    return [delivery.headers["webhook-id"] for delivery in site.deliveries]
