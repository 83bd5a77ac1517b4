"""Environment of the Jinja templates: filters, names of pages, macros."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket, BytecodeCache
from markupsafe import Markup, escape

from memwatch.build_info import REVISION, __version__
from memwatch.core import units
from memwatch.core.listing import left_out_texts
from memwatch.core.model import Absent
from memwatch.core.owners import find_home
from memwatch.core.printable import printable
from memwatch.reporting.incidents.records import title_of
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.actions import describe_owner
from memwatch.reporting.render.engine_view import describe_engine, describe_load, list_parts
from memwatch.reporting.render.summary import has_figures, until_utc
from memwatch_monitor.alerts.rules import EVENTS
from memwatch_web.pages import landscape_markup
from memwatch_web.pages.charts import DASHES
from memwatch_web.pages.overview import name_few

# On-disk cache of compiled Jinja2 templates. It saves half a second of the first page.


class CompiledTemplates(BytecodeCache):
    """Cache in `__pycache__` beside the templates, or below PYTHONPYCACHEPREFIX.

    Files that are unreadable, outdated, or from another version of Jinja2 or Python are compiled again. Files are
    written only where Python would write its compiled modules, and have the same trust: an account that can write
    there could also replace modules. Jinja's FileSystemBytecodeCache (3.1) writes files with mode 0600, which the
    service's user could not read after root compiled them.
    """

    def __init__(self, templates: Path) -> None:
        self.folder = Path(cache_from_source(str(templates / "template.py"))).parent
        self._ending = f"{sys.implementation.cache_tag}.jinja2-{version('jinja2')}"

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            with self._cache_path(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except FileNotFoundError:
            pass
        except Exception:  # noqa: BLE001  pickle may raise any exception on damaged bytes
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        file = self._cache_path(bucket)
        written = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # not writable, or the disk is full
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with written.open("wb") as into:
                    bucket.write_bytecode(into)
                written.replace(file)
            finally:
                written.unlink(missing_ok=True)

    def _cache_path(self, bucket: Bucket) -> Path:
        return self.folder / f"{bucket.key}.{self._ending}"


# HTML of sentences.

_NUMBER = re.compile(r"(?:&lt; )?\d[\d.,]*(?:%| (?:[KMGTPE]iB|B|µs|ms|s|min|h|d))(?!\w)")


def glue_units(text: str) -> Markup:
    """Escape a sentence and keep each number on one line with its unit."""
    return Markup(_NUMBER.sub(r'<span class="figure">\g<0></span>', str(escape(text))))  # noqa: S704  escaped


TEMPLATES = Path(__file__).parent.parent / "templates"
PATHS = {
    "overview": "/",
    "history": "/history",
    "processes": "/processes",
    "devices": "/devices",
    "machines": "/machines",
    "alerts": "/alerts",
    "about": "/about",
}
# Links of the navigation bar.
LINKS = {name: PATHS[name] for name in ("overview", "history", "processes", "devices")}
LINKS |= {"machines": "/machines", "fit": "/fit", "alerts": "/alerts", "incidents": "/incidents", "about": "/about"}
# Letters that open a page after g.
KEYS = {"overview": "o", "history": "h", "processes": "p", "devices": "d", "fit": "f", "alerts": "a"}
KEYS |= {"machines": "m", "incidents": "n", "about": "i"}
# Macro files, available in templates by name. The first is used by the others.
PARTS = (
    "parts",
    "holder_parts",
    "alert_parts",
    "engine_parts",
    "landscape_parts",
    "status_parts",
    "device_parts",
    "past_parts",
    "machine_parts",
    "incident_parts",
)
# Filters of templates: `figure | size`.
WORDS = (
    "age",
    "api",
    "architecture",
    "basis",
    "celsius",
    "change",
    "clock",
    "clock_name",
    "content",
    "content_sentence",
    "duration",
    "elapsed",
    "exact",
    "fact",
    "fault",
    "figure",
    "headroom",
    "hertz",
    "level",
    "moment",
    "ratio",
    "reasons",
    "size",
    "size_within",
    "throttled",
    "timestamp",
    "watts",
    "when",
)

# Filters of the landscape.
LANDSCAPE = (
    "area_attributes",
    "compact",
    "describe_room",
    "describe_then",
    "device_lines",
    "gib",
    "heading",
    "maps_of",
    "path",
    "pixels",
    "steps",
    "worst_level",
)


def compile_templates() -> None:
    """Compile all templates to the cache of `CompiledTemplates`. Called by packages when they are installed."""
    environment = create_environment()
    for name in _list_templates(environment):
        environment.get_template(name)


def _list_templates(environment: Environment) -> list[str]:
    return environment.list_templates(("html", "svg"))


@cache
def shared_environment() -> Environment:
    """Return the environment of this process: its templates are compiled once, even without a cache on disk."""
    return create_environment()


def create_environment() -> Environment:
    """Create the environment: autoescape, undefined names raise."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        optimized=False,  # keep results of filters out of compiled templates
        bytecode_cache=CompiledTemplates(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {name: getattr(wording, name) for name in WORDS}
    environment.filters |= {"glue_units": glue_units, "list_parts": list_parts}
    environment.filters |= {"describe_engine": describe_engine, "describe_load": describe_load}
    environment.filters["left_out_texts"] = left_out_texts
    environment.filters["title_of"] = title_of
    environment.filters["home"] = find_home
    environment.filters["few_receivers"] = name_few
    environment.filters["owner"] = lambda process, snapshot: describe_owner(process, snapshot).replace(", ", " · ")
    environment.filters["until_utc"] = until_utc
    # For texts that quote a request or the settings; names are printable since they were read.
    environment.filters["printable"] = printable
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.filters["forecast"] = units.forecast
    environment.filters["sentence_case"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["last_word"] = lambda text: text.rpartition(" ")[2]
    environment.filters |= {name: getattr(landscape_markup, name) for name in LANDSCAPE}
    environment.filters["percent"] = lambda part: f"{part * 100:.3f}%"
    environment.tests["absent"] = lambda value: isinstance(value, Absent)
    environment.tests["known"] = has_figures
    environment.globals |= {
        "version": __version__,
        "revision": REVISION,
        "dashes": DASHES,
        "page_paint": landscape_markup.PagePaint,
        "up": "",  # only error pages may be nested
        "paths": LINKS,
        "keys": KEYS,
        "between": wording.between,
        "needs_reclaim": wording.needs_reclaim,
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
