"""The daemon: builds its parts from the settings, starts, reloads and stops them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memwatch.build_info import REVISION, __version__
from memwatch.core.budget import EVENT_STREAMS
from memwatch.core.clock import SystemClock
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.files import Roots
from memwatch.core.linux.key_owner import KeyOwners
from memwatch.core.linux.memory_events import PASSED_PRESSURE, MemoryEvents, OwnPressure, PsiTrigger
from memwatch.core.linux.process_ends import ProcessEnds
from memwatch.core.linux.process_files import Passwd
from memwatch.core.linux.wakeups import Wakeups
from memwatch.core.processes.allocator_reports import AllocatorReports
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.sampler import FIRST_SECONDS, Gatherer, Sampler
from memwatch.core.runtime.own_process import trim_heap
from memwatch.core.runtime.worker import ThreadState
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.answers import Verdict
from memwatch.reporting.doctor.checks import check_collectors
from memwatch_monitor.feature import Feature
from memwatch_monitor.history_recorder import HistoryRecorder
from memwatch_monitor.loop import Monitor
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_web.asgi.access import WebOptions
from memwatch_web.asgi.auth import FailedLogins
from memwatch_web.asgi.broker import Broker
from memwatch_web.asgi.caller import CallerLookup
from memwatch_web.metrics.endpoint import LatestScrape
from memwatchd import wiring
from memwatchd.config_keeper import ConfigKeeper
from memwatchd.features import FEATURES, STARTED_BY_RELOADS, Alerting, Reload
from memwatchd.liveness import find_ill
from memwatchd.sd_notify import Notifier
from memwatchd.settings.credentials import load_certificate
from memwatchd.settings.diff import describe_changes
from memwatchd.settings.load import SettingsError
from memwatchd.settings.schema import Settings
from memwatchd.sockets import take_descriptors
from memwatchd.state_dir import StateDir, open_key_owners, open_state

if TYPE_CHECKING:
    from memwatch_web.metrics.families import Exporter
    from memwatchd.recording.player import Player

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
        self.passed: dict[str, int] = take_descriptors(os.environ)
        self.ends: ProcessEnds | None = None
        self._close_watches: list[Callable[[], None]] = []
        self.budgets = wiring.build_budgets(self.live.budgets)
        self.accounts = Accounts(self.roots.rootfs)
        self.monitor, self.sampler = (
            self._monitor_machine(self.roots) if self.player is None else self._monitor_recording(self.player)
        )
        self.failed_logins = FailedLogins()
        self.callers = CallerLookup(user_name=self.user_name, accounts=self.accounts)
        self.latest_scrape = LatestScrape()
        self.monitor.publisher.hide_commands(self.live.is_open)
        self.broker = Broker(lambda: self.monitor.latest, self.budgets[EVENT_STREAMS.name])
        self.service = Notifier(log.warning)
        self.problems: list[str] = []
        self._are_off: set[object] = {create for create in FEATURES if not self._add(create(self))}
        if self.state.complaint and self.state.was_wanted:
            self.problems.append(self.state.complaint)
        self.settings = self._started = settings.with_lasting(tuple(self.problems))
        self.config = ConfigKeeper(self.monitor.record, self.state.folder)
        self.tls = wiring.build_tls_context(settings)
        self.on_leaving: list[Callable[[], None]] = []
        self._load = load
        self._log_lines_dropped = log_lines_dropped
        self._stop = threading.Event()
        self._ticking = threading.Thread(target=self.monitor.run, args=(self._stop,), name="tick", daemon=True)

    def _add(self, feature: Feature | None) -> bool:
        if feature is not None:
            self.monitor.features.add(feature)
        return feature is not None

    def _monitor_machine(self, roots: Roots) -> tuple[Monitor, Gatherer]:
        clock = SystemClock()
        listed = wiring.list_enabled_collectors(self.settings, self.key_owners.known, self.budgets)
        sampler = Sampler(listed, clock)
        ends = ProcessEnds(accounts=self.accounts) if roots.procfs == Roots().procfs else None
        own = OwnPressure(os.environ, trim_heap)
        stalls = PsiTrigger(roots.procfs / "pressure/memory", self.passed.pop(PASSED_PRESSURE, -1))
        events = MemoryEvents(roots)
        watches = (stalls, events, own, *([ends] if ends else ()))
        wakeups = Wakeups(watches, sampler.watches, sampler.hurry)
        identity, reports = (
            read_identity(roots),
            AllocatorReports(roots.procfs, self.budgets["reports"], self.accounts),
        )
        self.ends = ends
        self._close_watches = [one.close for one in (wakeups, *watches)]
        monitor = Monitor(
            sampler,
            clock,
            self.live.rules,
            identity,
            wakeups,
            reports=reports,
            budgets=self.budgets,
            accounts=self.accounts,
            sees_reclaim=stalls.is_prompt,
        )
        return monitor, sampler

    def _monitor_recording(self, player: Player) -> tuple[Monitor, Gatherer]:
        from memwatchd.recording.player import ReplaySleep

        speed = player.clock.speed
        identity, sleep = wiring.replay_identity(player), ReplaySleep(speed)
        monitor = Monitor(player, player.clock, self.live.rules, identity, sleep, speed, budgets=self.budgets)
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
        """Return an exporter of metrics. Imports prometheus-client, which takes 2 MiB."""
        from memwatch_web.metrics.families import Exporter, ProcessFigures

        return Exporter(
            __version__,
            self.monitor.features,
            lambda: self.web_options().process_metrics,
            lambda: ProcessFigures(
                self._log_lines_dropped(),
                self.thread_states(),
                self.failed_logins.total,
                self.monitor.self_usage.virtual_bytes,
            ),
            self.monitor.identity,
            lambda: self.web_options().owner_metrics,
            self.labels,
            REVISION,
            lambda: self.config.state,
            self.budgets,
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
        self.monitor.features.call("start")
        self.sampler.start()

    def first_tick(self) -> None:
        """Restore the history, start recording and take the first snapshot. Call before serving requests."""
        history_writer = wiring.open_history_writer(self.settings, self.state, SystemClock(), self.monitor.identity)
        if history_writer is not None:
            self.monitor.features.get(HistoryRecorder).use_writer(history_writer)
        if self.player is None:
            wiring.use_incident_store(self.monitor, self.settings, self.state, SystemClock())
        if self.player is not None and self.settings.replay.demo:
            from memwatchd.recording.player import play_through

            play_through(self.monitor, self.player)
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

    def is_ticking(self) -> bool:
        """Return False if the tick thread has ended before `stop_ticking`."""
        return self._stop.is_set() or self._ticking.is_alive()

    def thread_states(self) -> dict[str, ThreadState]:
        """Return the state of each thread that delivers alerts or follows neighbours."""
        having = self.monitor.features.overriding("thread_states")
        return {name: state for _, thread_states in having for name, state in thread_states().items()}

    def failed_deliveries(self) -> list[str]:
        """Return a sentence for each receiver whose last attempt failed."""
        return [failure for feature in self.monitor.features for failure in feature.failures()]

    def report_alive(self, snapshot: Snapshot, states: Mapping[str, ThreadState]) -> None:
        """Feed the watchdog of the service manager, unless a thread that delivers alerts does not work."""
        if not self.service.is_connected:
            return
        ill = find_ill(states)
        if ill:
            self.service.status(f"threads that do not work: {', '.join(ill)}")
        else:
            self.service.alive(wiring.render_status(snapshot, self.config.state))

    def stop_ticking(self) -> None:
        self._stop.set()
        self.monitor.wake()

    def stop(self) -> None:
        """Stop every part. Those after one that fails still write what they hold."""
        # Those that were started last end first: what reaches other machines, then what writes to the disk.
        closing = [feature.close for feature in reversed(tuple(self.monitor.features))]
        for stop in (self.service.stopping, self._end_ticking, self._end_collectors, *closing, self.state.close):
            stop_part(stop)
        log.info("memwatchd stopped")

    def _end_ticking(self) -> None:
        self.stop_ticking()
        if self._ticking.is_alive():
            self._ticking.join(timeout=1.0)
        while self._close_watches and not self._ticking.is_alive():
            self._close_watches.pop(0)()

    def rename(self, host: str) -> None:
        """Use another name of the machine in snapshots, in alerts, and among neighbours."""
        composer = self.monitor.composer
        composer.identity = replace(composer.identity, host=host)
        self._host = host
        web = wiring.effective_web(self.settings.web, self._started.web)
        self.live = replace(self.live, sender=wiring.build_sender(self.settings, web, host))
        self.monitor.features.get(Alerting).sender = self.live.sender
        self.monitor.features.get(NeighbourBook).host = host

    def _end_collectors(self) -> None:
        if self._ticking.is_alive():  # it may still run those without a thread
            self.sampler.stop()
        else:
            self.sampler.close()

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

    def _use(self, settings: Settings) -> None:
        """Apply new settings. If a resource is unavailable, raise before anything has changed."""
        live = wiring.build_live_settings(settings, self._started, self.player, self._host)
        if self.tls is not None and live.certificate is not None:
            load_certificate(self.tls, *live.certificate)
        reload = Reload(settings, live, self.live)
        prepared = [one.prepare_reload(reload) for one in self.monitor.features]
        new = {create: create(self, live) for create in STARTED_BY_RELOADS if create in self._are_off}
        changes = describe_changes(self.settings, settings, simulated=self.player is not None)
        if live.is_open:  # before the new login is in force
            self.monitor.publisher.hide_commands(True)
        warnings = {*settings.warnings, live.exposure} - {*self.settings.warnings, self.live.exposure, None}
        self.settings, self.live = settings, live
        self.monitor.publisher.hide_commands(live.is_open)
        self.monitor.reconfigure(live.rules)
        self.budgets.use(live.budgets)
        for apply in filter(None, prepared):
            apply()
        for create, feature in new.items():
            if feature is not None:
                self._add(feature)
                self._are_off.remove(create)
                feature.start()
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
