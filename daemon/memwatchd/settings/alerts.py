"""Alert rules and receivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar, cast

from msgspec import defstruct

from memwatch.core.options import Accepts, Bounds, Converter, Duration, InvalidValueError, Section, seconds
from memwatch.monitor.alerts.rules import DEFAULT_EVENTS, AlertRules
from memwatch.monitor.notify.http_proxy import Proxy
from memwatch.monitor.notify.sender import JOB
from memwatchd.settings.channels import (
    PROXY_EXAMPLE,
    PROXY_WORDS,
    ListenerUser,
    ProxyChoice,
    ReceiverSection,
)
from memwatchd.settings.labels import parse_label_value
from memwatchd.settings.secrets_source import proxy_from
from memwatchd.settings.section import ON_RELOAD_OF_MACHINE, ContextConverter
from memwatchd.settings.values import parse_tuple

AnyReceiver = TypeVar("AnyReceiver", bound=ReceiverSection)


class Alerts(Section, frozen=True, kw_only=True):
    """Alert rules. The derived section also has a list of receivers for each kind of channel."""

    pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(5)
    gpu_pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(60)
    collector_pending_for: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(60)
    forecast_within: Annotated[Duration, Bounds(seconds(1), seconds(86_400))] = seconds(300)
    resolve_after: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(60)
    keep_firing_for: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(120)
    repeat_every: Annotated[Duration, Bounds(seconds(0), seconds(604_800))] = seconds(14_400)
    again_after: Annotated[Duration, Bounds(seconds(0), seconds(86_400))] = seconds(300)
    instance: Annotated[
        str | None, Converter(parse_label_value), Accepts("an instance", '"gpu1.example.com:6360"')
    ] = None
    job: Annotated[str, Converter(parse_label_value), Accepts("the name of a job")] = JOB

    proxy: Annotated[
        Proxy | None, ContextConverter(proxy_from), Accepts(PROXY_WORDS, PROXY_EXAMPLE, shown=False)
    ] = None
    listener_user: ListenerUser = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Keys with lists of receivers: those that the derived section adds."""
        return tuple(name for name in self.__struct_fields__ if name not in Alerts.__struct_fields__)

    @property
    def receivers(self) -> tuple[ReceiverSection, ...]:
        """Receivers of all kinds, with their proxies."""
        shared = ProxyChoice(self.proxy, self.listener_user, is_shared=True)
        return tuple(one.behind(shared) for name in self.channels for one in getattr(self, name))

    def receivers_of_kind(self, kind: type[AnyReceiver]) -> tuple[AnyReceiver, ...]:
        return tuple(one for one in self.receivers if isinstance(one, kind))

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
        seen: set[str] = set()
        for kind in self.channels:
            for index, receiver in enumerate(getattr(self, kind)):
                if receiver.name in seen:
                    why = f'another receiver is named "{receiver.name}"; use a unique name'
                    raise InvalidValueError(why, ((kind, index, "name"),))
                seen.add(receiver.name)


def alerts_section(channels: Mapping[str, type[ReceiverSection]]) -> Alerts:
    """Build the section with a list for each kind of receiver and all defaults."""
    keys = [(name, tables_type(name, kind), ()) for name, kind in channels.items()]
    section = defstruct("Alerts", keys, bases=(Alerts,), module=__name__, frozen=True, kw_only=True)
    return cast("Alerts", section())


def tables_type(name: str, kind: type[ReceiverSection]) -> object:
    """Return the type of a key with a list of tables."""
    header = f"[[alerts.{name}]]"
    accepts = Accepts(f"a list of tables, each beginning with {header}", header, shown=False)
    return Annotated[tuple[kind, ...], Converter(parse_tuple), accepts, ON_RELOAD_OF_MACHINE]  # type: ignore[valid-type]
