"""From settings to what each part takes: one function a part."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from memwatch.clock import Clock
from memwatch.collectors import enlist
from memwatch.collectors.base import Enlisted, Host, ScanOptions
from memwatch.history.disk.writer import Keeper
from memwatch.linux.files import Roots, read_once
from memwatch.monitor.loop import Identity, Rules
from memwatch.notify.channel import Channel
from memwatch.notify.manager import Alerting
from memwatch.notify.outbox.outbox import Outbox
from memwatch.notify.receiver import Receiver, Subscription
from memwatch.snapshot import Snapshot
from memwatch_web.asgi.options import FaceOptions
from memwatchd.recording.demos import path_of
from memwatchd.recording.frames import open_recording
from memwatchd.recording.player import PlayedClock, Player
from memwatchd.recording.recorder import Recorder
from memwatchd.settings.certificates import tls_context
from memwatchd.settings.channels import Recipient
from memwatchd.settings.schema import Settings
from memwatchd.state_dir import State

if TYPE_CHECKING:
    import ssl

    from memwatch.notify.outbox.open import Opened


def roots_of(settings: Settings) -> Roots:
    sampling = settings.sampling
    return Roots(sampling.procfs, sampling.sysfs, sampling.rootfs)


def enlisted_of(settings: Settings) -> list[Enlisted]:
    """Return the collectors that are not switched off."""
    return enlist(host_of(settings), settings.collectors.disabled)


def host_of(settings: Settings) -> Host:
    scan = ScanOptions(
        settings.processes.top,
        settings.processes.interval.total_seconds(),
        settings.processes.command_lines and not settings.web.is_open,  # they hold passwords
    )
    return Host(roots_of(settings), (scan, *settings.collectors.options))


def rules_of(settings: Settings, player: Player | None = None) -> Rules:
    """`player` has an interval of its own: that of what it plays."""
    interval = settings.sampling.interval.total_seconds() if player is None else player.interval_seconds
    return Rules(
        interval_seconds=interval,
        history_seconds=settings.history.length.total_seconds(),
        medium_seconds=settings.history.medium_length.total_seconds(),
        coarse_seconds=settings.history.coarse_length.total_seconds(),
        pressure=settings.pressure.rules,
        alerts=replace(settings.alerts.rules, enough_bytes=settings.pressure.enough_bytes),
        leaks=settings.processes.leak_rules,
    )


def player_of(settings: Settings, unix: float) -> Player | None:
    """What is shown in place of this machine, if anything is. Raises BadRecording.

    A demo begins so long ago that its first round ends now; a recording shows the times at which it was made.
    """
    replay = settings.replay
    file = path_of(replay.demo) if replay.demo else replay.file
    if file is None:
        return None
    contents = open_recording(file, replay.salvage)
    began = unix - contents.length if replay.demo else contents.first.unix
    return Player(contents, PlayedClock(began, replay.speed))


def recorder_of(settings: Settings, identity: Identity) -> Recorder | None:
    """What writes down what is read, if that is wanted. Raises BadRecording."""
    return Recorder(settings.recording.file, identity.host) if settings.recording.file else None


def keeper_of(settings: Settings, state: State, clock: Clock, identity: Identity) -> Keeper | None:
    """What reads the history and writes it; None without a state folder. One that is read-only is read."""
    folder = state.folder or state.readable
    if folder is None:
        return None
    return Keeper(folder, settings.history.disk_size, clock, identity.boot_id)


class Live(Struct, frozen=True):
    """Everything that a reload applies: a key that takes effect then changes something here, any other key nothing.

    `certificate` has the files of the certificate and its key; None for a daemon that was started without TLS.
    """

    rules: Rules
    faces: FaceOptions
    recipients: tuple[Recipient, ...]
    dashboard_url: str | None
    max_streams: int
    log_level: str
    certificate: tuple[str, str | None] | None


def live_of(settings: Settings, started: Settings, player: Player | None = None) -> Live:
    """Return what holds from now on in a daemon that was started with other settings."""
    web, cert_file = settings.web, settings.web.tls.cert_file
    named = started.processes.top if settings.processes.metrics else 0
    speaks_tls = started.web.tls.cert_file is not None
    return Live(
        rules=rules_of(settings, player),
        faces=FaceOptions(hosts=web.hosts, process_metrics=named, login=web.login, patterns=web.patterns),
        recipients=settings.alerts.recipients if player is None else (),
        dashboard_url=web.url,
        max_streams=web.max_streams,
        log_level=settings.log.level,
        certificate=(cert_file, web.tls.key_file) if speaks_tls and cert_file is not None else None,
    )


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """What listeners speak; None for plain HTTP."""
    tls = settings.web.tls
    return None if tls.cert_file is None else tls_context(tls.cert_file, tls.key_file, tls.client_ca_file)


def open_outbox_of(state: State) -> Opened | None:
    """What the state folder holds of alerts; SQLite is loaded only where there is one."""
    if state.folder is None:
        return None
    from memwatch.notify.outbox.open import open_outbox

    return open_outbox(state.folder, time.time())


def receivers_of(recipients: Sequence[Recipient], outbox: Outbox) -> list[Receiver]:
    """Everybody who is told. What they need to be reached (TLS, threads) exists from here on."""
    return [receiver_of(one, outbox, one.create_channel()) for one in recipients]


def receivers_after(now: Sequence[Recipient], before: Sequence[Recipient], alerting: Alerting) -> list[Receiver]:
    """Everybody who is told from now on: those whose settings are what they were `before` stay as they are.

    A receiver takes over what waits for an earlier one of its name, unless that was of another sort. What may fail
    (TLS reads files) comes before anything is dropped.
    """
    receivers = {one.name: one for one in alerting.receivers}
    known = {one.name: one for one in before}
    changed = [one for one in now if one != known.get(one.name)]
    channels = {one.name: one.create_channel() for one in changed}
    for one in changed:
        was = known.get(one.name)
        if was is not None and type(was) is not type(one):
            alerting.drop(one.name)
        receivers[one.name] = receiver_of(one, alerting.outbox, channels[one.name])
    return [receivers[one.name] for one in now]


def receiver_of(recipient: Recipient, outbox: Outbox, channel: Channel) -> Receiver:
    return Receiver(recipient.name, channel, outbox.box(recipient.name), subscription_of(recipient))


def subscription_of(recipient: Recipient) -> Subscription:
    return Subscription(frozenset(recipient.events), frozenset(recipient.targets))


def identity_of(roots: Roots) -> Identity:
    """Which machine the figures are of: the one that procfs shows, else the one this runs on."""
    host = _word(roots, "sys/kernel/hostname") or socket.gethostname()
    return Identity(host, _word(roots, "sys/kernel/random/boot_id") or "unknown")


def identity_played(player: Player) -> Identity:
    return Identity(player.contents.first.host, player.contents.first.boot_id, simulated=True)


def _word(roots: Roots, path: str) -> str:
    return (read_once(roots.procfs / path) or b"").decode("utf-8", "replace").strip()


def status_of(snapshot: Snapshot) -> str:
    """One line for `systemctl status`."""
    levels = ", ".join(
        f"{snapshot.labels[one.target]} {one.level.word} ({one.ratio:.0%})" for one in snapshot.pressure
    )
    return levels or "no figures"


def exposure_of(settings: Settings) -> str | None:
    """What an administrator should know about addresses that others can reach; None when all is well."""
    web = settings.web
    if not web.exposed:
        return None
    where = ", ".join(web.exposed)
    if web.is_open:
        return f"anybody who reaches {where} can read all figures: there is no login"
    if web.tls.cert_file is None:
        return f"passwords and tokens cross the network in the clear to {where}: set cert_file under [web.tls]"
    return None


def addresses_of(sockets: Sequence[socket.socket], scheme: str = "http") -> list[str]:
    """Where the daemon answers, as one would type it."""
    return [_address_of(one, scheme) for one in sockets]


def _address_of(listener: socket.socket, scheme: str) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
