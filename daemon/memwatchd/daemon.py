"""The daemon on one screen: what is built from the settings, in which order it starts, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable

from memwatch.clock import SystemClock
from memwatch.collectors import enlist
from memwatch.monitor import Monitor
from memwatch.sampler import Sampler
from memwatch_web.as_json import snapshot_json, to_bytes
from memwatch_web.as_text import text_of
from memwatch_web.options import FaceOptions
from memwatch_web.pages import Pages
from memwatch_web.stream import Broker
from memwatchd import wiring
from memwatchd.service import Notifier
from memwatchd.settings import Settings
from memwatchd.settings_changes import describe_changes
from memwatchd.settings_sources import BadSettings
from memwatchd.sockets import CannotListen, open_sockets

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILURE, EXIT_CONFIGURATION = 0, 1, 78


def run(settings: Settings, load: Callable[[], Settings]) -> int:
    """Be the daemon until SIGTERM or SIGINT. `load` reads the settings again on SIGHUP."""
    try:
        sockets = open_sockets(settings.web.listen)
    except CannotListen as error:
        print(f"memwatchd: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    daemon = Daemon(settings, load)
    # FastAPI comes after the pages: its import uses the memory again that compiling their templates left
    # behind (57.2 instead of 60.6 MiB resident, CPython 3.11, November 2026).
    from memwatchd.server import serve

    daemon.start()
    try:
        asyncio.run(serve(daemon, sockets))
    finally:
        daemon.stop()
    return EXIT_OK


class Daemon:
    """All parts of a running memwatchd but its web server, each knowing only what it is given here."""

    def __init__(self, settings: Settings, load: Callable[[], Settings]) -> None:
        roots, clock = wiring.roots_of(settings), SystemClock()
        self.settings = settings
        self.sampler = Sampler(enlist(roots, wiring.collector_options_of(settings)), clock)
        self.monitor = Monitor(self.sampler, clock, wiring.rules_of(settings), wiring.identity_of(roots))
        self.pages = Pages(lambda: self.monitor.rules.pressure)
        self.broker = Broker(lambda: self.monitor.latest, settings.web.max_streams)
        self.receivers = wiring.receivers_of(settings)
        self.service = Notifier()
        self._load = load
        self._stop = threading.Event()
        self._ticking = threading.Thread(target=self.monitor.run, args=(self._stop,), name="tick", daemon=True)

    def face_options(self) -> FaceOptions:
        return wiring.face_options_of(self.settings)

    def start(self) -> None:
        """Everything that can be done before anybody may ask: threads and the first snapshot."""
        for warning in self.settings.warnings:
            log.warning("%s", warning)
        for receiver in self.receivers:
            receiver.start()
        self.sampler.start()
        self.monitor.tick()

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

    def stop(self) -> None:
        self.service.stopping()
        self.stop_ticking()
        if self._ticking.is_alive():
            self._ticking.join(timeout=1.0)
        self.sampler.stop()
        for receiver in self.receivers:
            receiver.close(1.0)
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
        self.service.ready()

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


def once(settings: Settings, as_json: bool) -> int:
    """Read everything once, print it, leave."""
    daemon = Daemon(settings, lambda: settings)
    daemon.sampler.start()
    daemon.sampler.wait_for_first(2.0)
    snapshot = daemon.monitor.tick()
    daemon.sampler.stop()
    sys.stdout.write(to_bytes(snapshot_json(snapshot)).decode() + "\n" if as_json else text_of(snapshot))
    return EXIT_OK if snapshot.pools else EXIT_FAILURE
