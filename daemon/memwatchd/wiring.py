"""Build each part of the daemon from the settings.

The command `memwatch` reads a machine with `load_reading` if no daemon runs. It needs nothing of the loop, the
history and the web server: what only these need is imported where it is used.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from memwatch.cli.http import CommandError
from memwatch.core import units
from memwatch.core.budget import EVENT_STREAMS, Budgets
from memwatch.core.clock import Clock
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import CollectorEntry, Host, ScanOptions
from memwatch.core.engines.records import ModelQuery, ModelSizes
from memwatch.core.linux.files import Roots
from memwatch.core.linux.key_owner import KnownOwners
from memwatch.core.options import ConfigState, InvalidValueError, duration_text, seconds
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.machine import DirectReading, MachineReader
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.recording import RecordingError
from memwatch_monitor.feature import MonitorRules
from memwatch_monitor.notify.channel import Sender
from memwatchd.settings.alerts import ReceiverSection
from memwatchd.settings.endpoints import NeighbourSection, engine_addresses
from memwatchd.settings.load import SettingsError, load
from memwatchd.settings.schema import DEMO_BEGINS, Settings
from memwatchd.settings.validation import Problem
from memwatchd.settings.web import Web

if TYPE_CHECKING:
    import ssl

    from memwatch.planning.served import ServedModels
    from memwatch_monitor.history.writer import HistoryWriter
    from memwatch_monitor.loop import Monitor
    from memwatch_web.asgi.access import WebOptions
    from memwatchd.recording.player import Player
    from memwatchd.state_dir import StateDir

EVERYTHING = ConfigState()
log: logging.Logger = logging.getLogger(__name__)


def build_roots(settings: Settings) -> Roots:
    sampling = settings.sampling
    return Roots(sampling.procfs, sampling.sysfs, sampling.rootfs)


def budget_limits(settings: Settings) -> dict[str, int]:
    """Return the maximum of each kind of thing that accounts share."""
    return {**settings.budgets.limits, EVENT_STREAMS.name: settings.web.max_streams}


def build_budgets(limits: Mapping[str, int]) -> Budgets:
    budgets = Budgets()
    budgets.use(limits)
    return budgets


def list_enabled_collectors(
    settings: Settings, key_owners: KnownOwners | None = None, budgets: Budgets | None = None
) -> list[CollectorEntry]:
    """Return the collectors that are not disabled."""
    return list_collectors(build_host(settings, key_owners, budgets), settings.collectors.disabled)


def build_direct_reading(settings: Settings) -> DirectReading:
    """Return a reading of the machine without a daemon. Raise RecordingError if a recording is unreadable."""
    player = open_player(settings, time.time())
    rules = build_rules(settings, player)
    replay = player and MachineReader(
        player, player.clock, replay_identity(player), rules.pressure, rules.interval_seconds
    )
    return DirectReading(
        build_roots(settings),
        list_enabled_collectors(settings),
        rules.pressure,
        rules.interval_seconds,
        replay.read if replay else None,
    )


def load_reading() -> DirectReading:
    """Return the reading of the command `memwatch`, with the settings of a daemon. For `memwatch.cli.local`."""
    try:
        return build_direct_reading(load({}, os.environ))
    except SettingsError as error:
        raise CommandError(f"invalid memwatchd settings: {error}") from None
    except RecordingError as error:
        raise CommandError(str(error)) from None


def build_host(settings: Settings, key_owners: KnownOwners | None = None, budgets: Budgets | None = None) -> Host:
    scan = ScanOptions(
        settings.processes.top,
        settings.processes.interval.total_seconds(),
        settings.processes.command_lines and not settings.web.is_open,  # they may contain passwords
    )
    options = (scan, engine_addresses(settings.engines), *settings.collectors.options)
    return Host(
        build_roots(settings), options, size_model=build_model_reader(), key_owners=key_owners, budgets=budgets
    )


def build_model_reader() -> Callable[[ModelQuery], ModelSizes]:
    """Return a reader of models' sizes. Only machines with a model server need the planner: it is imported late."""

    @cache
    def models() -> ServedModels:
        from memwatch.planning.served import ServedModels

        return ServedModels()

    return lambda query: models().size(query)


def build_rules(settings: Settings, player: Player | None = None) -> MonitorRules:
    """Return the rules of the monitor. With a `player`, its recording sets the interval."""
    interval = settings.sampling.interval.total_seconds() if player is None else player.interval_seconds
    return MonitorRules(
        interval_seconds=interval,
        history_seconds=settings.history.length.total_seconds(),
        medium_seconds=settings.history.medium_length.total_seconds(),
        coarse_seconds=settings.history.coarse_length.total_seconds(),
        pressure=settings.pressure.rules,
        alerts=replace(settings.alerts.rules, min_available_bytes=settings.pressure.min_available_bytes),
        leaks=settings.processes.leak_rules,
    )


def open_player(settings: Settings, unix: float) -> Player | None:
    """Open the demo or recording, if one is configured. Raise RecordingError if it is unreadable.

    A demo starts in the past, so that it has played one round at `unix`. A recording keeps its own timestamps.
    """
    replay, file = settings.replay, settings.replay.file
    at = replay.at
    if at is None:
        at = DEMO_BEGINS if replay.demo else seconds(0)
    if replay.demo:
        from memwatchd.recording.demos import path_of

        file = path_of(replay.demo)
    if file is None:
        return None
    from memwatchd.recording.player import Player, ReplayClock, open_recording

    contents = open_recording(file, replay.salvage)
    length, skipped = contents.length, at.total_seconds()
    if skipped >= length:
        raise RecordingError(
            f"{replay.demo or file} is {units.duration(length)} long and cannot begin at {duration_text(at)}; "
            f"use a time from 0s to {int(length - contents.first.interval_seconds)}s, such as --at 0s"
        )
    began = unix - length - skipped if replay.demo else contents.first.unix
    clock = ReplayClock(began, replay.speed)
    clock.skip(skipped)
    return Player(contents, clock)


def open_history_writer(
    settings: Settings, state: StateDir, clock: Clock, identity: Identity
) -> HistoryWriter | None:
    """Return the writer of the history, None without a state folder. A read-only folder is only read."""
    folder = state.folder or state.readable
    if folder is None:
        return None
    from memwatch_monitor.history.writer import HistoryWriter

    return HistoryWriter(folder, settings.history.disk_size, clock, identity.boot_id)


def use_incident_store(monitor: Monitor, settings: Settings, state: StateDir, clock: Clock) -> None:
    """Keep incidents in the state folder, and close those that an unclean end cut off. Call it after the restore of
    the history."""
    if state.folder is None:
        return
    from memwatch.core.linux.kmsg_parser import find_crash_records
    from memwatch_monitor.history_recorder import HistoryRecorder
    from memwatch_monitor.incident_observer import IncidentObserver
    from memwatch_monitor.incidents.store import IncidentStore

    words = monitor.features.get(HistoryRecorder).unclean_shutdown
    try:
        store = IncidentStore(state.folder, clock, monitor.identity.boot_id)
    except OSError as error:
        log.warning("incidents are kept in memory: %s", error)
        return
    crash = find_crash_records(build_roots(settings), words.unix) if words and words.machine_restarted else ()
    monitor.features.get(IncidentObserver).use_store(store, words, crash)


class LiveSettings(Struct, frozen=True):
    """Settings that a reload applies. All others need a restart.

    `certificate`: the files of the certificate and its key; None if the daemon was started without TLS. `is_open`:
    other machines have access without a login. `exposure`: a warning about them.
    """

    rules: MonitorRules
    web_options: WebOptions
    receivers: tuple[ReceiverSection, ...]
    neighbours: tuple[NeighbourSection, ...]
    sender: Sender
    budgets: Mapping[str, int]
    log_level: str
    certificate: tuple[str, str | None] | None
    is_open: bool
    exposure: str | None


def effective_web(web: Web, started: Web) -> Web:
    """Return `web` with the addresses and the TLS of the start, which a reload does not change.

    Raises SettingsError if other machines would then have access without a login.
    """
    try:
        return replace(web, listen=started.listen, tls=started.tls)
    except InvalidValueError as error:
        why = f"web.listen and web.tls.client_ca_file change at the next start only, and until then {error}"
        raise SettingsError([Problem(why)]) from None


def build_live_settings(
    settings: Settings, started: Settings, player: Player | None = None, host: str = ""
) -> LiveSettings:
    """Return the live part of `settings` for a daemon that was started with the settings `started`.

    `host`: name of this machine.
    Raises SettingsError if the settings are not safe with the addresses of the start.
    """
    from memwatch_web.asgi.access import WebOptions
    from memwatchd.settings.credentials import certificate_names

    web, cert_file = effective_web(settings.web, started.web), settings.web.tls.cert_file
    named = started.processes.top if settings.processes.metrics else 0
    speaks_tls = started.web.tls.cert_file is not None
    certificate = (cert_file, settings.web.tls.key_file) if speaks_tls and cert_file is not None else None
    return LiveSettings(
        rules=build_rules(settings, player),
        web_options=WebOptions(
            hosts=web.allowed_hosts,
            certificate_names=certificate_names(*certificate) if certificate else (),
            process_metrics=named,
            owner_metrics=settings.processes.owners,
            login=web.login,
        ),
        receivers=settings.alerts.receivers if player is None else (),
        neighbours=settings.neighbours,
        sender=build_sender(settings, web, host),
        budgets=budget_limits(settings),
        log_level=settings.log.level,
        certificate=certificate,
        is_open=web.is_open,
        exposure=describe_exposure(web),
    )


def build_sender(settings: Settings, web: Web, host: str) -> Sender:
    """Return the identity of this daemon in alerts, with the instance that Prometheus most likely uses."""
    own = f"{host}:{web.tcp_port}" if web.tcp_port else host
    return Sender(
        url=web.url_for_others(host),
        instance=settings.alerts.instance or web.address_for_others(host) or own,
        is_instance_set=settings.alerts.instance is not None,
        job=settings.alerts.job,
        labels=settings.labels,
    )


def build_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the listeners, None for plain HTTP."""
    from memwatchd.settings.credentials import tls_context

    tls = settings.web.tls
    return None if tls.cert_file is None else tls_context(tls.cert_file, tls.key_file, tls.client_ca_file)


def replay_identity(player: Player) -> Identity:
    return Identity(player.contents.first.host, player.contents.first.boot_id, simulated=True)


def render_status(snapshot: Snapshot, config: ConfigState = EVERYTHING) -> str:
    """Return one line for `systemctl status`."""
    from memwatch.reporting.render.summary import notice_lines, notices_of

    levels = ", ".join(
        f"{snapshot.labels[one.target]} {one.level.label} ({one.ratio:.0%})" for one in snapshot.pressure
    )
    notices = notice_lines(notices_of(snapshot), snapshot.unix)
    return "; ".join(filter(None, (levels or "no data", config.notice, *notices)))


def describe_exposure(web: Web) -> str | None:
    """Return a warning about addresses that other machines can reach, None if there is no problem."""
    if not web.exposed_addresses:
        return None
    where = ", ".join(web.exposed_addresses)
    if web.is_open:
        return f"no login: any client that reaches {where} can read all data"
    if web.tls.cert_file is None:
        return f"no TLS: passwords and tokens reach {where} unencrypted; set cert_file under [web.tls]"
    return None


def list_addresses(sockets: Sequence[socket.socket], scheme: str = "http") -> list[str]:
    """Return the URLs of the listening sockets."""
    return [_format_address(one, scheme) for one in sockets]


def _format_address(listener: socket.socket, scheme: str) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
