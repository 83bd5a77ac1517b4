"""The dashboard: each page, and the live part of it, as a view of one Snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from memwatch import __version__
from memwatch.alerts.rules import EVENTS
from memwatch.events import Event
from memwatch.history.disk.last_run import LastWords
from memwatch.history.disk.writer import Keeper
from memwatch.history.tiers import History
from memwatch.model import Absent
from memwatch.notify.status import AlertView
from memwatch.pressure.rules import PressureRules
from memwatch.processes.growth import Growth
from memwatch.render import words as wording
from memwatch.render.summary import by_footprint, cuda_free_of, has_figures, latest_of, room_of, worst_of
from memwatch.snapshot import Snapshot
from memwatch_web.pages.bars import bars_of
from memwatch_web.pages.devices import entries_of
from memwatch_web.pages.history_view import Refused, View
from memwatch_web.pages.last_run_chart import picture_of
from memwatch_web.pages.memory_holders import who_of
from memwatch_web.pages.process_list import GROUPS, listing_of
from memwatch_web.pages.process_list import View as ListView
from memwatch_web.pages.recent_changes import WINDOW_SECONDS, Changes, changes_of
from memwatch_web.pages.template_cache import CompiledTemplates

TEMPLATES = Path(__file__).parent.parent / "templates"
PATHS = {
    "overview": "/",
    "history": "/history",
    "processes": "/processes",
    "devices": "/devices",
    "alerts": "/alerts",
    "about": "/about",
}
# Where the bar of every page leads.
LINKS = {name: PATHS[name] for name in ("overview", "history", "processes", "devices")}
LINKS |= {"fit": "/fit", "alerts": "/alerts", "about": "/about"}
# Files of macros, by whose names the pages call them. The first is used by the others.
PARTS = ("parts", "pool_parts", "holder_parts", "device_parts", "alert_parts")
TOP_PROCESSES = 10
SILENCE_SPANS = ((3600, "1 h"), (28_800, "8 h"), (86_400, "1 d"))
# What templates say `figure | size` with.
WORDS = (
    "age",
    "api",
    "architecture",
    "basis",
    "change",
    "clock",
    "content",
    "content_sentence",
    "duration",
    "exact",
    "fact",
    "fault",
    "figure",
    "glued",
    "moment",
    "printable",
    "ratio",
    "reasons",
    "size",
    "timestamp",
    "when",
)
# Long enough to smooth the clock's 10 ms steps of a process that uses 0.1 % of a core.
CPU_WINDOW_SECONDS = 60.0
# Over less nothing is said: the first page of all would read a third of a core, which is what making it took.
CPU_LEAST_SECONDS = 10.0
# So long after an unclean end the overview still speaks of it.
TOLD_SECONDS = 86_400.0


class Pages:
    """Renders the pages by name; the list of processes grouped by something has the name of that behind it as well.

    `rules` and `events` (newest first) are asked at each rendering. `growth` is what the monitor remembers of
    processes.
    """

    names = tuple(PATHS)
    streams = (*names, *(f"processes-{group}" for group in GROUPS[1:]))

    def __init__(
        self,
        rules: Callable[[], PressureRules] = PressureRules,
        keeper: Callable[[], Keeper | None] = lambda: None,
        growth: Growth | None = None,
        events: Callable[[], Sequence[Event]] = tuple,
        alerting: Callable[[], AlertView] = AlertView,
        history: Callable[[], History | None] = lambda: None,
    ) -> None:
        self._rules, self._events, self._alerting = rules, events, alerting
        self._keeper, self._history = keeper, history
        self._growth = growth or Growth()
        self._cpu = CpuShare()
        self._environment = create_environment()
        self._templates = {name: self._environment.get_template(f"{name}.html") for name in self.names}

    def path(self, name: str) -> str:
        """Where a page is served."""
        return PATHS[name]

    def page(
        self, name: str, snapshot: Snapshot, stalled_seconds: float | None = None, view: ListView | None = None
    ) -> bytes:
        """The whole page. `stalled_seconds`: how old the snapshot is, where that is too old to look alive. `view`:
        of the list of processes."""
        context = self._context(name, snapshot, view) | {"stalled_seconds": stalled_seconds}
        return self._templates[name].render(context).encode()

    def fragment(self, stream: str, snapshot: Snapshot) -> bytes:
        """The part of the page that changes, byte for byte as it stands in the page."""
        name, _, group = stream.partition("-")
        template = self._templates[name]
        view = next((ListView(by) for by in GROUPS if by == group), None)
        context = template.new_context(self._context(name, snapshot, view))
        return "".join(template.blocks["live"](context)).encode()

    def history(self, snapshot: Snapshot, past: View | Refused, stalled_seconds: float | None = None) -> bytes:
        """A window of the past, or why there is none."""
        context = self._context("history", snapshot) | {"stalled_seconds": stalled_seconds, "past": past}
        return self._templates["history"].render(context).encode()

    def docs(self, simulated: bool = False) -> bytes:
        """The description of the API, to read and to try."""
        return self._environment.get_template("docs.html").render(page="docs", simulated=simulated).encode()

    def fit(self, snapshot: Snapshot, form: Any) -> bytes:  # noqa: ANN401  fit_page.Form, which stands above
        """Whether something fits: the form, and the answer to what was asked."""
        template = self._environment.get_template("fit.html")
        latest = latest_of(snapshot, self._rules())
        return template.render(
            page="fit", snapshot=snapshot, form=form, latest=latest, simulated=snapshot.simulated
        ).encode()

    def last_words(self, words: LastWords | None, simulated: bool = False) -> bytes:
        """The final two minutes of the run before this one."""
        template = self._environment.get_template("last-words.html")
        picture = picture_of(words) if words and words.samples else None
        return template.render(page="last-words", words=words, picture=picture, simulated=simulated).encode()

    def refused(self, heading: str, sentence: str, up: str = "", simulated: bool = False) -> bytes:
        """Why there is nothing to be seen. `up` leads from where it is shown to where the pages are: "../"."""
        template = self._environment.get_template("refused.html")
        words = {"heading": heading, "sentence": sentence, "up": up}
        return template.render(page="refused", simulated=simulated, **words).encode()

    def patterns(self) -> bytes:
        """Every component in every state, of figures that are made up: for whoever changes the pages."""
        from memwatch_web.pages import pattern_samples as exhibits

        rules = PressureRules()
        pools = [
            {
                "state": one.state,
                "snapshot": one.snapshot,
                "worst": worst_of(one.snapshot),
                "latest": latest_of(one.snapshot, rules),
                "pressure": {verdict.target: verdict for verdict in one.snapshot.pressure},
                "bars": bars_of(one.snapshot, {}),
            }
            for one in exhibits.pools()
        ]
        return (
            self._environment.get_template("patterns.html")
            .render(
                page="patterns",
                simulated=True,
                pools=pools,
                full=pools[0]["snapshot"],
                bare=exhibits.bare(exhibits.nested()),
                exhibits=exhibits,
                entries_of=entries_of,
                listings=[listing_of(exhibits.nested(), Growth(), ListView(by)) for by in ("process", "unit")],
                absences=tuple(Absent),
                silence_spans=SILENCE_SPANS,
            )
            .encode()
        )

    def _context(self, name: str, snapshot: Snapshot, view: ListView | None = None) -> dict[str, Any]:
        view = view or ListView()
        rules, keeper = self._rules(), self._keeper()
        words = keeper.last_words if keeper else None
        pressure = {verdict.target: verdict for verdict in snapshot.pressure}
        return {
            "page": name,
            "stream": name if view.by == "process" else f"{name}-{view.by}",
            "snapshot": snapshot,
            "simulated": snapshot.simulated,
            "pressure": pressure,
            "worst": worst_of(snapshot),
            "latest": latest_of(snapshot, rules),
            "bars": bars_of(snapshot, {pool.id: rules.for_target(pool.id) for pool in snapshot.pools}),
            "places": sorted({place for process in snapshot.processes for place in process.device_bytes}),
            "processes": by_footprint(snapshot.processes)[: TOP_PROCESSES if name == "overview" else None],
            "who": who_of(snapshot, self._growth) if name == "processes" else None,
            "listing": listing_of(snapshot, self._growth, view) if name == "processes" else None,
            "cpu": self._cpu.of(snapshot),
            "files": keeper.status() if keeper else None,
            "words": words if words and snapshot.unix - words.unix < TOLD_SECONDS else None,
            "changes": self._changes(snapshot) if name == "overview" else None,
            "room": room_of(snapshot),
            "cuda_free": cuda_free_of(snapshot),
            "events": self._events(),
            "entries": entries_of(snapshot) if name == "devices" else (),
            "alerting": self._alerting() if name == "alerts" else None,
            "silence_spans": SILENCE_SPANS,
            "targets": {**snapshot.labels, **{device.id: device.name for device in snapshot.devices}},
            "past": None,
        }

    def _changes(self, snapshot: Snapshot) -> Changes | None:
        start = self._growth.boottime - WINDOW_SECONDS
        return changes_of(snapshot, self._history(), self._growth.since(start, snapshot.unix - WINDOW_SECONDS))


class CpuShare:
    """Own processor time as a part of one core, over the last minute of what was shown."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def of(self, snapshot: Snapshot) -> float | Absent:
        now = (snapshot.monotonic, snapshot.self_usage.cpu_seconds)
        if self._seen and self._seen[-1] > now:
            self._seen.clear()
        if not self._seen or self._seen[-1] != now:
            self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1][0] < now[0] - CPU_WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        seconds = now[0] - since
        return (now[1] - before) / seconds if seconds >= CPU_LEAST_SECONDS else Absent.NOT_AVAILABLE


def create_environment() -> Environment:
    """Templates that escape everything and refuse names that do not exist."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        optimized=False,  # what filters do is not kept in a compiled template
        bytecode_cache=CompiledTemplates(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {name: getattr(wording, name) for name in WORDS}
    environment.filters["percent"] = lambda part: f"{part * 100:.3f}%"
    environment.tests["absent"] = lambda value: isinstance(value, Absent)
    environment.tests["told"] = has_figures
    environment.globals |= {
        "version": __version__,
        "up": "",  # every page but one that is no page lies where the others do
        "paths": LINKS,
        "between": wording.between,
        "verdict": wording.verdict,
        "waited": wording.waited,
        "count": wording.count,
        "rule_names": EVENTS,
        "whole_minutes": lambda seconds: seconds if seconds < 60 else seconds // 60 * 60,
        "group_nouns": wording.GROUP_WORDS,
        "why_absent": wording.ABSENT_SENTENCES,
        "not_judged": wording.NOT_JUDGED,
        "absent_word": wording.ABSENT_WORDS,
    }
    for parts in PARTS:
        environment.globals[parts] = environment.get_template(f"{parts}.html").module
    return environment
