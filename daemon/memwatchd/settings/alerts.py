"""Who is told of alerts, of which, and when."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, model_validator

from memwatch.conditions import CRITICAL, EVENTS, AlertRules
from memwatch_web.webhooks import Endpoint, Secret
from memwatchd.settings.secret import Service, secret_from, service_from
from memwatchd.settings.section import Duration, Section, checked_endpoint, seconds
from memwatchd.settings.values import Accepts, Refused, tuple_of


def event_of(value: object) -> str:
    if isinstance(value, str) and value in EVENTS:
        return value
    raise Refused(f"is {str(value)[:60]!r}, which is none of {', '.join(EVENTS)}")


EventName = Annotated[str, BeforeValidator(event_of)]


class Recipient(Section):
    """Somebody who is told of alerts, and of which."""

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$"), Accepts("made of a to z, 0 to 9, - and _", '"operators"')
    ]
    events: Annotated[
        tuple[EventName, ...],
        BeforeValidator(tuple_of),
        Field(min_length=1),
        Accepts(f"a list of some of {', '.join(EVENTS)}", '["pressure.critical"]'),
    ] = (CRITICAL,)
    targets: Annotated[
        tuple[str, ...], BeforeValidator(tuple_of), Accepts("made of ids as in /api/v1/snapshot", '["ram"]')
    ] = ()


class Webhook(Recipient):
    url: Annotated[
        InstanceOf[Endpoint],
        BeforeValidator(checked_endpoint),
        PlainSerializer(str),
        Accepts("a URL", '"https://example.com/hook"', shown=False),
    ]
    secret: Annotated[
        InstanceOf[Secret],
        BeforeValidator(secret_from),
        PlainSerializer(str),
        Accepts(
            "file:/PATH, credential:NAME, env:NAME, or whsec_ and the base64 of 24 to 64 bytes",
            '"file:/etc/memwatchd/webhook-secret"',
            shown=False,
        ),
    ]
    timeout: Duration = Field(default=seconds(15), ge=seconds(1), le=seconds(60))
    allow_link_local: bool = False


class Alertmanager(Recipient):
    url: Annotated[
        InstanceOf[Endpoint],
        BeforeValidator(checked_endpoint),
        PlainSerializer(str),
        Accepts("a URL", '"http://alertmanager.example.com:9093"', shown=False),
    ]
    resend: Duration = Field(default=seconds(60), ge=seconds(1), le=seconds(240))
    timeout: Duration = Field(default=seconds(15), ge=seconds(1), le=seconds(60))
    allow_link_local: bool = False


class Apprise(Recipient):
    url: Annotated[
        InstanceOf[Service],
        BeforeValidator(service_from),
        PlainSerializer(str),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of an Apprise URL, or one itself",
            '"file:/etc/memwatchd/apprise-url"',
            shown=False,
        ),
    ]


# The keys of [alerts] that hold tables with a name each.
ALERTMANAGERS = "[[alerts.alertmanagers]]"
RECIPIENTS = ("webhooks", "alertmanagers", "apprise")


class Alerts(Section):
    pending_for: Duration = Field(default=seconds(5), ge=seconds(0), le=seconds(3600))
    gpu_pending_for: Duration = Field(default=seconds(60), ge=seconds(0), le=seconds(3600))
    collector_pending_for: Duration = Field(default=seconds(60), ge=seconds(0), le=seconds(3600))
    forecast_within: Duration = Field(default=seconds(300), ge=seconds(1), le=seconds(86_400))
    resolve_after: Duration = Field(default=seconds(60), ge=seconds(0), le=seconds(86_400))
    keep_firing_for: Duration = Field(default=seconds(120), ge=seconds(0), le=seconds(86_400))
    repeat_every: Duration = Field(default=seconds(14_400), ge=seconds(0), le=seconds(604_800))
    again_after: Duration = Field(default=seconds(300), ge=seconds(0), le=seconds(86_400))
    webhooks: Annotated[
        tuple[Webhook, ...],
        BeforeValidator(tuple_of),
        Accepts("a list of tables, each beginning with [[alerts.webhooks]]", "[[alerts.webhooks]]", shown=False),
    ] = ()
    alertmanagers: Annotated[
        tuple[Alertmanager, ...],
        BeforeValidator(tuple_of),
        Accepts(
            "a list of tables, each beginning with [[alerts.alertmanagers]]",
            "[[alerts.alertmanagers]]",
            shown=False,
        ),
    ] = ()
    apprise: Annotated[
        tuple[Apprise, ...],
        BeforeValidator(tuple_of),
        Accepts("a list of tables, each beginning with [[alerts.apprise]]", "[[alerts.apprise]]", shown=False),
    ] = ()

    @property
    def recipients(self) -> tuple[Recipient, ...]:
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

    @model_validator(mode="after")
    def _refuse_twins(self) -> Alerts:
        seen: set[str] = set()
        for kind in RECIPIENTS:
            for index, recipient in enumerate(getattr(self, kind)):
                if recipient.name in seen:
                    why = f'another receiver is named "{recipient.name}"; use a name of its own'
                    raise Refused(why, ((kind, index, "name"),))
                seen.add(recipient.name)
        return self
