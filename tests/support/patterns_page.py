"""Page with every component in every state, with sample data. It uses the templates and styles of the product."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader

from memwatch.core.model import Absent
from memwatch.core.processes.growth import GrowthTracker
from memwatch.reporting.render.memory_map import build_limit_maps, build_maps
from memwatch.reporting.render.summary import build_latest, build_notices, find_worst
from memwatch_monitor.notify.status import AlertView, find_notified
from memwatch_monitor.render.status_line import build_status_line
from memwatch_web.pages.compiled_templates import TEMPLATES
from memwatch_web.pages.devices import build_entries
from memwatch_web.pages.landscape_page import Scene, draw_page
from memwatch_web.pages.processes import ListView, build_listing
from memwatch_web.pages.renderer import SILENCE_SPANS
from memwatch_web.pages.template_environment import create_environment
from support import pattern_samples as exhibits

PATTERNS = Path(__file__).parent / "patterns"


@cache
def _environment() -> Environment:
    loaders = [FileSystemLoader(PATTERNS), FileSystemLoader(TEMPLATES)]
    environment = create_environment().overlay(loader=ChoiceLoader(loaders), bytecode_cache=None)
    environment.globals.update(firing=lambda: 0, has_neighbours=lambda: False, state=lambda: None)
    return environment


def render_patterns() -> bytes:
    pools = [
        {
            "state": one.state,
            "snapshot": one.snapshot,
            "worst": find_worst(one.snapshot),
            "latest": build_latest(one.snapshot),
            "pressure": {verdict.target: verdict for verdict in one.snapshot.pressure},
            "landscape": draw_page((*build_maps(one.snapshot, {}), *build_limit_maps(one.snapshot, {})), Scene()),
            "status": build_status_line(one.snapshot),
            "notified": find_notified(AlertView(exhibits.ALERTS, receivers=tuple(exhibits.receivers())), "ram"),
        }
        for one in exhibits.pools()
    ]
    context = {
        "page": "patterns",
        "simulated": True,
        "pools": pools,
        "full": pools[0]["snapshot"],
        "bare": exhibits.bare(exhibits.nested()),
        "samples": exhibits,
        "build_entries": build_entries,
        "listings": [build_listing(exhibits.nested(), GrowthTracker(), ListView(by)) for by in ("process", "unit")],
        "absences": tuple(Absent),
        "silence_spans": SILENCE_SPANS,
        "silence_notices": build_notices(exhibits.SILENCES, {}),
    }
    return _environment().get_template("patterns.html").render(context).encode()
