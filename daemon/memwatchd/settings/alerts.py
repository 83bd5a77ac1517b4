"""Who is told of alerts, of which, and when."""

from __future__ import annotations

import re
from typing import Annotated

from memwatch.alerts.rules import CRITICAL, EVENTS, AlertRules
from memwatch.notify.webhook_payload import Endpoint, Password, Secret
from memwatch.options import Accepts, Bounds, Duration, Read, Refused, Section, seconds
from memwatchd.settings.secrets_source import Service, password_from, secret_from, service_from
from memwatchd.settings.section import ReadAround, checked_endpoint
from memwatchd.settings.values import some_of, tuple_of, user_of

FROM_FILE = '"file:/etc/memwatchd/alertmanager-secret"'
RECEIVER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def event_of(value: object) -> str:
    if isinstance(value, str) and value in EVENTS:
        return value
    raise Refused(f"is {str(value)[:60]!r}, which is none of {', '.join(EVENTS)}")


def receiver_name_of(value: object) -> str:
    if isinstance(value, str) and RECEIVER_NAME.fullmatch(value):
        return value
    raise Refused


EventName = Annotated[str, Read(event_of)]


class Recipient(Section, frozen=True, kw_only=True):
    """Somebody who is told of alerts, and of which."""

    name: Annotated[str, Read(receiver_name_of), Accepts("made of a to z, 0 to 9, - and _", '"operators"')]
    events: Annotated[
        tuple[EventName, ...],
        Read(some_of),
        Accepts(f"a list of some of {', '.join(EVENTS)}", '["pressure.critical"]'),
    ] = (CRITICAL,)
    targets: Annotated[
        tuple[str, ...], Read(tuple_of), Accepts("made of ids as in /api/v1/snapshot", '["ram"]')
    ] = ()


class Webhook(Recipient, frozen=True, kw_only=True):
    url: Annotated[
        Endpoint,
        Read(checked_endpoint),
        Accepts("a URL", '"https://example.com/hook"', shown=False),
    ]
    secret: Annotated[
        Secret,
        ReadAround(secret_from),
        Accepts(
            "file:/PATH, credential:NAME, env:NAME, or whsec_ and the base64 of 24 to 64 bytes",
            '"file:/etc/memwatchd/webhook-secret"',
            shown=False,
        ),
    ]
    timeout: Annotated[Duration, Bounds(seconds(1), seconds(60))] = seconds(15)
    allow_link_local: bool = False


class Alertmanager(Recipient, frozen=True, kw_only=True):
    url: Annotated[
        Endpoint,
        Read(checked_endpoint),
        Accepts("a URL", '"http://alertmanager.example.com:9093"', shown=False),
    ]
    user: Annotated[str | None, Read(user_of), Accepts("the name of a user", '"memwatchd"')] = None
    secret: Annotated[
        Password | None,
        ReadAround(password_from),
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
            raise Refused(why, (("user",),))


class Apprise(Recipient, frozen=True, kw_only=True):
    url: Annotated[
        Service,
        ReadAround(service_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of an Apprise URL, or one itself",
            '"file:/etc/memwatchd/apprise-url"',
            shown=False,
        ),
    ]


AnyRecipient = Webhook | Alertmanager | Apprise

# The keys of [alerts] that hold tables with a name each.
ALERTMANAGERS = "[[alerts.alertmanagers]]"
RECIPIENTS = ("webhooks", "alertmanagers", "apprise")


class Alerts(Section, frozen=True, kw_only=True):
    pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(5)
    gpu_pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(60)
    collector_pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(60)
    forecast_within: Annotated[Duration, Bounds(seconds(1), seconds(86_400))] = seconds(300)
    resolve_after: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(60)
    keep_firing_for: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(120)
    repeat_every: Annotated[Duration, Bounds(seconds(0), seconds(604_800))] = seconds(14_400)
    again_after: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(300)
    webhooks: Annotated[
        tuple[Webhook, ...],
        Read(tuple_of),
        Accepts("a list of tables, each beginning with [[alerts.webhooks]]", "[[alerts.webhooks]]", shown=False),
    ] = ()
    alertmanagers: Annotated[
        tuple[Alertmanager, ...],
        Read(tuple_of),
        Accepts(
            "a list of tables, each beginning with [[alerts.alertmanagers]]",
            "[[alerts.alertmanagers]]",
            shown=False,
        ),
    ] = ()
    apprise: Annotated[
        tuple[Apprise, ...],
        Read(tuple_of),
        Accepts("a list of tables, each beginning with [[alerts.apprise]]", "[[alerts.apprise]]", shown=False),
    ] = ()

    @property
    def recipients(self) -> tuple[AnyRecipient, ...]:
        return (*self.webhooks, *self.alertmanagers, *self.apprise)

    @property
    def rules(self) -> AlertRules:
        return AlertRules(
            pending_seconds=self.pending_for.total_seconds(),
            resolve_seconds=self.resolve_after.total_seconds(),
            gpu_pending_seconds=self.gpu_pending_for.total_seconds(),
            keep_firing_seconds=self.keep_firing_for.total_seconds(),
            repeat_seconds=self.repeat_every.total_seconds(),
            again_seconds=self.again_after.total_seconds(),
            collector_pending_seconds=self.collector_pending_for.total_seconds(),
            forecast_seconds=self.forecast_within.total_seconds(),
            events=frozenset({CRITICAL, *(event for one in self.recipients for event in one.events)}),
        )

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for kind in RECIPIENTS:
            for index, recipient in enumerate(getattr(self, kind)):
                if recipient.name in seen:
                    why = f'another receiver is named "{recipient.name}"; use a name of its own'
                    raise Refused(why, ((kind, index, "name"),))
                seen.add(recipient.name)
