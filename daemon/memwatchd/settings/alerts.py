"""Settings of alerts: rules, and kinds of receivers with the channels that they build."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from msgspec import defstruct
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.http import DEFAULT_PORTS
from memwatch.core.linux.key_owner import KeyOwners, KeyUse
from memwatch.core.options import Accepts, Bounds, Converter, Duration, InvalidValueError, Section, seconds
from memwatch_monitor.alerts.rules import DEFAULT_EVENTS, EVENTS, AlertRules
from memwatch_monitor.notify.channel import JOB, Channel
from memwatch_monitor.notify.http_post import (
    Endpoint,
    Password,
    Poster,
    Proxy,
    context_for,
    is_on_this_machine,
)
from memwatch_monitor.notify.webhook import Secret, WebhookChannel
from memwatchd.settings.credentials import (
    AppriseService,
    SecretContext,
    password_from,
    proxy_from,
    secret_from,
    service_from,
)
from memwatchd.settings.keys import (
    ON_RELOAD,
    ON_RELOAD_OF_MACHINE,
    ContextConverter,
    NamedTable,
    checked_endpoint,
    parse_account,
    parse_label_value,
    parse_nonempty_tuple,
    parse_table_name,
    parse_tuple,
    parse_user,
    refuse_equal_names,
)

FROM_FILE = '"file:/etc/memwatchd/alertmanager-secret"'
PROXY_WORDS = "a URL such as http://proxy.example.com:3128, or file:/PATH, credential:NAME or env:NAME of one"
PROXY_EXAMPLE = '"file:/etc/memwatchd/proxy-url"'
# `user` is the name of a login here.
LISTENER_USER = "listener_user"
ListenerUser = Annotated[
    str | None, Converter(parse_account), Accepts("the name or the number of a user", '"receiver"', shown=False)
]


def parse_event(value: object) -> str:
    if isinstance(value, str) and value in EVENTS:
        return value
    raise InvalidValueError(f"is {str(value)[:60]!r}, which is not one of {', '.join(EVENTS)}")


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """Proxy of one receiver in place of that of [alerts]; without one, its receiver is reached directly.

    `shared_user`: the user of the proxy of [alerts].
    """

    proxy: Proxy | None
    shared_user: str | None = None
    is_shared: bool = False

    def __str__(self) -> str:
        return "none" if self.proxy is None else str(self.proxy)


def proxy_choice_from(value: object, context: SecretContext) -> ProxyChoice:
    return ProxyChoice(None if value == "none" else proxy_from(value, context))


NAME_WORDS = "made of a to z, 0 to 9, - and _"
ReceiverName = Annotated[
    str,
    Converter(parse_table_name),
    Doc("Name in logs and metrics: a to z, 0 to 9, - and _. Unique among receivers of all kinds."),
]
EventName = Annotated[str, Converter(parse_event)]


class ReceiverSection(NamedTable, frozen=True, kw_only=True):
    """Settings of one receiver. Each kind of channel has a subclass that adds keys and builds the channel.

    `instead_of_prometheus`: Prometheus's shipped rules leave out what this receiver gets. False by default:
    memwatchd cannot know whether the receiver and Prometheus reach the same people.
    """

    name: Annotated[ReceiverName, Accepts(NAME_WORDS, '"operators"')]
    events: Annotated[
        tuple[EventName, ...],
        Converter(parse_nonempty_tuple),
        Accepts(f"a list with any of {', '.join(EVENTS)}", '["pressure.critical"]'),
        ON_RELOAD,
        Doc(f"Events to send: {', '.join(EVENTS)}. Each receiver also gets the resolved notification."),
    ] = DEFAULT_EVENTS
    targets: Annotated[
        tuple[str, ...],
        Converter(parse_tuple),
        Accepts("an id as in /api/v1/snapshot", '["ram"]'),
        Doc("Ids of pools, shares, devices or collectors to send events of, as in /api/v1/snapshot. [] means all."),
    ] = ()
    instead_of_prometheus: Annotated[
        bool,
        Doc(
            "Prometheus's shipped rules leave out these events while they are delivered here. For a receiver "
            "that reaches the same people as Prometheus, not for a program."
        ),
    ] = False

    def behind(self, proxy: ProxyChoice) -> ReceiverSection:  # noqa: ARG002  channels without HTTP use none
        """Return this receiver with the proxy of [alerts], if it uses that."""
        return self

    def create_channel(self, owners: KeyOwners) -> Channel:
        """Build the channel. TLS files are read here. `owners`: to whom secrets may be sent on this machine."""
        raise NotImplementedError


class HttpReceiver(ReceiverSection, frozen=True, kw_only=True):
    """Keys of receivers that memwatchd posts to."""

    timeout: Annotated[
        Duration,
        Bounds(seconds(1), seconds(60)),
        Doc("Timeout of one attempt, from name lookup to response, {bounds}."),
    ] = seconds(15)
    allow_link_local: Annotated[
        bool, Doc("Allow link-local and cloud metadata addresses (169.254.0.0/16, fe80::/10 and such).")
    ] = False
    proxy: Annotated[
        ProxyChoice | None,
        ContextConverter(proxy_choice_from),
        Accepts(f'{PROXY_WORDS}, or "none"', PROXY_EXAMPLE, shown=False),
        Doc('Proxy of this receiver in place of that under [alerts]; "none" for a direct connection.'),
    ] = None
    listener_user: Annotated[
        ListenerUser,
        Doc(
            "User of the receiver, or of its proxy, a name in /etc/passwd or a number: on this machine "
            "nothing is sent to another user who listens there. By default a URL or a login that is a secret "
            "goes to the first user who was seen there, which the state folder keeps."
        ),
    ] = None

    def behind(self, proxy: ProxyChoice) -> ReceiverSection:
        return replace(self, proxy=proxy) if self.proxy is None and proxy.proxy is not None else self

    def create_poster(self, endpoint: Endpoint, owners: KeyOwners, table: str, secret: str) -> Poster:
        """Build the client. `secret`: word for the secret of a request, empty without one. `table`: settings."""
        proxy = None if self.proxy is None or is_on_this_machine(endpoint) else self.proxy
        use, user = find_use(endpoint, proxy, table, secret), self.listener_user
        if proxy is not None and proxy.is_shared:
            user = proxy.shared_user
        return Poster(
            endpoint,
            self.timeout.total_seconds(),
            self.allow_link_local,
            context_for(endpoint),
            time.time,
            proxy=proxy.proxy if proxy else None,
            admit=owners.admit(use, user) if use.word or user else None,
        )


def find_use(endpoint: Endpoint, choice: ProxyChoice | None, table: str, secret: str) -> KeyUse:
    """Return the secret that the first hop gets, which is the proxy if there is one; `word` is empty without one.

    A proxy gets its own login, and the whole request unless it is encrypted.
    """
    if choice is None or choice.proxy is None:
        return KeyUse("", endpoint.origin, secret, table, LISTENER_USER)
    word = "login" if choice.proxy.authorization else secret if endpoint.scheme == "http" else ""
    return KeyUse("", str(choice.proxy), word, "[alerts]" if choice.is_shared else table, LISTENER_USER)


class Webhook(HttpReceiver, frozen=True, kw_only=True):
    """Webhook receivers. Repeat the table for each; none by default. Requests are signed as Standard Webhooks and
    retried for a day; redirects are not followed.
    """

    url: Annotated[
        Endpoint,
        Converter(checked_endpoint),
        Accepts("a URL", '"https://example.com/hook"', shown=False),
        Doc("URL to post to, http:// or https://. Logs show only scheme, host and port."),
    ]
    secret: Annotated[
        Secret,
        ContextConverter(secret_from),
        Accepts(
            "file:/PATH, credential:NAME, env:NAME, or whsec_ and the base64 of 24 to 64 bytes",
            '"file:/etc/memwatchd/webhook-secret"',
            shown=False,
        ),
        Doc(
            "Signing key: whsec_ and the base64 of 24 to 64 bytes, from the receiver or from\n"
            '`echo "whsec_$(openssl rand -base64 32)"`.\n'
            'Preferably from a file ("file:/PATH") that only memwatchd can read, a credential of the unit '
            '("credential:NAME" for LoadCredential=NAME:/PATH), or the environment ("env:NAME"). A literal '
            '"whsec_…" works also. During key rotation, several keys separated by spaces.'
        ),
    ]

    def create_channel(self, owners: KeyOwners) -> Channel:
        secret = "URL" if self.url.has_secret else ""
        poster = self.create_poster(self.url, owners, "[[alerts.webhooks]]", secret)
        return WebhookChannel(self.name, self.url, self.secret, poster)


class Alertmanager(HttpReceiver, frozen=True, kw_only=True):
    """Alertmanagers. Repeat the table for each member of a cluster; none by default."""

    name: Annotated[ReceiverName, Accepts(NAME_WORDS, '"alertmanager"')]
    instead_of_prometheus: Annotated[
        bool, Doc("As for webhooks, for an Alertmanager to which Prometheus sends as well.")
    ] = False
    url: Annotated[
        Endpoint,
        Converter(checked_endpoint),
        Accepts("a URL", '"http://alertmanager.example.com:9093"', shown=False),
        Doc("Base URL; /api/v2/alerts is appended."),
    ]
    user: Annotated[
        str | None,
        Converter(parse_user),
        Accepts("a user name", '"memwatchd"'),
        Doc(
            "Login: user name, and the password from a file, a credential or the environment. Without a user "
            "the secret is a bearer token. Without https it is sent in plain text."
        ),
    ] = None
    secret: Annotated[
        Password | None,
        ContextConverter(password_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of a password or a token",
            FROM_FILE,
            shown=False,
        ),
    ] = None
    resend: Annotated[
        Duration,
        Bounds(seconds(1), seconds(240)),
        Doc(
            "Interval at which firing alerts are sent again, {bounds}. Alertmanager drops them after 5 "
            "minutes (resolve_timeout)."
        ),
    ] = seconds(60)

    def __post_init__(self) -> None:
        if self.user is not None and self.secret is None:
            why = f'"{self.user}" has no password; add for example secret = {FROM_FILE}'
            raise InvalidValueError(why, (("user",),))

    def create_channel(self, owners: KeyOwners) -> Channel:
        from memwatch_monitor.notify.alertmanager import AlertmanagerChannel, alerts_endpoint  # if there is one

        endpoint = alerts_endpoint(self.url)
        secret = "login" if self.secret else "URL" if endpoint.has_secret else ""
        poster = self.create_poster(endpoint, owners, "[[alerts.alertmanagers]]", secret)
        login = self.secret.authorization(self.user) if self.secret else None
        return AlertmanagerChannel(self.name, endpoint, poster, self.resend.total_seconds(), authorization=login)


class Apprise(ReceiverSection, frozen=True, kw_only=True):
    """Chat, mail and pagers through the Apprise library (Slack, Discord, Teams, ntfy, PagerDuty, mail, and others).
    Needs apprise (pip install apprise), which the Debian package and the image include. Apprise opens its own
    connections; their addresses are not checked, and proxies are those of HTTPS_PROXY, HTTP_PROXY and NO_PROXY in
    the service's environment. None by default.
    """

    name: Annotated[ReceiverName, Accepts(NAME_WORDS, '"chat"')]
    url: Annotated[
        AppriseService,
        ContextConverter(service_from),
        Accepts(
            "file:/PATH, credential:NAME or env:NAME of an Apprise URL, or the URL itself",
            '"file:/etc/memwatchd/apprise-url"',
            shown=False,
        ),
        Doc(
            'Apprise URL of the service (https://github.com/caronc/apprise/wiki), such as "ntfys://topic". '
            'It contains tokens: preferably "file:/PATH", "credential:NAME" or "env:NAME".'
        ),
    ]

    listener_user: Annotated[
        ListenerUser, Doc("As for webhooks, for a service at localhost or a loopback address.")
    ] = None

    def create_channel(self, owners: KeyOwners) -> Channel:
        from memwatch_monitor.notify.apprise import AppriseChannel  # if there is one

        service = self.url.target
        host, scheme = service.host or "", "https" if service.secure else "http"
        origin = Endpoint(scheme, host, service.port or DEFAULT_PORTS[scheme], "/")
        use = KeyUse("", origin.origin, "URL", "[[alerts.apprise]]", LISTENER_USER)
        admit = owners.admit(use, self.listener_user) if is_on_this_machine(origin) else None
        return AppriseChannel(self.name, service, admit)


# Kinds of receivers by the name of their tables: [[alerts.webhooks]] is a Webhook.
CHANNELS: dict[str, type[ReceiverSection]] = {
    "webhooks": Webhook,
    "alertmanagers": Alertmanager,
    "apprise": Apprise,
}


DEFAULTS = AlertRules()
WithinHour = Annotated[Duration, Bounds(seconds(0), seconds(3600))]
WithinDay = Annotated[Duration, Bounds(seconds(0), seconds(86_400))]


class Alerts(Section, frozen=True, kw_only=True):
    """Alert rules. The derived section also has a list of receivers for each kind of channel."""

    pending_for: Annotated[
        WithinHour,
        Doc(
            "Time that a condition must persist before its alert fires, {bounds}. Urgent conditions fire at "
            "once: an OOM kill, the last 256 MiB, a livelock, or a target that will be full within 15 "
            "seconds."
        ),
    ] = seconds(DEFAULTS.pending_seconds)
    gpu_pending_for: Annotated[
        WithinHour, Doc("The same for dedicated GPU memory: inference servers fill it on purpose.")
    ] = seconds(DEFAULTS.gpu_pending_seconds)
    collector_pending_for: Annotated[WithinHour, Doc("The same for a failing collector (collector.failing).")] = (
        seconds(DEFAULTS.collector_pending_seconds)
    )
    forecast_within: Annotated[
        Duration,
        Bounds(seconds(1), seconds(86_400)),
        Doc("Time to full at the current rate that triggers pressure.forecast, {bounds}."),
    ] = seconds(DEFAULTS.forecast_seconds)
    resolve_after: Annotated[
        WithinDay, Doc("Time that a condition must be over before its alert resolves, {bounds} …")
    ] = seconds(DEFAULTS.resolve_seconds)
    keep_firing_for: Annotated[WithinDay, Doc("… and minimum time that an alert fires, {bounds}.")] = seconds(
        DEFAULTS.keep_firing_seconds
    )
    repeat_every: Annotated[
        Duration,
        Bounds(seconds(0), seconds(604_800)),
        Doc("Interval between repeated notifications of a firing alert, 0s (never) to 7d."),
    ] = seconds(DEFAULTS.repeat_seconds)
    again_after: Annotated[
        WithinDay, Doc("Minimum interval between notifications of a recurring alert that is not urgent, {bounds}.")
    ] = seconds(DEFAULTS.again_seconds)
    instance: Annotated[
        str | None,
        Converter(parse_label_value),
        Accepts("an instance", '"gpu1.example.com:6360"'),
        Doc(
            'Label "instance" in Alertmanager: the one that Prometheus gives this machine\'s metrics. By '
            "default the address that other machines can reach, with the first of hosts; else the host name "
            "and the port."
        ),
    ] = None
    job: Annotated[
        str,
        Converter(parse_label_value),
        Accepts("the name of a job"),
        Doc('Label "job" in Alertmanager: the name of Prometheus\'s job.'),
    ] = JOB

    proxy: Annotated[
        Proxy | None,
        ContextConverter(proxy_from),
        Accepts(PROXY_WORDS, PROXY_EXAMPLE, shown=False),
        Doc(
            "HTTP proxy to webhooks and Alertmanagers: http://[USER:PASSWORD@]HOST:PORT, with %40 for an @ "
            'in a password. With a password, preferably from a file ("file:/PATH") that only memwatchd can '
            'read, a credential ("credential:NAME") or the environment ("env:HTTPS_PROXY"); the variable '
            "alone is not used. It resolves their names. localhost and loopback addresses are reached "
            "directly."
        ),
    ] = None
    listener_user: Annotated[
        ListenerUser,
        Doc(
            "User of that proxy, a name in /etc/passwd or a number: on this machine no login is sent to "
            "another user who listens there. By default the first user who was seen there, which the state "
            "folder keeps."
        ),
    ] = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Keys with lists of receivers: those that the derived section adds."""
        return tuple(name for name in self.__struct_fields__ if name not in Alerts.__struct_fields__)

    @property
    def receivers(self) -> tuple[ReceiverSection, ...]:
        """Receivers of all kinds, with their proxies."""
        shared = ProxyChoice(self.proxy, self.listener_user, is_shared=True)
        return tuple(one.behind(shared) for name in self.channels for one in getattr(self, name))

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
            events=frozenset({*DEFAULT_EVENTS, *(event for one in self.receivers for event in one.events)}),
        )

    def __post_init__(self) -> None:
        refuse_equal_names({name: getattr(self, name) for name in self.channels}, "receiver")


def alerts_section(channels: Mapping[str, type[ReceiverSection]]) -> Alerts:
    """Build the section with a list for each kind of receiver and all defaults."""
    keys = [(name, tables_type(name, kind), ()) for name, kind in channels.items()]
    section = defstruct("Alerts", keys, bases=(Alerts,), module=__name__, frozen=True, kw_only=True)
    return cast("Alerts", section())


def tables_type(name: str, kind: type[ReceiverSection]) -> object:
    """Return the type of a key with a list of tables. The docstring of `kind` is their description."""
    header = f"[[alerts.{name}]]"
    accepts = Accepts(f"a list of tables, each beginning with {header}", header, shown=False)
    about = Doc(" ".join((kind.__doc__ or "").split()))
    return Annotated[tuple[kind, ...], Converter(parse_tuple), accepts, about, ON_RELOAD_OF_MACHINE]  # type: ignore[valid-type]
