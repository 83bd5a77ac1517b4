"""Render the dashboard pages and their live fragments from a snapshot."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from memwatch.core.events import Event
from memwatch.core.model import Absent, Thresholds
from memwatch.core.options import ConfigState
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.processes.growth import GrowthTracker, ProcessGrowth
from memwatch.core.snapshot import Level, Machine, Pressure, Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render.engine_view import engine_of
from memwatch.reporting.render.memory_map import build_limit_maps, build_maps
from memwatch.reporting.render.past import Past
from memwatch.reporting.render.summary import (
    SilenceNotice,
    build_latest,
    find_cuda_free,
    find_worst,
    notices_of,
    target_labels,
)
from memwatch.reporting.render.words import ratio
from memwatch_monitor.alerts.rules import DEFAULT_EVENTS, LEVELS, runbook_anchor
from memwatch_monitor.history.holders import FOOTPRINTS, parse_name
from memwatch_monitor.history.series import AllSeries
from memwatch_monitor.history.writer import HistoryWriter
from memwatch_monitor.neighbours.machines import Machine as Neighbour
from memwatch_monitor.neighbours.tick import Tick
from memwatch_monitor.notify.status import AlertView, find_notified
from memwatch_monitor.render.status_line import (
    GROWTH_SECONDS,
    StatusLine,
    build_headline,
    build_status_line,
    explain_room,
    find_room,
)
from memwatch_web.api.services import Services
from memwatch_web.asgi.access import WebOptions
from memwatch_web.asgi.sse import SharedDeflate
from memwatch_web.pages.devices import build_entries
from memwatch_web.pages.history_data import RANGES, HistoryInput, Range, available_ranges
from memwatch_web.pages.history_view import ChartView, HistoryView, RejectedQuery
from memwatch_web.pages.incident_page import build_page, build_row
from memwatch_web.pages.landscape_page import PageLandscape, Scene, draw_page
from memwatch_web.pages.landscape_past import (
    DrawnPast,
    Growth,
    PoolPast,
    build_live_pasts,
    choose_live_window,
    choose_window,
    find_ghosts,
    find_growths,
    place_growths,
    query_past,
    rewind,
)
from memwatch_web.pages.machine_wall import OwnPast, Tile, Wall, build_wall, find_growth, read_own_past
from memwatch_web.pages.overview import (
    MAX_FIRING,
    MAX_GHOSTS,
    MAX_HOLDERS,
    RoomModel,
    advise_engines,
    build_firing,
    find_top_holders,
    has_many_gpus,
    link_events,
)
from memwatch_web.pages.processes import (
    FIGURE_WORDS,
    GROUPS,
    OomScore,
    ProcessView,
    build_listing,
    build_process_view,
    find_memory_holders,
)
from memwatch_web.pages.processes import GROWTH_SECONDS as LIST_SECONDS
from memwatch_web.pages.processes import ListView as ListView
from memwatch_web.pages.server_charts import LastRunChart, build_chart
from memwatch_web.pages.template_environment import PATHS, shared_environment

# CPU use of memwatchd, for the pages.

# Long enough to smooth the 10 ms steps of CPU time at 0.1% of a core.
CPU_WINDOW_SECONDS = 60.0
# Below this no value is shown: the first page would read a third of a core, the cost of rendering itself.
MIN_CPU_SECONDS = 10.0


class CpuShare:
    """CPU use of memwatchd as a fraction of one core, over the last minute of rendered snapshots. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque()

    def measure(self, snapshot: Snapshot) -> float | Absent:
        with self._lock:
            return self._measure(snapshot)

    def _measure(self, snapshot: Snapshot) -> float | Absent:
        now = (snapshot.monotonic, snapshot.self_usage.cpu_seconds)
        if self._seen and self._seen[-1] > now:
            self._seen.clear()
        if not self._seen or self._seen[-1] != now:
            self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1][0] < now[0] - CPU_WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        seconds = now[0] - since
        return (now[1] - before) / seconds if seconds >= MIN_CPU_SECONDS else Absent.NOT_AVAILABLE


# Stream of a page that is not visible.
TITLE = "title"
# Stream of the page of one process.
PROCESS = "process"
SILENCE_SPANS = ((3600, "1 h"), (28_800, "8 h"), (86_400, "1 d"))
# The overview mentions an unclean shutdown for this time.
RECENT_SECONDS = 86_400.0


class State(Struct, frozen=True):
    """State of the machine on pages that are not live. `headline`: use, or the time left; a part of a sentence."""

    host: str
    machine: Machine
    unix: float
    level: str
    label: str
    headline: str
    notices: Sequence[SilenceNotice]


def build_state(snapshot: Snapshot | None) -> State | None:
    """Return the state at a snapshot, None before the first."""
    if snapshot is None:
        return None
    worst = find_worst(snapshot)
    return State(
        snapshot.host,
        snapshot.machine,
        snapshot.unix,
        worst.level.word if worst else "unknown",
        snapshot.labels.get(worst.target, worst.target) if worst else "",
        _headline_of_state(snapshot, worst),
        notices_of(snapshot),
    )


def _headline_of_state(snapshot: Snapshot, worst: Pressure | None) -> str:
    if worst is None:
        return build_headline(snapshot, worst)
    if worst.level is Level.LOW:
        return f"{ratio(worst.ratio)} used"
    headline = build_headline(snapshot, worst)
    return headline[:1].lower() + headline[1:]


def find_runbook(status: StatusLine) -> str | None:
    """Return the anchor of the runbook of a level and its pool. None if the level is OK or not known."""
    rule = next((rule for rule, level in LEVELS.items() if level.word == status.level), None)
    return runbook_anchor(rule, status.target) if rule and status.target else None


class MachinePage(Struct, frozen=True):
    """The tile of a neighbour, charts of its last minutes and hour, and its last ticks, newest first."""

    tile: Tile
    recent: LastRunChart | None
    hour: LastRunChart | None
    ticks: Sequence[Tick]


class Pages:
    """Renderer of all pages. Streams of the grouped process list are named `processes-GROUP`, that of hidden pages
    `title`.

    `rules`, `events` (newest first), `firing` (number of firing alerts) and `current` (the latest snapshot) are
    called at each rendering, like `past` and `incidents` (newest first). `growth`: process growth from the monitor.
    `url`: address of the pages for others. Streams of the overview with another range are named `overview-RANGE`.
    """

    names = tuple(PATHS)
    streams = (
        *names,
        *(f"processes-{group}" for group in GROUPS[1:]),
        *(f"overview-{one.name}" for one in RANGES[1:]),
        TITLE,
    )

    def __init__(
        self,
        rules: Callable[[], PressureRules] = PressureRules,
        history_writer: Callable[[], HistoryWriter | None] = lambda: None,
        growth: GrowthTracker | None = None,
        events: Callable[[], Sequence[Event]] = tuple,
        alerting: Callable[[], AlertView] = AlertView,
        history: Callable[[], AllSeries | None] = lambda: None,
        firing: Callable[[], int] = lambda: 0,
        has_neighbours: Callable[[], bool] = lambda: False,
        config: Callable[[], ConfigState] = ConfigState,
        current: Callable[[], Snapshot | None] = lambda: None,
        url: Callable[[], str | None] = lambda: None,
        past: Callable[[], HistoryInput | None] = lambda: None,
        incidents: Callable[[], Sequence[Incident]] = tuple,
    ) -> None:
        self._rules, self._events, self._alerting, self._firing = rules, events, alerting, firing
        self._history_writer, self._history = history_writer, history
        self._growth = growth or GrowthTracker()
        self._room_model = RoomModel()
        self._config, self._past, self._incidents = config, past, incidents
        self._queried: dict[str, tuple[tuple[float, tuple[str, ...]], dict[str, PoolPast]]] = {}
        self._drawn: dict[tuple[str, str], DrawnPast] = {}
        self._cpu = CpuShare()
        self.machines: Callable[[Snapshot], Sequence[Neighbour]] = lambda _: ()
        self._environment = shared_environment()
        self._navigation: dict[str, Any] = {
            "firing": firing,
            "has_neighbours": has_neighbours,
            "state": lambda: build_state(current()),
            "url": url,
        }

    def path(self, name: str) -> str:
        """Return the URL path of a page."""
        return PATHS[name]

    def page(
        self,
        name: str,
        snapshot: Snapshot,
        stalled_seconds: float | None = None,
        view: ListView | None = None,
        span: Range = RANGES[0],
    ) -> bytes:
        """Render a page. `stalled_seconds`: age of a stale snapshot.

        `view`: view of the process list. `span`: range of the overview.
        """
        context = self._context(name, snapshot, view, span) | {"stalled_seconds": stalled_seconds}
        return self._render(f"{name}.html", context)

    def fragment(self, stream: str, snapshot: Snapshot, view: ListView | None = None) -> bytes:
        """Render the live part of a page, byte for byte as in the page. For `title`: its `#latest` as JSON."""
        if stream == TITLE:
            return to_bytes(self._latest(snapshot))
        name, _, group = stream.partition("-")
        view = view or next((ListView(by) for by in GROUPS if by == group), None)
        span = next((one for one in RANGES if one.name == group), RANGES[0])
        return self._render_live(f"{name}.html", self._context(name, snapshot, view, span))

    def process(
        self,
        snapshot: Snapshot,
        view: ProcessView,
        past: HistoryView | None = None,
        stalled_seconds: float | None = None,
    ) -> bytes:
        """Render the page of one process. `past`: its footprint over time, if that is recorded."""
        context = self._process_context(snapshot, view, past is not None)
        return self._render("process.html", context | {"stalled_seconds": stalled_seconds, "past": past})

    def process_fragment(self, snapshot: Snapshot, view: ProcessView, recorded: bool) -> bytes:
        """Render the live part of the page of one process, without the chart, which is not replaced."""
        return self._render_live("process.html", self._process_context(snapshot, view, recorded))

    def _render(self, template: str, context: Mapping[str, Any]) -> bytes:
        """Render a page. Its line of state is of the snapshot that it shows, if it shows one."""
        if (snapshot := context.get("snapshot")) is not None:
            context = {"state": lambda: build_state(snapshot), **context}
        return self._environment.get_template(template).render(self._navigation, **context).encode()

    def _render_live(self, template: str, context: dict[str, Any]) -> bytes:
        found = self._environment.get_template(template)
        return "".join(found.blocks["live"](found.new_context(context))).encode()

    def _process_context(self, snapshot: Snapshot, view: ProcessView, recorded: bool) -> dict[str, Any]:
        return {
            "page": PROCESS,
            "stream": f"{PROCESS}&pid={view.process.pid}",
            "up": "../",
            "subject": view.process.title,
            "snapshot": snapshot,
            "simulated": snapshot.simulated,
            "latest": self._latest(snapshot),
            "view": view,
            "recorded": recorded,
            "engine": engine_of(snapshot.engines, view.process.pid),
            "figure_words": {**FIGURE_WORDS, "device_bytes": f"{snapshot.accelerators} memory"},
            "past": None,
        }

    def view_process(self, snapshot: Snapshot, pid: int, shift: float, oom_score: OomScore) -> ProcessView | None:
        """Return the view of a process. `shift`: Unix time minus boot time."""
        return build_process_view(snapshot, self._growth, pid, shift, oom_score)

    def history(
        self, snapshot: Snapshot, past: HistoryView | RejectedQuery, stalled_seconds: float | None = None
    ) -> bytes:
        """Render the history page."""
        context = self._context("history", snapshot) | {"stalled_seconds": stalled_seconds, "past": past}
        return self._render("history.html", context)

    def picture(self, view: ChartView) -> bytes:
        """Render one chart as an SVG file."""
        return self._render("picture.svg", {"view": view})

    def card(self, card: object) -> bytes:
        """Render the picture of a machine at one moment (`memwatch_web.pages.picture.Card`) as an SVG file."""
        return self._render("card.svg", {"card": card})

    def thresholds(self, snapshot: Snapshot) -> dict[str, Thresholds]:
        """Return the thresholds of every pool and share."""
        rules = self._rules()
        return {target: rules.thresholds_for(target) for target in snapshot.labels}

    def growth(self, snapshot: Snapshot) -> tuple[ProcessGrowth, ...]:
        """Return what processes have grown by in the last ten minutes."""
        return tuple(self._growth.lately(LIST_SECONDS, snapshot.unix))

    def docs(self, simulated: bool = False) -> bytes:
        """Render the API reference."""
        return self._render("docs.html", {"page": "docs", "simulated": simulated})

    def fit(self, snapshot: Snapshot, form: Any) -> bytes:  # noqa: ANN401  fit_page.Form, a layer above
        """Render the fit page: the form and the answer."""
        context = {"page": "fit", "snapshot": snapshot, "form": form, "simulated": snapshot.simulated}
        if form.answered is None:
            room = find_room(snapshot)
            context |= {"room": room, "model": self._room_model.find(snapshot)}
            context["room_limit"] = explain_room(room, snapshot) if room else ""
        context["pressure"] = {one.target: one for one in snapshot.pressure}
        return self._render("fit.html", context | {"latest": self._latest(snapshot)})

    def last_words(self, words: UncleanShutdown | None, simulated: bool = False) -> bytes:
        """Render the last two minutes of the previous run."""
        picture = build_chart(words) if words and words.samples else None
        context = {"page": "last-words", "words": words, "picture": picture, "simulated": simulated}
        return self._render("last-words.html", context)

    def incidents(self, found: Sequence[Incident], simulated: bool = False, more: Sequence[str] = ()) -> bytes:
        """Render the list of incidents. `more`: sentences about those that it lacks."""
        rows = [build_row(one) for one in found]
        context = {"page": "incidents", "rows": rows, "simulated": simulated, "more": more}
        return self._render("incidents.html", context)

    def incident(self, one: Incident, simulated: bool = False, heads: Sequence[Incident] = ()) -> bytes:
        """Render one incident with its picture. `heads`: all that are kept, newest first."""
        context = {"page": "incidents", "up": "../", "view": build_page(one, heads), "simulated": simulated}
        return self._render("incident.html", context)

    def incident_picture(self, card: object) -> bytes:
        """Render the picture of an incident (`memwatch_web.pages.incident_files.Card`) as an SVG file."""
        return self._render("incident.svg", {"card": card})

    def machine(self, snapshot: Snapshot, view: MachinePage) -> bytes:
        """Render the page of one neighbour."""
        context = {"page": "machines", "up": "../", "view": view, "simulated": snapshot.simulated}
        return self._render("machine.html", context)

    def runbooks(self, simulated: bool = False) -> bytes:
        """Render the runbooks of this version."""
        return self._render("runbooks.html", {"page": "runbooks", "simulated": simulated})

    def refused(self, heading: str, sentence: str, up: str = "", simulated: bool = False) -> bytes:
        """Render an error page. `up`: relative path to the pages, such as "../"."""
        context = {"page": "refused", "heading": heading, "sentence": sentence, "up": up, "simulated": simulated}
        return self._render("refused.html", context)

    def _context(
        self, name: str, snapshot: Snapshot, view: ListView | None = None, span: Range = RANGES[0]
    ) -> dict[str, Any]:
        history_writer = self._history_writer()
        words = history_writer.unclean_shutdown if history_writer else None
        context = {
            "page": name,
            "stream": view.stream(name) if view else name,
            "snapshot": snapshot,
            "simulated": snapshot.simulated,
            "latest": self._latest(snapshot),
            "processes": snapshot.processes,
            "who": find_memory_holders(snapshot, self._growth) if name == "processes" else None,
            "listing": build_listing(snapshot, self._growth, view or ListView()) if name == "processes" else None,
            "recorded": self._recorded(view.by) if name == "processes" and view and view.by != "process" else {},
            "cpu": self._cpu.measure(snapshot),
            "files": history_writer.status() if history_writer else None,
            "words": words if words and snapshot.unix - words.unix < RECENT_SECONDS else None,
            "wall": self._wall(snapshot) if name == "machines" else None,
            "entries": build_entries(snapshot) if name == "devices" else (),
            "alerting": self._alerting() if name == "alerts" else None,
            "silence_spans": SILENCE_SPANS,
            "default_events": DEFAULT_EVENTS,
            "notices": notices_of(snapshot),
            "config": self._config(),
            "targets": target_labels(snapshot),
            "past": None,
        }
        return context | self._overview(snapshot, span) if name == "overview" else context

    def _wall(self, snapshot: Snapshot) -> Wall:
        series, grown = self._history(), self._grown_lately(snapshot)
        history = series.machine if series else None

        def read_own(tick: Tick) -> OwnPast:
            return read_own_past(history, snapshot, tick, find_growth(grown, snapshot, tick))

        return build_wall(self.machines(snapshot), read_own)

    def _recorded(self, kind: str) -> dict[str, str]:
        """Return the series of the recorded footprint of each owner of a kind, by its name."""
        series = self._history()
        parsed = [(parse_name(name), name) for name in (series.holders.current_names() if series else ())]
        return {parts[1]: name for parts, name in parsed if parts and parts[0] == kind and parts[2] in FOOTPRINTS}

    def _latest(self, snapshot: Snapshot) -> dict[str, Any]:
        return {**build_latest(snapshot), "firing": self._firing()}

    def _overview(self, snapshot: Snapshot, span: Range) -> dict[str, Any]:
        pressure: dict[str, Pressure] = {verdict.target: verdict for verdict in snapshot.pressure}
        past, grown, events = self._past(), self.growth(snapshot), self._events()
        ghosts, many = find_ghosts(snapshot, events)[-MAX_GHOSTS:], has_many_gpus(snapshot)
        rows = MAX_FIRING if many else MAX_HOLDERS
        return {
            "stream": "overview" if span is RANGES[0] else f"overview-{span.name}",
            "pressure": pressure,
            "worst": find_worst(snapshot),
            "status": (status := self.status(snapshot)),
            "model": None if status.actions or status.recovering else self._room_model.find(snapshot),
            "notified": find_notified(self._alerting(), status.target),
            "runbook": find_runbook(status),
            "landscape": self.landscape(snapshot, span),
            "span": span,
            "spans": RANGES if past is None else available_ranges(past.tiers),
            "cuda_free": find_cuda_free(snapshot),
            "holders": find_top_holders(
                snapshot, grown, status.grower.process if status.grower else None, ghosts, rows
            ),
            "ghosts": ghosts,
            "many_gpus": many,
            "firing_rows": build_firing(snapshot, events, grown),
            "events": link_events(events[:rows], self._incidents(), snapshot.unix),
            "latest": self._latest(snapshot),
            "advice": advise_engines(snapshot),
        }

    def landscape(self, snapshot: Snapshot, span: Range = RANGES[0]) -> PageLandscape:
        """Draw the pools of a snapshot with a range of their past."""
        thresholds, growths = self.thresholds(snapshot), self.growths(snapshot)
        maps = (*build_maps(snapshot, thresholds), *build_limit_maps(snapshot, thresholds))
        scene = Scene(
            self._build_pasts(snapshot, span, growths),
            {pool: one.growing for pool, one in growths.items()},
            {one.target: one.level.word for one in snapshot.pressure},
            find_ghosts(snapshot, self._events()),
            snapshot.engines,
            self.status(snapshot).actions,
        )
        return draw_page(maps, scene)

    def landscape_then(self, snapshot: Snapshot, past: HistoryInput, at: float, span: Range) -> bytes:
        """Render the picture and the holders of an earlier time. Raises ProblemError if the history lacks it."""
        found = query_past(snapshot, past, choose_window(past, at))
        then = rewind(snapshot, found, past, at)
        context = {
            "landscape": draw_page(build_maps(then, self.thresholds(then)), Scene()),
            "snapshot": then,
            "pressure": {one.target: one for one in then.pressure},
            "span": span,
            "spans": available_ranges(past.tiers),
            "holders": find_top_holders(then, ()),
            "ago": snapshot.unix - at,
        }
        return self._render("landscape.html", context)

    def growths(self, snapshot: Snapshot) -> dict[str, Growth]:
        """Return the fastest growing process of each pool above OK."""
        found = find_growths(snapshot, self._growth, self._grown_lately(snapshot))
        return place_growths(found, snapshot, self._past()) if found else {}

    def _build_pasts(self, snapshot: Snapshot, span: Range, growths: Mapping[str, Growth]) -> dict[str, Past]:
        """Return the pasts of all pools. The history is asked once for each step of a range.

        A past stays as it is for a step, unless its pool moves: the stream repeats no path each second.
        """
        past = self._past()
        if past is None:
            return {}
        window = choose_live_window(past, span, snapshot.unix)
        key = (window.end, tuple(snapshot.labels))
        queried = self._queried.get(span.name)
        if queried is None or queried[0] != key:
            queried = self._queried[span.name] = (key, query_past(snapshot, past, window))
        pasts = build_live_pasts(snapshot, queried[1], window, past.events, growths, self._incidents())
        levels = {one.target: one.level for one in snapshot.pressure}
        for pool in snapshot.pools:
            drawn, level, growth = (
                self._drawn.get((span.name, pool.id)),
                levels.get(pool.id),
                growths.get(pool.id),
            )
            if drawn is None or not drawn.serves(
                pool, level, pasts[pool.id], snapshot.unix, window.grain_seconds, growth
            ):
                drawn = DrawnPast(pasts[pool.id], level, growth)
                self._drawn[span.name, pool.id] = drawn
            pasts[pool.id] = drawn.past
        return pasts

    def _grown_lately(self, snapshot: Snapshot) -> list[ProcessGrowth]:
        return self._growth.lately(GROWTH_SECONDS, snapshot.unix)

    def status(self, snapshot: Snapshot) -> StatusLine:
        """Return the status line of the latest snapshot."""
        return build_status_line(snapshot, self._events(), self._grown_lately(snapshot))


class PageServices(Services, kw_only=True):
    """The services of the API, and those of the pages."""

    pages: Pages
    options: Callable[[], WebOptions]
    deflated: dict[str, SharedDeflate] = field(default_factory=dict)
