"""Test colours of the terminal, cell widths, changed lines, and short sizes."""

from __future__ import annotations

import pytest

from memwatch.cli.terminal.app import changed_lines
from memwatch.cli.terminal.figures import Trend, pair, short, signed, spark
from memwatch.cli.terminal.style import Depth, Span, cells, clip, find_depth, paint, plain, spread
from memwatch.core.model import Absent


@pytest.mark.parametrize(
    ("is_terminal", "environ", "depth"),
    [
        (True, {"TERM": "xterm"}, Depth.BASIC),
        (True, {"TERM": "xterm-256color"}, Depth.INDEXED),
        (True, {"TERM": "xterm", "COLORTERM": "truecolor"}, Depth.TRUE),
        (True, {"TERM": "dumb"}, Depth.NONE),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, Depth.NONE),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, Depth.BASIC),
        (True, {"TERM": "xterm", "CLICOLOR": "0"}, Depth.NONE),
        (False, {"TERM": "xterm"}, Depth.NONE),
        (False, {"TERM": "xterm", "CLICOLOR_FORCE": "1"}, Depth.BASIC),
        (False, {"TERM": "xterm", "CLICOLOR_FORCE": "0"}, Depth.NONE),
        (False, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, Depth.NONE),
    ],
)
def test_colour_depth_follows_the_environment(is_terminal: bool, environ: dict[str, str], depth: Depth) -> None:
    assert find_depth(is_terminal, environ) is depth


@pytest.mark.parametrize(
    ("depth", "painted"),
    [
        (Depth.BASIC, "\x1b[1;91mfull\x1b[0m"),
        (Depth.INDEXED, "\x1b[1;38;5;203mfull\x1b[0m"),
        (Depth.TRUE, "\x1b[1;38;2;244;92;92mfull\x1b[0m"),
        (Depth.NONE, "\x1b[1mfull\x1b[0m"),
    ],
)
def test_span_is_painted_at_each_depth(depth: Depth, painted: str) -> None:
    assert paint((Span("full", "bold critical"),), depth) == painted
    assert paint((Span("full", "bold critical"),), Depth.NONE, attributes=False) == "full"


def test_background_has_its_own_code() -> None:
    assert paint((Span("│", "ink", "gpu"),), Depth.BASIC) == "\x1b[30;102m│\x1b[0m"


def test_wide_characters_take_two_cells() -> None:
    assert cells("漢字") == 4
    assert cells("e\u0301") == 1
    assert clip("漢字漢字", 5) == "漢字…"
    assert clip("abc", 3) == "abc"
    assert plain(spread((Span("left and more"),), (Span("right"),), 12)) == "left … right"


def test_only_changed_lines_are_written() -> None:
    before, after = ["a", "b", "c"], ["a", "x", "c", "d"]

    assert changed_lines(before, after) == "\x1b[2;1Hx\x1b[K\x1b[4;1Hd\x1b[K"
    assert changed_lines(after, after) == ""


def test_compared_sizes_have_one_unit() -> None:
    """A machine with 2 TiB is shown in GiB: one decimal of a TiB would hide 50 GiB."""
    gib = 1 << 30

    assert pair(446301095936, 2164789936128) == "415.7/2,016G"
    assert pair(0, 16 * gib) == "0/16.0G"
    assert pair(None, 16 * gib) == "—/16.0G"
    assert (short(512 << 20), short(0), short(700), short(Absent.STALE)) == ("512M", "0", "700B", "—")
    assert (signed(448 * gib), signed(-600 << 20)) == ("+448G", "−600M")
    assert (signed(gib), signed(-gib), signed(0), signed(None)) == ("+1.0G", "−1.0G", "0", "—")


def test_trend_has_the_greatest_value_of_each_column_and_gaps() -> None:
    trend = Trend((1.0, 2.0, 3.0, 9.0), (1.0, 5.0, 2.0, 8.0))

    assert Trend((1.0, 1.5, 9.5), (1.0, 5.0, 8.0)).columns(0.0, 10.0, 10)[0:2] == [None, 5.0]
    assert trend.columns(0.0, 4.0, 2) == [1.0, 5.0]
    assert (trend.at(3.5, 1.0), trend.at(5.0, 1.0), trend.at(0.5, 9.0)) == (2.0, None, None)
    assert Trend().columns(0.0, 1.0, 3) == [None, None, None]


def test_spark_is_scaled_to_the_whole() -> None:
    assert spark([0.0, 4.0, None, 8.0], 8.0) == "▁▅ █"
