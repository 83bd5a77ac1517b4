"""Words for levels: texts for people say "OK" where the value is `low`, on every page and in every command."""

from __future__ import annotations

import re
from itertools import product

import pytest
from msgspec.structs import replace

from memwatch.cli.alerts import judge
from memwatch.cli.status import render_lines
from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.moment import Moment
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import plain
from memwatch.core.snapshot import LEVEL_WORDS, Level, Snapshot
from memwatch.core.snapshot_json import snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.history.last_run import build_unclean_shutdown
from memwatch.reporting.history.notable_ticks import build_tick
from memwatch.reporting.render import words
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.incidents.assemble import explain_end
from memwatch_web.pages.renderer import Pages
from memwatchd.wiring import render_status
from support.html_reader import Reader
from support.sample_snapshots import SAMPLES, calm_workstation

LOW = re.compile(r"\blow\b", re.IGNORECASE)
# Of MemFree, not of a level.
FREE = "Low “free” is normal."
SHOWN_ATTRIBUTES = ("title", "aria-label", "alt", "placeholder")


def sent(snapshot: Snapshot) -> Snapshot:
    return snapshot_from(to_bytes(snapshot_json(snapshot)))


def test_value_low_reads_ok_and_other_levels_read_as_their_value() -> None:
    shown = [words.level(word) for word in (*LEVEL_WORDS, "unknown")]
    assert shown == ["OK", "medium", "high", "critical", "unknown"]
    assert [level.word for level in Level] == ["low", "medium", "high", "critical"]


def test_systemd_status_of_a_machine_at_ease_is_ok() -> None:
    """`systemctl status` shows it beside the name of the unit."""
    assert re.fullmatch(r"System RAM OK \(\d+%\)", render_status(calm_workstation()))


@pytest.mark.parametrize(("sample", "name"), list(product(SAMPLES, Pages.names)))
def test_no_page_says_low(sample: str, name: str) -> None:
    page = Reader(Pages().page(name, SAMPLES[sample]()))

    shown = [page.text, *(text for name in SHOWN_ATTRIBUTES for text in page.values(name))]
    assert [text for text in shown if LOW.search(text.replace(FREE, ""))] == []
    assert not re.search(r"\bOk\b", page.text)


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_command_says_low(sample: str) -> None:
    snapshot = sent(SAMPLES[sample]())

    lines = [plain(line) for line in render_lines(snapshot, 0.2, 120, has_colour=False)]
    for page in (1, 2, 3, 4):
        view = View(Moment(snapshot), State(page=page), 150, 50, snapshot.unix, has_colour=True)
        lines += [plain(line) for line in render(view).lines]
    lines += [judge(snapshot, 0.0, "critical", "high", ())[1], render_status(SAMPLES[sample]())]
    assert [line for line in lines if LOW.search(line)] == []


def test_end_of_a_run_at_ease_is_told_with_the_word_for_people() -> None:
    """The log, the event and the incident of an unclean end name the last level."""
    tick = build_tick(calm_workstation(), 100.0, {"pool.ram.used_bytes": 1.0})
    end = build_unclean_shutdown([tick], [], tick.unix, machine_restarted=True)

    killer, _ = explain_end(end, ())

    assert re.search(r", System RAM OK \(\d+\.\d% used\)$", end.sentence)
    assert killer.evidence.endswith("and System RAM was OK")
    assert not LOW.search(explain_end(replace(end, samples=()), ())[0].evidence)
