"""The page about the end of a run that did not end cleanly, from ticks of samples."""

from __future__ import annotations

import re

import pytest

from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch_web.pages.renderer import Pages
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.html_reader import Reader
from support.sample_past import end_of_run
from support.sample_snapshots import SAMPLES, critical_gb10, mig_server, unknown_figures


def text_of(words: UncleanShutdown | None) -> str:
    return Reader(Pages().last_words(words)).text


@pytest.mark.parametrize("name", SAMPLES)
def test_every_machine_has_its_last_words(name: str) -> None:
    """Each pool is there once, and what is not known is not zero."""
    snapshot = SAMPLES[name]()
    text = text_of(end_of_run(snapshot))

    assert all(pool.label in text for pool in snapshot.pools)
    assert " 0 B" not in text


def test_heading_says_what_ended_and_how_full_it_was() -> None:
    words = end_of_run(critical_gb10())
    assert words.last is not None
    assert words.last.worst is not None
    worst = words.last.worst

    assert f"Machine crash or power loss critical {worst.label} {worst.ratio:.1%} used" in text_of(words)
    assert "memwatchd crashed or was killed" in text_of(end_of_run(critical_gb10(), restarted=False))


def test_use_is_said_once_and_other_reasons_follow_their_pool() -> None:
    words = end_of_run(critical_gb10())
    assert words.last is not None
    assert words.last.worst is not None
    reasons = [one for one in words.last.worst.reasons if not one.endswith("% used")]
    text = text_of(words)

    assert reasons
    assert f"{words.last.worst.label} {'; '.join(reasons)}" in text.replace("\xa0", " ")


def test_limits_are_rows_below_the_pools() -> None:
    text = text_of(end_of_run(mig_server()))
    table = text[text.index("Pool Level Used Available Size") :]

    assert "MIG" in table[: table.index("Processes")]


def test_unknown_figures_have_their_reason() -> None:
    assert "GPU 0 VRAM — — inconsistent — inconsistent 24.0 GiB" in text_of(end_of_run(unknown_figures()))


def test_run_without_samples_says_so() -> None:
    text = text_of(UncleanShutdown(1.0, True, (), None))

    assert "Machine crash or power loss no sample since the start" in text


def test_a_machine_with_many_pools_shows_the_worst_and_folds_the_others() -> None:
    """With twelve pools and limits, ten processes and eight devices the page was 1,600 pixels high."""
    words = end_of_run(list(read_frames(path_of("h100x8-mig")))[280])
    assert words.last is not None
    page = Pages().last_words(words).decode()
    reader = Reader(page.encode())
    order = [one.label for one in sorted(words.last.pressure, key=lambda one: (one.level, one.ratio), reverse=True)]
    table = reader.text[reader.text.index("Pool Level Used") :]

    assert [table.index(f" {label} ") for label in order] == sorted(table.index(f" {label} ") for label in order)
    assert "6 less full" in table
    assert table.index(order[5]) < table.index("6 less full") < table.index(f" {order[6]} ")
    assert "2 more" in table
    assert f"{len(words.last.processes) - 6} smaller" in table


def test_lines_of_many_pools_differ_in_colour_or_dashes() -> None:
    """Twelve pools had six colours: System RAM looked like VRAM 5."""
    words = end_of_run(list(read_frames(path_of("h100x8-mig")))[280])
    html = Pages().last_words(words).decode()
    strokes = re.findall(r'<path class="final-line ([^>]*) d="M0 4H26"', html)

    assert len(strokes) == len(set(strokes)) >= 12
    assert all(f'<polyline class="final-line {stroke} points=' in html for stroke in strokes)
