"""Kinds of receivers: their settings and the channels that they build."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Annotated

from memwatch.alerts.rules import CRITICAL, EVENTS
from memwatch.notify.alertmanager import AlertmanagerChannel, alerts_endpoint
from memwatch.notify.apprise import AppriseChannel
from memwatch.notify.channel import Channel, WebhookChannel, context_for
from memwatch.notify.http_post import Poster
from memwatch.notify.webhook_payload import Endpoint, Password, Secret
from memwatch.options import Accepts, Bounds, Converter, Duration, InvalidValueError, Section, seconds
from memwatchd.settings.secrets_source import AppriseService, password_from, secret_from, service_from
from memwatchd.settings.section import ON_RELOAD, ContextConverter, checked_endpoint
from memwatchd.settings.values import parse_nonempty_tuple, parse_tuple, parse_user

FROM_FILE = '"file:/etc/memwatchd/alertmanager-secret"'
RECEIVER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def parse_event(value: object) -> str:
    if isinstance(value, str) and value in EVENTS:
        return value
    raise InvalidValueError(f"is {str(value)[:60]!r}, which is not one of {', '.join(EVENTS)}")


def parse_receiver_name(value: object) -> str:
    if isinstance(value, str) and RECEIVER_NAME.fullmatch(value):
        return value
    raise InvalidValueError


EventName = Annotated[str, Converter(parse_event)]


class ReceiverSection(Section, frozen=True, kw_only=True):
    """Settings of one receiver. Each kind of channel has a subclass that adds keys and builds the channel.

    `instead_of_prometheus`: Prometheus's shipped rules leave out what this receiver gets. By default true for an
    Alertmanager, which Prometheus sends to as well. Other receivers may be programs.
    """

    name: Annotated[str, Converter(parse_receiver_name), Accepts("made of a to z, 0 to 9, - and _", '"operators"')]
    events: Annotated[
        tuple[EventName, ...],
        Converter(parse_nonempty_tuple),
        Accepts(f"a list with any of {', '.join(EVENTS)}", '["pressure.critical"]'),
        ON_RELOAD,
    ] = (CRITICAL,)
    targets: Annotated[
        tuple[str, ...], Converter(parse_tuple), Accepts("an id as in /api/v1/snapshot", '["ram"]')
    ] = ()
    instead_of_prometheus: bool = False

    def create_channel(self) -> Channel:
        """Build the channel. TLS files are read here."""
        raise NotImplementedError


class Webhook(ReceiverSection, frozen=True, kw_only=True):
    url: Annotated[
        Endpoint,
        Converter(checked_endpoint),
        Accepts("a URL", '"https://example.com/hook"', shown=False),
    ]
    secret: Annotated[
        Secret,
        ContextConverter(secret_from),
        Accepts(
            "file:/PATH, credential:NAME, env:NAME, or whsec_ and the base64 of 24 to 64 bytes",
            '"file:/etc/memwatchd/webhook-secret"',
            shown=False,
        ),
    ]
    timeout: Annotated[Duration, Bounds(seconds(1), seconds(60))] = seconds(15)
    allow_link_local: bool = False

    def create_channel(self) -> Channel:
        poster = create_poster(self.url, self.timeout, self.allow_link_local)
        return WebhookChannel(self.name, self.url, self.secret, poster)


class Alertmanager(ReceiverSection, frozen=True, kw_only=True):
    instead_of_prometheus: bool = True
    url: Annotated[
        Endpoint,
        Converter(checked_endpoint),
        Accepts("a URL", '"http://alertmanager.example.com:9093"', shown=False),
    ]
    user: Annotated[str | None, Converter(parse_user), Accepts("a user name", '"memwatchd"')] = None
    secret: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of a password or a token",
            FROM_FILE,
            shown=False,
        ),
    ] = None
    resend: Annotated[Duration, Bounds(seconds(1), seconds(240))] = seconds(60)
    timeout: Annotated[Duration, Bounds(seconds(1), seconds(60))] = seconds(15)
    allow_link_local: bool = False

    def __post_init__(self) -> None:
        if self.user is not None and self.secret is None:
            why = f'"{self.user}" has no password; add for example secret = {FROM_FILE}'
            raise InvalidValueError(why, (("user",),))

    def create_channel(self) -> Channel:
        endpoint = alerts_endpoint(self.url)
        poster = create_poster(endpoint, self.timeout, self.allow_link_local)
        login = self.secret.authorization(self.user) if self.secret else None
        return AlertmanagerChannel(self.name, endpoint, poster, self.resend.total_seconds(), authorization=login)


class Apprise(ReceiverSection, frozen=True, kw_only=True):
    url: Annotated[
        AppriseService,
        ContextConverter(service_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of an Apprise URL, or the URL itself",
            '"file:/etc/memwatchd/apprise-url"',
            shown=False,
        ),
    ]

    def create_channel(self) -> Channel:
        return AppriseChannel(self.name, self.url.target)


def create_poster(endpoint: Endpoint, timeout: timedelta, allow_link_local: bool) -> Poster:
    return Poster(endpoint, timeout.total_seconds(), allow_link_local, context_for(endpoint), time.time)


# Kinds of receivers by the name of their tables: [[alerts.webhooks]] is a Webhook.
CHANNELS: dict[str, type[ReceiverSection]] = {
    "webhooks": Webhook,
    "alertmanagers": Alertmanager,
    "apprise": Apprise,
}
