"""The daemon on one screen: what is built from the settings, and how it starts, reloads and stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from memwatch.alerts import Notice
from memwatch.backends.finder import Finder
from memwatch.clock import SystemClock
from memwatch.collectors import enlist
from memwatch.doctor.examiner import Examiner
from memwatch.monitor import Monitor
from memwatch.sampler import Sampler
from memwatch.snapshot import Snapshot
from memwatch.stalltrigger import StallTrigger
from memwatch_web.background import Shared
from memwatch_web.inquiries import Inquiries
from memwatch_web.options import FaceOptions
from memwatch_web.pages import Pages
from memwatch_web.stream import Broker
from memwatch_web.webhook_delivery import close_all, notify
from memwatchd import wiring
from memwatchd.reading import first_tick
from memwatchd.service import Notifier
from memwatchd.settings.changes import describe_changes
from memwatchd.settings.model import Settings
from memwatchd.settings.sources import BadSettings
from memwatchd.state import open_state

log = logging.getLogger(__name__)

# Longer than a driver of OpenCL may take to answer: what takes longer is a file system that hangs.
INQUIRY_DEADLINE_SECONDS = 20.0


class Daemon:
    """All parts of a running memwatchd but its web server, each knowing only what it is given here."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        roots, clock = wiring.roots_of(settings), SystemClock()
        self.settings = settings
        self.state = open_state(settings.state.dir)
        self.sampler = Sampler(enlist(roots, wiring.collector_options_of(settings)), clock)
        trigger = StallTrigger(roots.procfs / "pressure/memory")
        self.monitor = Monitor(self.sampler, clock, wiring.rules_of(settings), wiring.identity_of(roots), trigger)
        self.inquiries = Inquiries(
            Shared(Finder(roots).find, "backends", INQUIRY_DEADLINE_SECONDS),
            Shared(Examiner(roots).examine, "the machine", INQUIRY_DEADLINE_SECONDS),
        )
        self.pages = Pages(lambda: self.monitor.rules.pressure)
        self.broker = Broker(lambda: self.monitor.latest, settings.web.max_streams)
        self.receivers = wiring.receivers_of(settings)
        self.service = Notifier()
        self.tls = wiring.tls_of(settings)
        self.monitor.listeners.append(self._tell_receivers)
        self._load = load
        self._stop = threading.Event()
        self._ticking = threading.Thread(target=self.monitor.run, args=(self._stop,), name="tick", daemon=True)

    def face_options(self) -> FaceOptions:
        return wiring.face_options_of(self.settings)

    def start(self) -> None:
        """Begin to ask the sources, and what else needs a thread."""
        for warning in filter(None, (*self.settings.warnings, wiring.exposure_of(self.settings))):
            log.warning("%s", warning)
        if self.state.complaint:
            log.log(logging.WARNING if self.settings.state.dir else logging.INFO, "%s", self.state.complaint)
        for receiver in self.receivers:
            receiver.start()
        self.sampler.start()

    def first_tick(self) -> None:
        """What everybody may ask for from now on."""
        first_tick(self.sampler, self.monitor)

    def start_ticking(self) -> None:
        """From here on nothing big is built any more: return what building left over, then lock what stays."""
        self.monitor.own.settle()
        if self.settings.sampling.lock_memory:
            complaint = self.monitor.own.lock_memory()
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
        close_all(self.receivers, 2.0)
        self.state.close()
        log.info("memwatchd stopped")

    def reload(self) -> None:
        """Read the settings again; keep the old ones where the new ones are bad."""
        self.service.reloading()
        try:
            settings = self._load()
        except BadSettings as error:
            for problem in error.problems:
                log.error("the old settings stay: %s", problem)
        else:
            self._use(settings)
        self.ready()

    def ready(self) -> None:
        self.service.ready(self.settings.sampling.interval.total_seconds())

    def _tell_receivers(self, snapshot: Snapshot, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            notify(self.receivers, notice, snapshot, self.settings.web.url)

    def _use(self, settings: Settings) -> None:
        changes = describe_changes(self.settings, settings)
        for change in changes:
            log.info("%s", change)
        if not changes:
            log.info("settings read again, nothing changed")
        self.settings = settings
        self.broker.most = settings.web.max_streams
        logging.getLogger().setLevel(settings.log.level.upper())
        self.monitor.reconfigure(wiring.rules_of(settings))
        if self.tls is not None:
            wiring.renew_certificate(self.tls, settings)
