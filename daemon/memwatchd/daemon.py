"""The daemon on one screen: what is built from the settings, and how it starts, reloads and stops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from memwatch import __version__
from memwatch.clock import SystemClock
from memwatch.linux.files import Roots
from memwatch.linux.psi_trigger import PsiTrigger
from memwatch.monitor.loop import Monitor
from memwatch.monitor.sampler import Gatherer, Sampler
from memwatch.notify.manager import Alerting
from memwatch.notify.outbox.outbox import Outbox
from memwatch.processes.allocator_reports import Reports
from memwatch_web.asgi.options import FaceOptions
from memwatch_web.asgi.sse import Broker
from memwatch_web.metrics.families import Exporter
from memwatchd import wiring
from memwatchd.first_tick import first_tick
from memwatchd.recording.player import PlayedSleep, Player, play_through
from memwatchd.sd_notify import Notifier
from memwatchd.settings.certificates import load_certificate
from memwatchd.settings.diff import describe_changes
from memwatchd.settings.load import BadSettings
from memwatchd.settings.schema import Settings
from memwatchd.state_dir import State, open_state
from memwatchd.target_check import Unmet

log = logging.getLogger(__name__)


class Daemon:
    """All parts of a running memwatchd but its web server, each knowing only what it is given here."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        self.settings = self._started = settings
        self.roots = wiring.roots_of(settings)
        self.player = wiring.player_of(settings, time.time())
        self.live = wiring.live_of(settings, settings, self.player)
        self.monitor, self.sampler = (
            self._of_machine(self.roots) if self.player is None else self._of_player(self.player)
        )
        self.recorder = wiring.recorder_of(settings, self.monitor.identity)
        self.state = open_state(settings.state.dir) if self.player is None else State(None)
        self.alerting = self._alerting()
        self.broker = Broker(lambda: self.monitor.latest, self.live.max_streams)
        self.service = Notifier()
        self.unmet = Unmet(settings)
        self.tls = wiring.tls_of(settings)
        self.monitor.listeners.append(self.alerting.tell)
        self.on_leaving: list[Callable[[], None]] = []
        self._load = load
        self._stop = threading.Event()
        self._ticking = threading.Thread(target=self.monitor.run, args=(self._stop,), name="tick", daemon=True)

    def _of_machine(self, roots: Roots) -> tuple[Monitor, Gatherer]:
        clock = SystemClock()
        sampler = Sampler(wiring.enlisted_of(self.settings), clock)
        trigger = PsiTrigger(roots.procfs / "pressure/memory")
        identity, reports = wiring.identity_of(roots), Reports(roots.procfs)
        return Monitor(sampler, clock, self.live.rules, identity, trigger, reports=reports), sampler

    def _of_player(self, player: Player) -> tuple[Monitor, Gatherer]:
        speed = player.clock.speed
        identity, sleep = wiring.identity_played(player), PlayedSleep(speed)
        monitor = Monitor(player, player.clock, self.live.rules, identity, sleep, speed)
        player.began_again = monitor.replayed_again
        return monitor, player

    def face_options(self) -> FaceOptions:
        """Asked for on every request."""
        return self.live.faces

    def exporter(self) -> Exporter:
        return Exporter(
            __version__,
            lambda: self.monitor.watches,
            lambda: self.alerting.receivers,
            lambda: self.face_options().process_metrics,
            self.alerting.outbox_figures,
            self.monitor.files_status,
        )

    def start(self) -> None:
        """Begin to ask the collectors, and what else needs a thread."""
        for warning in filter(None, (*self.settings.warnings, wiring.exposure_of(self.settings))):
            log.warning("%s", warning)
        if self.state.complaint:
            missed = self.state.was_wanted or self.settings.alerts.recipients
            log.log(logging.WARNING if missed else logging.INFO, "%s", self.state.complaint)
        self.alerting.restore()
        self.alerting.start()
        self.sampler.start()

    def first_tick(self) -> None:
        """What everybody may ask for from now on."""
        keeper = wiring.keeper_of(self.settings, self.state, SystemClock(), self.monitor.identity)
        if keeper is not None:
            self.monitor.keep_on_disk(keeper)
        if self.player is not None and self.settings.replay.demo:
            play_through(self.monitor, self.player)
        if self.recorder is not None:
            self.monitor.listeners.append(self.recorder.tell)
            self.recorder.start()
        self.monitor.listeners.append(self.unmet.tell)
        first_tick(self.sampler, self.monitor)

    def start_ticking(self) -> None:
        """From here on only the API and the pages are built: return what building left over, lock what stays."""
        self.monitor.self_usage.settle()
        if self.settings.sampling.lock_memory:
            complaint = self.monitor.self_usage.lock_memory()
            if complaint:
                log.info("%s", complaint)
        self._ticking.start()

    def stop_ticking(self) -> None:
        self._stop.set()
        self.monitor.wake()

    def stop(self) -> None:
        self.service.stopping()
        self.stop_ticking()
        if self._ticking.is_alive():
            self._ticking.join(timeout=1.0)
        self.sampler.stop()
        self.alerting.close(2.0)
        if self.monitor.keeper is not None:
            self.monitor.keeper.stop()
        if self.recorder is not None:
            self.recorder.stop(2.0)
        self.state.close()
        log.info("memwatchd stopped")

    def reload(self) -> None:
        """Read the settings again; keep the old ones where the new ones are bad, or cannot be taken up now."""
        self.service.reloading()
        try:
            self._use(self._load())
        except BadSettings as error:
            for problem in error.problems:
                log.error("the old settings stay: %s", problem)
        except Exception as error:  # too many open files, no memory: systemd and the next reload must not care
            log.debug("the defect in full", exc_info=True)
            log.error("the old settings stay: %s", str(error) or type(error).__name__)
        self.ready()

    def ready(self) -> None:
        self.service.ready(self.settings.sampling.interval.total_seconds())

    def _alerting(self) -> Alerting:
        opened = wiring.open_outbox_of(self.state)
        for complaint in opened.complaints if opened else ():
            log.warning("%s", complaint)
        outbox = Outbox(opened.store, opened.kept) if opened else Outbox(None)
        receivers = wiring.receivers_of(self.live.recipients, outbox)
        recovered = int(opened.recovered) if opened else 0
        return Alerting(self.monitor, outbox, receivers, lambda: self.live.dashboard_url, recovered)

    def _use(self, settings: Settings) -> None:
        """Raises where something cannot be had now, and then nothing has changed."""
        live = wiring.live_of(settings, self._started, self.player)
        if self.tls is not None and live.certificate is not None:
            load_certificate(self.tls, *live.certificate)
        receivers = wiring.receivers_after(live.recipients, self.live.recipients, self.alerting)
        changes = describe_changes(self.settings, settings, simulated=self.player is not None)
        self.settings, self.live = settings, live
        self.broker.most = live.max_streams
        self.monitor.reconfigure(live.rules)
        self.unmet.use(settings)
        self.alerting.use(receivers)
        for change in changes:
            log.info("%s", change)
        if not changes:
            log.info("settings read again, nothing changed")
        logging.getLogger().setLevel(live.log_level.upper())
