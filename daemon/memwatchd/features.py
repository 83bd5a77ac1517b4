"""The features of a daemon: a line each in FEATURES. Those that the settings leave off are not imported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from memwatch.core.linux.files import Roots
from memwatch.core.linux.key_owner import KeyOwners
from memwatch.core.linux.process_ends import ProcessEnds
from memwatch.core.reading.identity import read_host
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.recording import RecordingError
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.alerts.rules import possible_targets
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_monitor.feature import Feature
from memwatch_monitor.guardian_reports import GuardianReports
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.incident_observer import IncidentObserver
from memwatch_monitor.lease_book import LeaseBook
from memwatch_monitor.loop import Monitor
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.notify.channel import Channel
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_monitor.notify.outbox import Outbox
from memwatch_monitor.notify.receiver import Receiver, Subscription
from memwatch_monitor.processes import EndedProcesses, GrowthWatch
from memwatch_monitor.transitions import EventWriter
from memwatchd.sd_notify import Notifier
from memwatchd.settings.alerts import ReceiverSection
from memwatchd.settings.credentials import client_context
from memwatchd.settings.endpoints import create_peers
from memwatchd.settings.schema import Settings
from memwatchd.state_dir import StateDir
from memwatchd.wiring import LiveSettings

if TYPE_CHECKING:
    from memwatch_web.metrics.families import Exporter
    from memwatchd.recording.player import Player

log = logging.getLogger(__name__)

# By then every collector has delivered, even one whose helper had to be restarted.
SETTLED_SECONDS = 60.0

# Time between two looks at the name of the machine.
HOST_NAME_SECONDS = 60.0

# (setting as shown in the warning, target) → events of the receiver; empty for pressure targets, which are pools or
# shares.
WantedTargets = Mapping[tuple[str, str], tuple[str, ...]]


class Parts(Protocol):
    """A daemon, from which features are created. `problems`: settings that are not in force.

    `passed`: descriptors of systemd by name.
    """

    monitor: Monitor
    settings: Settings
    live: LiveSettings
    roots: Roots
    state: StateDir
    key_owners: KeyOwners
    service: Notifier
    problems: list[str]
    ends: ProcessEnds | None
    passed: dict[str, int]
    player: Player | None

    def rename(self, host: str) -> None: ...

    def exporter(self) -> Exporter: ...

    def labels(self) -> Mapping[str, str]: ...


class Reload(Struct, frozen=True):
    """New settings, their live part, and that of before."""

    settings: Settings
    live: LiveSettings
    before: LiveSettings


class Alerting(NotificationManager):
    """The receivers of the settings, with their outbox in the state folder."""

    owners: KeyOwners

    @classmethod
    def create(cls, daemon: Parts) -> Alerting:
        opened = None
        if daemon.state.folder is not None:
            from memwatch_monitor.notify.sqlite_store import open_outbox

            opened = open_outbox(daemon.state.folder, time.time())
        for complaint in opened.complaints if opened else ():
            log.warning("%s", complaint)
        outbox = Outbox(opened.store, opened.stored) if opened else Outbox(None)
        owners = daemon.key_owners
        receivers = [create_receiver(one, outbox, one.create_channel(owners)) for one in daemon.live.receivers]
        for name in daemon.settings.receivers_off:
            outbox.queue(name)  # without a queue, what is stored for it would be dropped
        recovered = int(opened.recovered) if opened else 0
        made = cls(daemon.monitor, outbox, receivers, daemon.live.sender, recovered)
        made.owners = owners
        return made

    def start(self) -> None:
        self.restore()
        super().start()

    def prepare_reload(self, new: Reload) -> Callable[[], None]:
        """A receiver with unchanged settings is kept. One that changed takes over the queue of an earlier one with
        its name, unless that had another type."""
        known = {one.name: one for one in new.before.receivers}
        changed = [one for one in new.live.receivers if one != known.get(one.name)]
        channels = {one.name: one.create_channel(self.owners) for one in changed}

        def apply() -> None:
            receivers = {one.name: one for one in self.receivers}
            for one in changed:
                was = known.get(one.name)
                if was is not None and type(was) is not type(one):
                    self.drop(one.name)
                receivers[one.name] = create_receiver(one, self.outbox, channels[one.name])
            self.sender = new.live.sender
            self.use([receivers[one.name] for one in new.live.receivers])

        return apply


def create_receiver(receiver: ReceiverSection, outbox: Outbox, channel: Channel) -> Receiver:
    wanted = Subscription(frozenset(receiver.events), frozenset(receiver.targets), receiver.instead_of_prometheus)
    return Receiver(receiver.name, channel, outbox.queue(receiver.name), wanted)


class HostName(Feature):
    """Look for another name of the machine: DHCP and cloud-init set it after the start, hostnamectl at any time.

    A recording keeps the name with which it was made.
    """

    name = "name of the machine"

    def __init__(self, read: Callable[[], str], rename: Callable[[str], object]) -> None:
        self._read, self._rename = read, rename
        self._due = 0.0

    def on_publish(self, snapshot: Snapshot) -> None:
        if snapshot.monotonic < self._due:
            return
        self._due, host = snapshot.monotonic + HOST_NAME_SECONDS, self._read()
        if host != snapshot.host:
            log.info("this machine is named %s now, no longer %s", host, snapshot.host)
            self._rename(host)


class UnknownTargetCheck(Feature):
    """Check of configured targets, one minute after the first tick and, for new ones, after each reload."""

    name = "check of targets"

    @classmethod
    def create(cls, daemon: Parts) -> UnknownTargetCheck:
        return cls(daemon.settings)

    def __init__(self, settings: Settings) -> None:
        self._began: float | None = None
        self._checked: WantedTargets = {}
        self._targets: WantedTargets = {}
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Check the targets of these settings at a later tick. Thread-safe."""
        self._targets = wanted_by(settings)

    def prepare_reload(self, new: Reload) -> Callable[[], object]:
        return partial(self.use, new.settings)

    def on_publish(self, snapshot: Snapshot) -> None:
        if self._began is None:
            self._began = snapshot.monotonic
        wanted = self._targets
        if not wanted or snapshot.monotonic < self._began + SETTLED_SECONDS:
            return
        for (where, target), events in wanted.items():
            here = possible_targets(snapshot, events) if events else tuple(snapshot.labels)
            if target not in here and self._checked.get((where, target)) != events:
                those = ", ".join(here) or "none"
                log.warning("%s, but this machine has no such target now; available: %s", where, those)
        self._checked, self._targets = wanted, {}


def wanted_by(settings: Settings) -> WantedTargets:
    """Return all targets that the settings name."""
    wanted: dict[tuple[str, str], tuple[str, ...]] = {
        (f"pressure.targets.{target} is set", target): () for target in settings.pressure.targets
    }
    for receiver in settings.alerts.receivers:
        for target in receiver.targets:
            wanted[f'receiver "{receiver.name}" lists the target "{target}"', target] = tuple(receiver.events)
    return wanted


def follow_host_name(daemon: Parts) -> Feature | None:
    return None if daemon.player else HostName(partial(read_host, daemon.roots), daemon.rename)


def follow_neighbours(daemon: Parts, live: LiveSettings | None = None) -> Feature | None:
    """Follow the machines of [[neighbours]]. A reload may add the first one."""
    followed = (live or daemon.live).neighbours
    if not followed:
        return None
    from memwatchd.neighbours.follower import Follower

    book = daemon.monitor.features.get(NeighbourBook)
    firing = partial(daemon.monitor.features.get(Alerts).firing, "neighbour.silent")
    return Follower(book, daemon.key_owners, create_peers(followed), create_peers, firing)


def discover(daemon: Parts) -> Feature | None:
    """Search for other machines with mDNS."""
    if not daemon.settings.discovery.mdns:
        return None
    from memwatchd.neighbours.mdns import Announcement, Discovery

    web, book = daemon.settings.web, daemon.monitor.features.get(NeighbourBook)
    listener, has_tls = web.listener_for_others, web.tls.cert_file is not None
    announced = None if listener is None else Announcement(listener.port, has_tls, listener.host)
    return Discovery(book.found, daemon.monitor.identity.host, book.run, announced)


def push_metrics(daemon: Parts) -> Feature | None:
    """Push metrics over OTLP. OpenTelemetry's SDK is imported only for this."""
    otlp = daemon.settings.otlp
    if otlp.endpoint is None:
        return None
    from memwatchd.otlp import PayloadSource, Pusher, Target

    headers = {name: one.text for name, one in otlp.headers.items()}
    tls = partial(client_context, otlp.ca_file)
    admit = daemon.key_owners.admit(otlp.secret, otlp.user) if otlp.secret else None
    target = Target(otlp.url, otlp.endpoint.origin, otlp.interval.total_seconds(), headers, tls, admit)
    return Pusher(target, PayloadSource(lambda: daemon.monitor.latest, daemon.exporter(), daemon.labels))


def record(daemon: Parts) -> Feature | None:
    """Record to a file. Raises RecordingError if it is unusable and was named on the command line."""
    file = daemon.settings.recording.file
    if file is None:
        return None
    from memwatchd.recording.player import Recorder

    try:
        return Recorder(file, daemon.monitor.identity.host)
    except (RecordingError, OSError) as error:
        if daemon.settings.origins.get("recording.file", "").startswith("--"):
            raise
        daemon.problems.append(f"the recording is off: {error}")
        return None


def serve_systemd(daemon: Parts) -> Feature | None:
    """Serve the pressure sockets, and the sockets that systemd passed."""
    systemd = daemon.settings.systemd
    # Levels of a demo or a recording must not reach programs of this machine.
    folder = systemd.socket_dir if systemd.pressure_sockets and not daemon.monitor.simulated else None
    if folder is None and not daemon.passed:
        return None
    from memwatchd.systemd.serve import SystemdSockets

    return SystemdSockets(daemon.monitor, daemon.roots, daemon.service, folder, daemon.passed)


# In the order of their work in a tick. A function returns None if the settings leave its feature off.
FEATURES: Sequence[Callable[[Parts], Feature | None]] = (
    EndedProcesses.create,
    EventWriter.create,
    GrowthWatch.create,
    Alerts.create,
    BetweenScrapes.create,
    record,
    HistoryRecorder.create,
    LeaseBook.create,
    IncidentObserver.create,
    GuardianReports.create,
    NeighbourBook.create,
    Alerting.create,
    follow_host_name,
    UnknownTargetCheck.create,
    follow_neighbours,
    discover,
    push_metrics,
    serve_systemd,
)
# Those of them that a reload may start.
STARTED_BY_RELOADS: Sequence[Callable[[Parts, LiveSettings], Feature | None]] = (follow_neighbours,)
