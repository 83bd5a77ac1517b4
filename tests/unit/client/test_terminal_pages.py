"""Test the pages of `memwatch top` as text, for every sample machine at five sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memwatch.client.terminal.frame import Frame, View
from memwatch.client.terminal.moment import Moment
from memwatch.client.terminal.pages import render
from memwatch.client.terminal.past import NO_PROCESSES, Recent, past_snapshot
from memwatch.client.terminal.state import Region, State
from memwatch.client.terminal.style import line_cells, plain
from memwatch.client.terminal.trend import Trend
from memwatch.render.json import snapshot_json, to_bytes
from memwatch.snapshot import Snapshot
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu, hostile_names, many_owners, mig_server
from support.terminal_sizes import SIZES

GIB = 1 << 30


def sent(snapshot: Snapshot) -> Any:
    return json.loads(to_bytes(snapshot_json(snapshot)))


def draw(snapshot: Any, width: int = 80, height: int = 24, state: State | None = None, **moment: Any) -> Frame:
    return render(
        View(Moment(snapshot, **moment), state or State(), width, height, snapshot["unix"] + 0.5, has_colour=True)
    )


def text_of(frame: Frame) -> str:
    return "\n".join(plain(line).rstrip() for line in frame.lines)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_page_of_every_machine_fills_the_terminal_exactly(name: str) -> None:
    """No line is longer than the terminal is wide, the footer is the last line, and clicks are inside."""
    snapshot = sent(SAMPLES[name]())

    for width, height in SIZES:
        for state in (*(State(page=page) for page in (1, 2, 3, 4)), State(has_help=True), State(is_tree=True)):
            frame = draw(snapshot, width, height, state)
            assert len(frame.lines) == height
            assert max(map(line_cells, frame.lines)) <= width
            assert "1 overview" in plain(frame.lines[-1])
            assert all(one.line < height and one.start < width for one in frame.regions)
            assert plain(frame.lines[0]).startswith(f" {snapshot['host']}")


def test_cuda_pool_is_a_bracket_below_its_own_bytes() -> None:
    """It starts and ends with the GPU's part of the bar, and the line says what it is inside of."""
    frame = draw(sent(critical_gb10()), 132, 24)
    bar, brackets = (plain(frame.lines[number]) for number in (1, 2))

    styled = [(span.style, len(span.text)) for span in frame.lines[1]]
    lead = len(bar) - len(bar.lstrip()) + bar.lstrip().index("█") if "█" in bar else 0
    gpu = sum(length for style, length in styled if style == "gpu")
    assert "CUDA Pool 96.4G ⊂ System RAM" in brackets
    assert brackets.index("└") == lead
    assert abs(brackets.index("┘") - lead + 1 - gpu) <= 2  # a threshold may stand in the bar


def test_processes_are_visible_in_80_by_24() -> None:
    """With eight GPUs as well: the lines of the GPUs leave room for the table."""
    spark, mig = sent(critical_gb10()), sent(mig_server())

    assert "vllm  " in text_of(draw(spark))
    mig["devices"] = [{**mig["devices"][0], "id": f"gpu{number}"} for number in range(16)]
    frame = draw(mig)
    assert frame.rows >= 5
    assert "more GPUs, less full: press 2" in text_of(frame)


def test_mig_instances_stand_below_their_gpu_with_unique_names() -> None:
    snapshot = sent(mig_server())
    snapshot["pressure"][-1].update(target=snapshot["shares"][0]["id"], level="critical", ratio=0.99)
    text = text_of(draw(snapshot, 132, 43))

    assert "MIG" in text
    assert "CRITICAL GPU" in text.splitlines()[0]
    assert "MIG instance" not in text


def test_level_and_time_left_are_in_the_first_line() -> None:
    snapshot = sent(critical_gb10())
    snapshot["pressure"][0].update(level="critical", seconds_to_full=17.2)
    first = text_of(draw(snapshot)).splitlines()[0]

    assert "▲ CRITICAL  full in ~17.0 s" in first or "▲ CRITICAL  full in ~17 s" in first


def test_table_is_sorted_filtered_and_grouped() -> None:
    """Rows follow the chosen column, the filter matches user and unit, and groups come before their members."""
    snapshot = sent(many_owners())
    pids = sorted(one["pid"] for one in snapshot["processes"])

    by_pid = text_of(draw(snapshot, 132, 43, State(sort="pid", descending=False)))
    assert by_pid.index(f" {pids[0]} ") < by_pid.index(f" {pids[-1]} ")
    user = next(one["user"] for one in snapshot["processes"] if one["user"])
    frame = draw(snapshot, 132, 43, State(filter=user.upper()))
    assert 0 < frame.total <= len(pids)
    assert 'No process matches "zzz". Esc clears the filter.' in text_of(draw(snapshot, state=State(filter="zzz")))
    grouped = draw(snapshot, 132, 43, State(is_tree=True))
    assert grouped.total > len(pids)
    assert "└ " in text_of(grouped)


def test_scrolling_shows_later_rows_and_stops_at_the_last() -> None:
    snapshot = sent(many_owners())
    snapshot["processes"] *= 10
    first, last = draw(snapshot), draw(snapshot, state=State(offset=10_000))

    assert first.total == len(snapshot["processes"]) > first.rows
    assert text_of(first) != text_of(last)
    assert len([line for line in last.lines if line]) == 24


def test_narrow_terminal_drops_columns_and_a_tiny_one_says_its_size() -> None:
    snapshot = sent(critical_gb10())

    assert "UNIT" not in text_of(draw(snapshot, 60, 24))
    assert "FOOTPRINT" in text_of(draw(snapshot, 40, 12))
    assert "needs 40×10 cells" in text_of(draw(snapshot, 70, 8))


def test_titles_and_pages_can_be_clicked() -> None:
    frame = draw(sent(critical_gb10()))
    keys = {one.key for one in frame.regions}

    assert {"sort rss", "sort footprint", "1", "4", "/", "q"} <= keys
    rss: Region = next(one for one in frame.regions if one.key == "sort rss")
    assert "RSS" in plain(frame.lines[rss.line])[rss.start : rss.end]


def test_hostile_names_take_their_cells() -> None:
    """Wide characters take two cells, combining marks none. The line still has the width of the terminal."""
    snapshot = sent(hostile_names())
    snapshot["processes"][0]["name"] = "漢字漢字漢字漢字漢字e\u0301漢字漢字漢字漢字漢字漢字漢字漢字"

    frame = draw(snapshot)

    assert max(map(line_cells, frame.lines)) <= 80


def test_growth_that_is_large_is_marked() -> None:
    snapshot = sent(critical_gb10())
    process = snapshot["processes"][0]
    grown = {"pid": process["pid"], "name": "train.py", "grown_bytes": 37 * GIB, "windows": {"60": 6 * GIB}}
    frame = draw(snapshot, 132, 43, growth={process["pid"]: grown})

    assert "+37.0G" in text_of(frame)
    assert f"↑ train.py {process['pid']} +102M/s" in text_of(frame)
    assert any(span.style == "bold high" and "+37.0G" in span.text for line in frame.lines for span in line)


def test_events_are_newest_first_in_the_colour_of_their_level() -> None:
    snapshot = sent(critical_gb10())
    events = [
        {"unix": snapshot["unix"] - 10, "kind": "oom_kill", "text": "OOM killer: killed train.py"},
        {"unix": snapshot["unix"] - 20, "kind": "level", "text": "System RAM: high → critical (96.4% used)"},
        {"unix": snapshot["unix"] + 60, "kind": "level", "text": "later than the moment that is shown"},
    ]
    frame = draw(snapshot, state=State(page=4), events=events)
    text = text_of(frame)

    assert text.index("OOM killer") < text.index("high → critical")
    assert "later than" not in text
    assert any(span.style == "critical" for line in frame.lines for span in line)


def test_lost_connection_is_shown_with_the_age_of_the_data() -> None:
    text = text_of(draw(sent(critical_gb10()), error="cannot reach memwatchd at http://gpu7:6360"))

    assert "cannot reach memwatchd at http://gpu7:6360" in text
    assert "no data for 1.0 s" in text.splitlines()[0]


def test_past_is_shown_from_the_history_without_its_processes() -> None:
    """The pool and its share have the figures of that time. Unknown figures are dashes, not those of now."""
    latest = sent(critical_gb10())
    unix = latest["unix"] - 120
    trends = {
        "pool.ram.used_bytes": Trend((unix,), (40.0 * GIB,)),
        f"share.{latest['shares'][0]['id']}.used_bytes": Trend((unix,), (30.0 * GIB,)),
        "pressure.ram.level": Trend((unix,), (1.0,)),
    }
    past = past_snapshot(latest, trends, unix + 5, 15.0)
    text = text_of(draw(past, 132, 24, State(paused_at=unix + 5), note=NO_PROCESSES))

    assert "40.0/119.7G" in text
    assert "CUDA Pool 30.0G ⊂ RAM" in text
    assert "◆ MEDIUM" in text
    assert "paused" in text
    assert "can allocate —" in text
    assert "VLLM" not in text
    assert past_snapshot(latest, trends, unix + 60, 15.0)["pools"][0]["used_bytes"] is None


def test_received_snapshots_are_kept_whole() -> None:
    """They come back with their processes. Older figures come before them, and a repeated tick counts once."""
    first, kept = sent(critical_gb10()), Recent()
    later = {**first, "unix": first["unix"] + 1, "processes": []}
    for snapshot in (first, first, later):
        kept.add(snapshot)
    kept.prepend({"pool.ram.used_bytes": Trend((first["unix"] - 60, first["unix"]), (1.0, 2.0))})

    assert kept.snapshot_at(first["unix"] + 0.5) == first
    assert kept.snapshot_at(first["unix"] + 9) == later
    assert kept.snapshot_at(first["unix"] - 9) is None
    assert kept.oldest == first["unix"] - 60
    assert len(kept.trends()["pool.ram.used_bytes"].unix) == 3


def test_chart_of_the_history_marks_levels_and_the_chosen_moment() -> None:
    snapshot = sent(discrete_gpu())
    end, whole = snapshot["unix"], snapshot["pools"][0]["size_bytes"]
    name = f"pool.{snapshot['pools'][0]['id']}.used_bytes"
    trend = Trend(tuple(end - 600 + 2 * at for at in range(300)), tuple(whole * at / 300 for at in range(300)))
    paused = {**snapshot, "unix": end - 580}
    frame = draw(
        paused, 100, 30, State(page=3, paused_at=end - 580), charts={name: trend}, chart_span=(end - 600, end)
    )
    styles = {span.style for line in frame.lines for span in line}

    assert {"high", "medium", "accent"} <= styles
    assert "max " in text_of(frame)
    assert any("│" in plain(line)[10:] for line in frame.lines)


def test_without_a_daemon_pages_say_what_is_missing() -> None:
    snapshot = sent(critical_gb10())

    assert "needs a daemon" in text_of(draw(snapshot, state=State(page=3), has_history=False))
    assert "need a daemon" in text_of(draw(snapshot, state=State(page=4), has_history=False))


def test_bars_without_colours_differ_by_their_characters() -> None:
    view = View(Moment(sent(critical_gb10())), State(), 100, 24, 0.0, has_colour=False)
    bar = plain(render(view).lines[1])

    assert {"█", "▓", "▒"} <= set(bar)
