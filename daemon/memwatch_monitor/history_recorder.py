"""History in the loop: adds each tick to the series, the holders and the notable ticks, in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memwatch.core.model import Absent
from memwatch.core.pressure.oom_kills import OomKillCount, RamShortage
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.history.notable_ticks import NotableTicks, NotableTickSelector, build_notable_tick
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.between_scrapes import BetweenScrapes, series_of
from memwatch_monitor.feature import Family, FamilyKind, Feature, Tick
from memwatch_monitor.history.holders import HolderHistory
from memwatch_monitor.history.series import OOM_KILLS, RAM_RATIO, AllSeries, Interval, collect_figures
from memwatch_monitor.history.tiers import History
from memwatch_monitor.history.writer import FilesStatus, HistoryWriter
from memwatch_monitor.loop import SAME_INTERVAL, Monitor


class HistoryRecorder(Feature):
    """The past of the machine. `writer`: None if the history is in memory only."""

    name = "history"

    def __init__(self, monitor: Monitor) -> None:
        self._monitor, self._rules = monitor, monitor.rules
        self.tiers: History = History(self._rules.tier_specs)
        self.holders: HolderHistory = HolderHistory(self._rules.tier_specs[1:])
        self.ticks: NotableTicks = NotableTicks()
        self.writer: HistoryWriter | None = None
        self._kills = monitor.features.get(BetweenScrapes).kills
        self._interval = Interval()
        self._tick_selector = NotableTickSelector()

    @property
    def unclean_shutdown(self) -> UncleanShutdown | None:
        """Return the last data of the previous run if it did not end cleanly."""
        return self.writer.unclean_shutdown if self.writer else None

    @property
    def series(self) -> AllSeries:
        """Return the history of the machine and of its largest processes, units and containers."""
        return AllSeries(self.tiers, self.holders)

    def files_status(self) -> FilesStatus | None:
        """Return the status of the history files, or None if the history is in memory only."""
        return self.writer.status() if self.writer else None

    def use_writer(self, writer: HistoryWriter) -> None:
        """Restore persisted history and start writing. Call before the first tick."""
        monitor = self._monitor
        writer.restore(lambda: self.tiers, self.holders, self.ticks, monitor.events)
        writer.start()
        monitor.features.get(Alerts).skip_events()
        unix, words = monitor.moment().wall, writer.unclean_shutdown
        for complaint in writer.files.ring_set.complaints:
            monitor.events.add(unix, "history", complaint)
        if words is not None:
            monitor.record("unclean", words.sentence, unix=unix)
        self.writer = writer
        self._kills.restore(self._restore_kills())
        if words is not None and words.samples and not words.machine_restarted:
            # An OOM kill since the last sample may have been memwatchd itself: the first tick reports it.
            # The last reading before that kill is then the one of this sample.
            last = words.samples[-1].figures
            ratio, kills = last.get(RAM_RATIO, Absent.NOT_AVAILABLE), last.get(OOM_KILLS)
            shortage = RamShortage().with_reading(float("-inf"), ratio, None)
            total = Absent.NOT_AVAILABLE if kills is None else round(kills)
            monitor.composer.restart(OomKillCount(total, shortage=shortage))

    def _restore_kills(self) -> Mapping[str, int]:
        """Return the last counts of kills by scope since this boot. Rows of earlier boots have negative times."""
        rows = {scope: self.tiers.since(series_of(scope), 0.0) for scope in ("machine", "cgroup")}
        return {scope: int(found[-1][1]) for scope, found in rows.items() if found}

    def on_tick(self, tick: Tick) -> None:
        now, snapshot, rules = tick.now, tick.snapshot, tick.rules
        if rules is not self._rules:
            self._rules = rules
            self.tiers = self.tiers.resized(rules.tier_specs)
            self.holders.resize(rules.tier_specs[1:])
        figures = {**collect_figures(snapshot), **self._kills.figures()}
        self._interval.add(snapshot, figures)
        worst = self._interval.worst or snapshot
        if now.monotonic - self._interval.began >= SAME_INTERVAL * rules.interval_seconds:
            self.tiers.add_row(now.boottime, self._interval.row())
            self._interval = Interval(now.monotonic)
        self.holders.add(now.boottime, snapshot)
        chosen = self._tick_selector.select(snapshot, worst)
        kept = None
        if chosen is not None:
            boottime = now.boottime + chosen.monotonic - now.monotonic
            kept = build_notable_tick(chosen, boottime, collect_figures(chosen))
            self.ticks.add(kept)
        if self.writer is not None:
            self.writer.add(snapshot, now.boottime, figures, kept)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.stop()

    def families(self) -> Iterator[Family]:
        """Yield the metrics of the history on disk; without samples if there is none."""
        files = self.files_status()
        for kind, name, text, figure in FAMILIES:
            yield Family(kind, name, text, [] if files is None else [((), getattr(files, figure))])


FAMILIES: tuple[tuple[FamilyKind, str, str, str], ...] = (
    ("gauge", "history_size_bytes", "Size of the history files in bytes; it does not grow.", "size_bytes"),
    ("counter", "history_written_bytes", "Total bytes of history written to disk.", "written_bytes"),
    ("counter", "history_writes", "Total history records written.", "writes"),
    ("gauge", "history_sync_duration_seconds", "Duration of the last history fsync in seconds.", "sync_seconds"),
    ("counter", "history_errors", "Total failed writes of history.", "errors"),
    (
        "counter",
        "history_dropped_records",
        "Total history records dropped because the disk did not accept writes.",
        "dropped",
    ),
    (
        "gauge",
        "history_damaged_records",
        "Number of damaged or unreadable history records found at startup; the others are used.",
        "lost",
    ),
)
