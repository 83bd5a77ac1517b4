"""Test the pages of `memwatch top` as text, for every sample machine at five sizes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.cli.terminal.figures import Trend
from memwatch.cli.terminal.frame import Frame, View
from memwatch.cli.terminal.moment import Moment, ProcessReading
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.past import NO_PROCESSES, Recent, nearest_tick, note_of, past_snapshot
from memwatch.cli.terminal.stacks import marks_of
from memwatch.cli.terminal.state import Facts, Region, State, press
from memwatch.cli.terminal.style import line_cells, plain
from memwatch.core.events import Event
from memwatch.core.model import Absent, Pool, PoolKind, Quality, Thresholds
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.core.snapshot_json import build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from support.sample_mig import eight_by_seven
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu, hostile_names, many_owners, mig_server
from support.terminal_sizes import SIZES

GIB = 1 << 30


def sent(snapshot: Snapshot) -> Any:
    return json.loads(to_bytes(snapshot_json(snapshot)))


def draw(found: Any, width: int = 80, height: int = 24, state: State | None = None, **moment: Any) -> Frame:
    snapshot = found if isinstance(found, Snapshot) else build_snapshot(found)
    return render(
        View(Moment(snapshot, **moment), state or State(), width, height, snapshot.unix + 0.5, has_colour=True)
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


def test_thresholds_are_those_of_the_daemon() -> None:
    """They stand between the past and now, where they begin, and a pool that is not judged has none."""
    snapshot = sent(critical_gb10())
    verdict = snapshot["pressure"][0]
    history = {"pool.ram.used_bytes": Trend((snapshot["unix"] - 60, snapshot["unix"]), (9.0 * GIB, 9.0 * GIB))}

    def rows(*words: str) -> list[int]:
        lines = text_of(draw(snapshot, 132, 43, trends=history)).splitlines()
        return [next(number for number, line in enumerate(lines) if word in line) for word in words]

    usual = rows("◆60%", "▲80%", "⬣95%")
    verdict["thresholds"] = {"medium": 0.4, "high": 0.7, "critical": 0.825}
    moved = rows("◆40%", "▲70%", " 82.5%")

    assert usual == sorted(usual, reverse=True)
    assert moved == sorted(moved, reverse=True)
    assert all(now > before for now, before in zip(moved, usual, strict=True))
    verdict["thresholds"] = None
    text = text_of(draw(snapshot, 132, 43, trends=history))
    assert "◆60%" not in text
    assert "◆40%" not in text


def test_thresholds_of_a_budget_and_of_resident_memory_lie_where_the_level_begins() -> None:
    pool = Pool("gpu0", PoolKind.VRAM, "VRAM 0", 80, 50, 30, "", Quality.MEASURED)
    judged = Pressure("gpu0", Level.LOW, Level.LOW, 0.5, size_bytes=60, available_bytes=10)
    judged = replace(judged, thresholds=Thresholds(0.5, 0.8, 1.0))

    def places(**changes: int) -> list[float]:
        return [round(one.position, 4) for one in marks_of(pool, [replace(judged, **changes)])]

    assert places() == [30 / 80, 48 / 80, 60 / 80]  # a budget of 60
    assert places(size_bytes=60, available_bytes=30) == [50 / 80, 68 / 80, 80 / 80]  # 20 set aside
    assert places(resident_bytes=40) == [50 / 80, 56 / 80, 60 / 80]
    assert marks_of(pool, []) == ()


def test_opened_process_shows_its_memory_identity_and_allocators() -> None:
    """Figures that are unknown are dashes with the reason, and every line fits."""
    snapshot = sent(critical_gb10())
    process = snapshot["processes"][0]
    process.update(command="python3 -m vllm.entrypoints.api_server --model " + "long/" * 40, swap_bytes=None)
    process["absent"] = {"swap_bytes": "not_permitted"}
    snapshot["claims"] = [
        {"pid": process["pid"], "name": "PyTorch", "device": "cuda:0", "reserved_bytes": 19 * GIB, "gpu": "gpu0"}
        | {"allocated_bytes": 18 * GIB, "inactive_split_bytes": 200 << 20, "limit_bytes": None, "ooms": 1}
        | {"retries": 2}
    ]
    grown = {"grown_bytes": 3 * GIB, "from_unix": snapshot["unix"] - 300}
    growth = {process["pid"]: {**grown, "windows": {"60": GIB, "600": None}}}
    reading = ProcessReading(process["pid"], 5 * GIB, oom_note="readable on the machine itself only")
    state = State(opened=process["pid"])
    text = text_of(draw(snapshot, 100, 40, state, growth=growth, reading=reading))

    for words in ("PSS                5.0 GiB", "swap                     —  not permitted", "+3.0 GiB  in 5 min"):
        assert words in text
    assert "+1.0 GiB in 1 min" in text
    assert re.search(r"CUDA Pool +\d+\.\d GiB  of GPU0 ", text)
    assert "OOM score                —  readable on the machine itself only" in text
    report = "19.0 GiB reserved on cuda:0, allocated 18.0 GiB, fragmented 200.0 MiB, retried 2 times, 1 OOM error"
    assert report in " ".join(text.split())
    assert "command line  python3 -m vllm.entrypoints.api_server" in text
    for width, height in SIZES:
        frame = draw(snapshot, width, height, state, growth=growth, reading=reading)
        assert len(frame.lines) == height
        assert max(map(line_cells, frame.lines)) <= width
    scored = ProcessReading(process["pid"], oom_score=(1333, 0), pss_note="no permission")
    text = text_of(draw(snapshot, 100, 40, state, reading=scored))
    assert "1333  oom_score_adj 0" in text
    assert "PSS                      —  no permission" in text


def test_opened_process_that_ended_says_so() -> None:
    text = text_of(draw(sent(critical_gb10()), state=State(opened=4_000_000)))

    words = "Process 4000000 is not listed: it has ended, or others are larger. Esc goes back."
    assert words in " ".join(text.split())


def test_marked_row_is_shown_in_reverse_and_rows_can_be_clicked() -> None:
    snapshot = sent(critical_gb10())
    pid = snapshot["processes"][1]["pid"]
    frame = draw(snapshot, state=State(selected=pid))
    row: Region = next(one for one in frame.regions if one.key == f"row {pid}")

    assert {span.style for span in frame.lines[row.line] if "█" not in span.text} == {"reverse bold"}
    assert str(pid) in plain(frame.lines[row.line])
    assert set(frame.pids) == {one["pid"] for one in snapshot["processes"]}
    grouped = draw(snapshot, state=State(is_tree=True))
    assert 0 in grouped.pids


def test_eight_gpus_of_seven_slices_have_unique_names() -> None:
    """All are on one screen of 200×50, and scrolling reaches each in 80×24. The worst slice marks its GPU."""
    snapshot = sent(eight_by_seven())
    names = {f"GPU {gpu} · MIG {number}" for gpu in range(8) for number in range(7, 14)}
    seen: set[str] = set()
    offset, total = 0, 1
    while offset < total:
        frame = draw(snapshot, 80, 24, State(page=2, offset=offset))
        seen |= {name for name in names if re.search(rf"{name}\b", text_of(frame))}
        offset, total = offset + frame.rows, frame.total

    assert seen == names
    for width, height in ((200, 50), (300, 80)):
        text = text_of(draw(snapshot, width, height, State(page=2)))
        assert all(re.search(rf"{name}\b", text) for name in names)
        assert text.count("can allocate") == 8
    assert all(f"GPU{gpu} " in text_of(draw(snapshot, 80, 24)) for gpu in range(8))
    heads = next(plain(line) for line in draw(snapshot, 80, 24).lines if "GPU0 " in plain(line))
    assert heads.split()[:2] == ["GPU0", "⬣"]


def test_name_of_a_slice_does_not_touch_its_bar() -> None:
    lines = [plain(line) for line in draw(sent(mig_server()), 120, 40, State(page=2)).lines]
    assert all(re.search(r"MIG \d+ ", line) for line in lines if "└" in line)


def test_words_of_a_gpu_are_cut_only_where_they_do_not_fit() -> None:
    words = " ".join(text_of(draw(sent(critical_gb10()), 60, 24, State(page=2))).split())
    assert "…" not in words
    assert "can allocate 2.0 GiB at once, up to 4.3 GiB after reclaim" in words


def test_help_has_no_cut_line_and_describes_the_landscape() -> None:
    for width, height in ((40, 10), (80, 24), (120, 40), (200, 60)):
        text = text_of(draw(sent(critical_gb10()), width, height, State(has_help=True)))
        assert "…" not in text.partition("\n")[2]
        assert all(word in text for word in ("? help", "q quit", "close"))
    whole = text_of(draw(sent(critical_gb10()), 120, 60, State(has_help=True)))
    assert "to its right: CUDA Pool ⊂ System RAM" in " ".join(whole.split())


def test_holders_of_a_gpu_have_their_memory_on_it_only() -> None:
    snapshot = sent(eight_by_seven())
    snapshot["processes"] = [{**snapshot["processes"][0], "device_bytes": {"gpu0.mig7": GIB, "gpu1.mig7": 3 * GIB}}]
    text = text_of(draw(snapshot, 200, 50, State(page=2)))

    assert "held by tenant-00 10000 1.0G" in text
    assert "held by tenant-00 10000 3.0G" in text


def test_processes_are_visible_in_80_by_24() -> None:
    """With sixteen GPUs as well: their towers leave room for the table."""
    spark, mig = sent(critical_gb10()), sent(mig_server())

    assert "vllm  " in text_of(draw(spark))
    mig["devices"] = [{**mig["devices"][0], "id": f"gpu{number}"} for number in range(16)]
    frame = draw(mig)
    assert frame.rows >= 5
    assert "more GPUs: press 2" in text_of(frame)


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

    assert "⬣ CRITICAL  full in ~17 s" in first


def test_oom_kill_and_recovery_are_in_the_first_lines() -> None:
    """After a kill the level is only held: the first line says when it clears, the next one who was killed."""
    snapshot = sent(critical_gb10())
    kill = "2 s ago: OOM killer: killed train.py (51210), 39.9 GiB anonymous"
    snapshot["pressure"][0].update(
        base_level="medium",
        ratio=0.66,
        seconds_to_full=None,
        clears_in_seconds=57.8,
        clears_to="low",
        absent={"seconds_to_full": "not_available"},
        reasons=[{"signal": "oom_kill", "text": kill}],
    )
    first, second = text_of(draw(snapshot)).splitlines()[:2]

    assert "⬣ CRITICAL  recovering, OK in 58 s" in first
    assert second.strip() == kill


@pytest.mark.parametrize("width", range(40, 133, 4))
def test_time_left_is_never_cut(width: int) -> None:
    """A narrow terminal cuts the machine, the host, the target and the clock before it."""
    snapshot = sent(discrete_gpu())
    snapshot["pressure"][0].update(level="critical", seconds_to_full=17.3, absent={})
    snapshot["host"] = "a-host-with-a-long-name.example.org"

    first = text_of(draw(snapshot, width)).splitlines()[0]

    assert "⬣ CRITICAL" in first
    assert "full in ~17 s" in first
    assert ("System RAM" in first) == (width >= 48)


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


def sizes_now(process: dict[str, Any]) -> dict[str, Any]:
    """Return the end of a growth that was just read."""
    return {"to_bytes": process["footprint_low_bytes"], "falling": False}


def test_growth_that_is_large_is_marked() -> None:
    """The process has the name of its script, as in the table."""
    snapshot = sent(critical_gb10())
    process = snapshot["processes"][0]
    process["script"] = "train.py"
    grown = {
        **process,
        **sizes_now(process),
        "grown_bytes": 37 * GIB,
        "windows": {"60": 6 * GIB},
    }
    frame = draw(snapshot, 132, 43, growth={process["pid"]: grown})

    assert "+37.0G" in text_of(frame)
    assert f"↑ train.py {process['pid']} +102M/s" in text_of(frame)
    assert any(span.style == "bold high" and "+37.0G" in span.text for line in frame.lines for span in line)


@pytest.mark.parametrize("is_listed", [False, True], ids=["gone", "killed, and still listed by a driver"])
def test_process_that_has_ended_since_growth_was_read_is_not_named(is_listed: bool) -> None:
    """The answer about growth is up to five seconds older than the snapshot."""
    snapshot = sent(critical_gb10())
    process = snapshot["processes"][0]
    grown = {**process, **sizes_now(process), "grown_bytes": 37 * GIB, "windows": {"60": 6 * GIB}}
    if is_listed:
        killed = {"pid": process["pid"], "name": process["name"], "scope": "machine", "number": 1}
        del snapshot["absent"]["kernel_log"]
        snapshot["kernel_log"] = {"kills": [{**killed, "anonymous_bytes": 37 * GIB}]}
    else:
        del snapshot["processes"][0]

    assert "↑" not in text_of(draw(snapshot, 132, 43, growth={process["pid"]: grown}))


@pytest.mark.parametrize(
    ("fallen_bytes", "is_falling", "is_named"),
    [(0, False, True), (1 << 19, False, True), (1 << 20, False, False), (0, True, False)],
    ids=["grows", "a few pages less", "less since growth was read", "its readings fall"],
)
def test_process_that_returns_memory_is_not_named_as_growing(
    fallen_bytes: int, is_falling: bool, is_named: bool
) -> None:
    snapshot = sent(critical_gb10())
    process = snapshot["processes"][0]
    sizes = {"to_bytes": process["footprint_low_bytes"] + fallen_bytes, "falling": is_falling}
    grown = {**process, **sizes, "grown_bytes": 37 * GIB, "windows": {"60": 6 * GIB}}

    assert ("↑" in text_of(draw(snapshot, 132, 43, growth={process["pid"]: grown}))) == is_named


def test_events_are_newest_first_in_the_colour_of_their_level() -> None:
    snapshot = sent(critical_gb10())
    events = [
        Event(1, snapshot["unix"] - 10, "oom_kill", "OOM killer: killed train.py"),
        Event(2, snapshot["unix"] - 20, "level", "System RAM: high → critical (96.4% used)"),
        Event(3, snapshot["unix"] + 60, "level", "later than the moment that is shown"),
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
    past = past_snapshot(build_snapshot(latest), trends, unix + 5, 15.0)
    text = text_of(draw(past, 132, 24, State(paused_at=unix + 5), note=NO_PROCESSES))

    assert "40.0/119.7G" in text
    assert "CUDA Pool" in text
    assert "30.0G" in text
    assert "◆ MEDIUM" in text
    assert "paused" in text
    assert "can allocate —" in text
    assert "VLLM" not in text
    assert (
        past_snapshot(build_snapshot(latest), trends, unix + 60, 15.0).pools[0].used_bytes is Absent.NOT_AVAILABLE
    )


def test_past_has_the_processes_of_the_nearest_notable_tick() -> None:
    """With the time that they are of, and on the page of a process as well. No names stand in the bar."""
    latest = sent(critical_gb10())
    unix = latest["unix"] - 120
    process = {"pid": 51210, "name": "train.py", "user": "ada", "unit": "session-7.scope", "container": None}
    process |= {"rss_bytes": 40 * GIB, "footprint_bytes": 40 * GIB, "device_bytes": {}}
    ticks = [{"unix": unix + distance, "processes": [process]} for distance in (-400, 60, 200)]
    trends = {"pool.ram.used_bytes": Trend((unix,), (90.0 * GIB,))}
    tick = nearest_tick(ticks, unix)
    past = past_snapshot(build_snapshot(latest), trends, unix, 15.0, tick)
    frame = draw(past, 132, 24, State(paused_at=unix), note=note_of(tick))

    assert tick == ticks[1]
    assert nearest_tick(ticks[:1], unix) is None
    assert "the nearest in the history" in text_of(frame)
    assert re.search(r"51210 ada +train\.py +40\.0G", text_of(frame))
    assert not any("train.py" in plain(line) for line in frame.lines[:6])
    opened = text_of(draw(past, 132, 24, State(paused_at=unix, opened=51210), note=note_of(tick)))
    assert "footprint         40.0 GiB" in opened
    assert "swap                     —  not available" in opened
    assert "started       —" in opened


def test_received_snapshots_are_kept_whole() -> None:
    """They come back with their processes. Older figures come before them, and a repeated tick counts once."""
    first, kept = build_snapshot(sent(critical_gb10())), Recent()
    later = replace(first, unix=first.unix + 1, monotonic=first.unix + 1, processes=())
    for snapshot in (first, first, later):
        kept.add(snapshot)
    kept.prepend({"pool.ram.used_bytes": Trend((first.unix - 60, first.unix), (1.0, 2.0))})

    assert kept.snapshot_at(first.unix + 0.5) == first
    assert kept.snapshot_at(first.unix + 9) == later
    assert kept.snapshot_at(first.unix - 9) is None
    assert kept.oldest == first.unix - 60
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

    assert {"process", "bold"} <= styles
    assert "max " in text_of(frame)
    assert sum("│" in plain(line)[7:] for line in frame.lines) > 5


def test_without_a_daemon_pages_say_what_is_missing() -> None:
    snapshot = sent(critical_gb10())

    assert "needs a daemon" in text_of(draw(snapshot, state=State(page=3), has_history=False))
    assert "need a daemon" in text_of(draw(snapshot, state=State(page=4), has_history=False))


def test_parts_without_colours_differ_by_their_characters() -> None:
    view = View(Moment(critical_gb10()), State(), 100, 24, 0.0, has_colour=False)
    text = text_of(render(view))

    assert {"█", "▓", "▒", "░"} <= set(text)


@pytest.mark.parametrize("is_ascii", [False, True], ids=["Unicode", "ASCII"])
def test_quit_and_help_are_visible_at_every_size(is_ascii: bool) -> None:
    """Down to 40×10, on every page. Below that a sentence says the size and the key that quits."""
    snapshot = build_snapshot(sent(critical_gb10()))
    pid = snapshot.processes[0].pid
    states = [State(page=page) for page in (1, 2, 3, 4)]
    states += [State(opened=pid), State(paused_at=snapshot.unix), State(has_help=True)]
    for width, height in ((40, 10), (41, 11), (57, 12), (64, 24), (79, 24), (90, 20)):
        for state in states:
            view = View(Moment(snapshot), state, width, height, snapshot.unix, True, is_ascii)
            frame = render(view)
            assert " ".join(plain(frame.lines[-1]).split()).endswith("? help q quit")
            assert {"?", "q", "1", "4"} <= {one.key for one in frame.regions}
            assert max(map(line_cells, frame.lines)) <= width
            assert not is_ascii or all(plain(line).isascii() for line in frame.lines)
            if state.page == 3:
                assert re.match(
                    r" Last \S+ \S+   highest value( of each column; .* without data)? *$", plain(frame.lines[1])
                )
    for width, height in ((39, 10), (40, 9), (20, 5), (12, 2), (8, 1)):
        view = View(Moment(snapshot), State(), width, height, snapshot.unix, True, is_ascii)
        text = " ".join(plain(line) for line in render(view).lines)
        assert "q quits" in text
        assert width < 12 or "40" in text


def test_help_scrolls_where_it_does_not_fit() -> None:
    """Every key is found by scrolling, in the smallest terminal."""
    snapshot, seen, state = sent(critical_gb10()), "", State(has_help=True)
    for _ in range(60):
        frame = draw(snapshot, 40, 10, state)
        seen += text_of(frame)
        facts = Facts(0.0, 0.0, frame.rows, frame.total)
        assert press(state, "x", facts).has_help is False
        state = press(state, "down", facts)
        assert state.has_help
    assert state.help_offset == frame.total - frame.rows
    for words in ("Ctrl-Z", "reverse the order", "Shift-←", "q, Ctrl-C", "medium, high and critical"):
        assert words in " ".join(seen.split())
    tall = draw(snapshot, 100, 40, State(has_help=True))
    assert press(State(has_help=True), "down", Facts(0.0, 0.0, tall.rows, tall.total)).has_help is False
