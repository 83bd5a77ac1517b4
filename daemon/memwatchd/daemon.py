"""The daemon: builds its parts from the settings, starts, reloads and stops them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from memwatch.build_info import REVISION, __version__
from memwatch.core.clock import SystemClock
from memwatch.core.linux.files import Roots
from memwatch.core.linux.key_owner import KeyOwners
from memwatch.core.linux.memory_events import MemoryEvents
from memwatch.core.linux.own_pressure import OwnPressure
from memwatch.core.linux.process_ends import ProcessEnds
from memwatch.core.linux.process_files import Passwd
from memwatch.core.linux.psi_trigger import PsiTrigger
from memwatch.core.linux.wakeups import Wakeups
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.sampler import FIRST_SECONDS, Gatherer, Sampler
from memwatch.core.runtime.heap import trim_heap
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.doctor.checks import check_collectors
from memwatch.monitor.doctor.model import Verdict
from memwatch.monitor.loop import Monitor
from memwatch.monitor.neighbours.book import NeighbourBook
from memwatch.monitor.notify.manager import NotificationManager
from memwatch.monitor.notify.outbox.outbox import Outbox
from memwatch_web.asgi.failed_logins import FailedLogins
from memwatch_web.asgi.options import WebOptions
from memwatch_web.asgi.sse import Broker
from memwatch_web.metrics.daemon_families import ProcessFigures
from memwatch_web.metrics.families import Exporter
from memwatchd import wiring
from memwatchd.config_keeper import ConfigKeeper
from memwatchd.key_owners import open_key_owners
from memwatchd.liveness import find_ill
from memwatchd.neighbours.follower import Follower
from memwatchd.recording.player import Player, ReplaySleep, play_through
from memwatchd.sd_notify import Notifier
from memwatchd.settings.certificates import load_certificate
from memwatchd.settings.diff import describe_changes
from memwatchd.settings.load import SettingsError
from memwatchd.settings.neighbours import create_peers
from memwatchd.settings.schema import Settings
from memwatchd.state_dir import StateDir, open_state
from memwatchd.target_check import UnknownTargetCheck

log = logging.getLogger(__name__)


class Daemon:
    """All parts of a running memwatchd except its web server."""

    def __init__(
        self, settings: Settings, load: Callable[[bool], Settings], log_lines_dropped: Callable[[], int] = lambda: 0
    ) -> None:
        self.settings = self._started = settings
        self.roots = wiring.build_roots(settings)
        self.player = wiring.open_player(settings, time.time())
        self._host = "" if self.player else read_identity(self.roots).host
        self.live = wiring.build_live_settings(settings, settings, self.player, self._host)
        self.state = open_state(settings.state.dir) if self.player is None else StateDir(None)
        self._passwd = Passwd(self.roots.rootfs / "etc/passwd")
        self.key_owners = KeyOwners(self._passwd, open_key_owners(self.state.folder))
        self.monitor, self.sampler = (
            self._monitor_machine(self.roots) if self.player is None else self._monitor_recording(self.player)
        )
        self.recorder, problems = wiring.open_recorder(settings, self.monitor.identity)
        if self.state.complaint and self.state.was_wanted:
            problems = (*problems, self.state.complaint)
        self.settings = self._started = settings.with_lasting(problems)
        self.config = ConfigKeeper(self.monitor.use_config, self.state.folder)
        self.alerting = self._alerting()
        self.failed_logins = FailedLogins()
        self.monitor.publisher.hide_commands(self.live.is_open)
        self.broker = Broker(lambda: self.monitor.latest, self.live.max_streams)
        self.neighbours = NeighbourBook(self.monitor.identity.host, SystemClock())
        self.monitor.neighbours = self.neighbours.statuses
        self.monitor.machines_left_out = self.neighbours.found.count_left_out
        self.follower = Follower(self.neighbours, self.key_owners)
        self.pusher = wiring.create_pusher(settings, self.monitor, self.exporter(), self.labels, self.key_owners)
        self.discovery = wiring.open_discovery(settings, self.neighbours, self.monitor.identity.host)
        self.service = Notifier()
        self.target_check = UnknownTargetCheck(settings)
        self.tls = wiring.build_tls_context(settings)
        self.monitor.listeners.append(self.alerting.on_tick)
        self.on_leaving: list[Callable[[], None]] = []
        self._load = load
        self._log_lines_dropped = log_lines_dropped
        self._stop = threading.Event()
        self._ticking = threading.Thread(target=self.monitor.run, args=(self._stop,), name="tick", daemon=True)

    def _monitor_machine(self, roots: Roots) -> tuple[Monitor, Gatherer]:
        clock = SystemClock()
        sampler = Sampler(wiring.list_enabled_collectors(self.settings, self.key_owners.known), clock)
        ends = ProcessEnds() if roots.procfs == Roots().procfs else None
        own = OwnPressure(os.environ, trim_heap)
        watches = PsiTrigger(roots.procfs / "pressure/memory"), MemoryEvents(roots), own, *([ends] if ends else ())
        wakeups = Wakeups(watches, sampler.watches, sampler.hurry)
        identity, reports = read_identity(roots), AllocatorReports(roots.procfs)
        monitor = Monitor(sampler, clock, self.live.rules, identity, wakeups, reports=reports)
        monitor.incidents.ends = ends
        return monitor, sampler

    def _monitor_recording(self, player: Player) -> tuple[Monitor, Gatherer]:
        speed = player.clock.speed
        identity, sleep = wiring.replay_identity(player), ReplaySleep(speed)
        monitor = Monitor(player, player.clock, self.live.rules, identity, sleep, speed)
        player.began_again = monitor.replay_restarted
        return monitor, player

    def web_options(self) -> WebOptions:
        """Return the current web options. Called for every request, so a reload takes effect at once."""
        return self.live.web_options

    def labels(self) -> Mapping[str, str]:
        """Return the labels of [labels], which a reload may change."""
        return self.live.sender.labels

    def user_name(self, uid: int) -> str:
        """Return the name of a user, or the id as text. Root's own files only: a directory service may hang."""
        self._passwd.refresh()
        return str(self._passwd.name(uid))

    def exporter(self) -> Exporter:
        return Exporter(
            __version__,
            lambda: self.monitor.alert_states,
            lambda: self.alerting.receivers,
            lambda: self.web_options().process_metrics,
            self.alerting.outbox_figures,
            self.monitor.files_status,
            lambda: ProcessFigures(self._log_lines_dropped(), self.thread_states(), self.failed_logins.total),
            self.monitor.between_scrapes,
            self.monitor.identity,
            lambda: self.web_options().owner_metrics,
            self.labels,
            REVISION,
            self.monitor.incidents.log.recent,
            lambda: self.monitor.config,
        )

    def start(self) -> None:
        """Start the collectors and the other threads, except the tick thread."""
        for problem in self.settings.problems:
            log.error("configuration: %s", problem)
        for warning in filter(None, (*self.settings.warnings, self.live.exposure)):
            log.warning("%s", warning)
        if self.state.complaint and not self.state.was_wanted:
            missed = self.settings.alerts.receivers
            log.log(logging.WARNING if missed else logging.INFO, "%s", self.state.complaint)
        self.alerting.restore()
        self.alerting.start()
        self.sampler.start()
        self.follower.use(create_peers(self.live.neighbours))
        if self.discovery is not None:
            self.discovery.start()

    def first_tick(self) -> None:
        """Restore the history, start recording and take the first snapshot. Call before serving requests."""
        history_writer = wiring.open_history_writer(self.settings, self.state, SystemClock(), self.monitor.identity)
        if history_writer is not None:
            self.monitor.use_history_writer(history_writer)
        if self.player is None:
            wiring.use_incident_store(self.monitor, self.settings, self.state, SystemClock())
        if self.player is not None and self.settings.replay.demo:
            play_through(self.monitor, self.player)
        if self.recorder is not None:
            self.monitor.listeners.append(self.recorder.on_tick)
            self.recorder.start()
        self.monitor.listeners.append(self.target_check.on_tick)
        self.sampler.wait_for_first(FIRST_SECONDS)
        snapshot = self.monitor.tick()
        if self.player is None:
            self.config.started(self.settings)
            log_collectors(snapshot)

    def start_ticking(self) -> None:
        """Start the tick thread. First return free memory to the kernel and, if configured, lock memory."""
        self.monitor.self_usage.trim_memory()
        if self.settings.sampling.lock_memory:
            complaint = self.monitor.self_usage.lock_memory()
            if complaint:
                log.info("%s", complaint)
        self._ticking.start()
        if self.pusher is not None:
            self.pusher.start()

    def is_ticking(self) -> bool:
        """Return False if the tick thread has ended before `stop_ticking`."""
        return self._stop.is_set() or self._ticking.is_alive()

    def thread_states(self) -> dict[str, ThreadState]:
        """Return the state of each thread that delivers alerts or follows neighbours."""
        return {**self.alerting.thread_states(), **self.follower.states()}

    def failed_deliveries(self) -> list[str]:
        """Return a sentence for each receiver whose last attempt failed."""
        found = [(one.channel.title, one.status().failure) for one in self.alerting.receivers]
        failed = [f"{title}: {failure}" for title, failure in found if failure]
        return [*failed, *([self.pusher.failure] if self.pusher is not None and self.pusher.failure else [])]

    def report_alive(self, snapshot: Snapshot, states: Mapping[str, ThreadState]) -> None:
        """Feed the watchdog of the service manager, unless a thread that delivers alerts does not work."""
        if not self.service.is_connected:
            return
        ill = find_ill(states)
        if ill:
            self.service.status(f"threads that do not work: {', '.join(ill)}")
        else:
            self.service.alive(wiring.render_status(snapshot, self.monitor.config))

    def stop_ticking(self) -> None:
        self._stop.set()
        self.monitor.wake()

    def stop(self) -> None:
        """Stop every part. Those after one that fails still write what they hold."""
        writer = self.monitor.history_writer
        for stop in (
            self.service.stopping,
            self._end_ticking,
            self.sampler.stop,
            self.follower.stop,
            *(part.stop for part in (self.pusher, self.discovery) if part is not None),
            self.alerting.close,
            self.monitor.incidents.stop,
            *(part.stop for part in (writer, self.recorder) if part is not None),
            self.state.close,
        ):
            stop_part(stop)
        log.info("memwatchd stopped")

    def _end_ticking(self) -> None:
        self.stop_ticking()
        if self._ticking.is_alive():
            self._ticking.join(timeout=1.0)

    def reload(self) -> None:
        """Reload the settings. Keep the old ones if the new ones are invalid or cannot be applied."""
        self.service.reloading()
        try:
            settings = self._load(self.settings.file is not None)
            self._use(settings)
            self.config.reloaded(settings)
        except SettingsError as error:
            self.config.refused(error.problems)
        except Exception as error:  # EMFILE, out of memory: the daemon must go on and report ready to systemd
            log.debug("traceback of the failed reload", exc_info=True)
            self.config.refused([str(error) or type(error).__name__])
        self.ready()

    def ready(self) -> None:
        self.service.ready(self.settings.sampling.interval.total_seconds())

    def _alerting(self) -> NotificationManager:
        opened = wiring.open_state_outbox(self.state)
        for complaint in opened.complaints if opened else ():
            log.warning("%s", complaint)
        outbox = Outbox(opened.store, opened.stored) if opened else Outbox(None)
        receivers = wiring.create_receivers(self.live.receivers, outbox, self.key_owners)
        for name in self.settings.receivers_off:
            outbox.queue(name)  # without a queue, what is stored for it would be dropped
        recovered = int(opened.recovered) if opened else 0
        return NotificationManager(self.monitor, outbox, receivers, lambda: self.live.sender, recovered)

    def _use(self, settings: Settings) -> None:
        """Apply new settings. If a resource is unavailable, raise before anything has changed."""
        live = wiring.build_live_settings(settings, self._started, self.player, self._host)
        if self.tls is not None and live.certificate is not None:
            load_certificate(self.tls, *live.certificate)
        receivers = wiring.update_receivers(live.receivers, self.live.receivers, self.alerting, self.key_owners)
        peers = None if live.neighbours == self.live.neighbours else create_peers(live.neighbours)
        changes = describe_changes(self.settings, settings, simulated=self.player is not None)
        if live.is_open:  # before the new login is in force
            self.monitor.publisher.hide_commands(True)
        warnings = {*settings.warnings, live.exposure} - {*self.settings.warnings, self.live.exposure, None}
        self.settings, self.live = settings, live
        self.monitor.publisher.hide_commands(live.is_open)
        self.broker.max_streams = live.max_streams
        self.monitor.reconfigure(live.rules)
        self.target_check.use(settings)
        self.alerting.use(receivers)
        if peers is not None:
            self.follower.use(peers)
        for change in changes:
            log.info("%s", change)
        for warning in sorted(map(str, warnings)):
            log.warning("%s", warning)
        if not changes:
            log.info("settings reloaded, no changes")
        logging.getLogger().setLevel(live.log_level.upper())


def stop_part(stop: Callable[[], object]) -> None:
    """Stop a part, and log a failure: the other parts must still be stopped."""
    try:
        stop()
    except Exception as error:
        log.debug("traceback of the failed shutdown", exc_info=True)
        log.error("a part could not be stopped: %s", str(error) or type(error).__name__)


def log_collectors(snapshot: Snapshot) -> None:
    """Log the working collectors, those that do not apply, and remedies for others. Failures are logged already."""
    for check in check_collectors(snapshot):
        if check.verdict is not Verdict.PROBLEM:
            log.info("%s%s", check.text, f"; {check.remedy}" if check.remedy else "")
