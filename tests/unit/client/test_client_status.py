"""Test the layout of `memwatch status`, the columns of `watch`, `check`, and the tables of the reports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.cli.alerts import alert_lines, judge, perfdata
from memwatch.cli.holders import engine_lines, growth_lines, history_lines, owner_lines, process_lines, read_owners
from memwatch.cli.incidents import last_word_lines
from memwatch.cli.status import render_lines
from memwatch.cli.tables import clock, stamp, when
from memwatch.cli.terminal.style import Depth, line_cells, paint, plain
from memwatch.cli.watch import header_line, sample_line
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Process
from memwatch.core.owners import Owner
from memwatch.core.snapshot import Reason, Snapshot
from memwatch.core.snapshot_json import RECORDS, build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.answers import AlertRow, History, Series
from memwatch.reporting.history.last_run import Sample, UncleanShutdown
from memwatch.reporting.history.notable_ticks import build_tick
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.json import WIRE, read_last_words, snapshot_json
from memwatch_monitor.notify.channel import Sender
from memwatch_monitor.notify.status import ALERTS
from memwatch_monitor.render.owners_json import owners_json
from support.demo_frames import moments_of
from support.sample_mig import eight_by_seven
from support.sample_snapshots import (
    SAMPLES,
    calm_workstation,
    critical_gb10,
    discrete_gpu,
    mig_server,
    unknown_figures,
)

GIB = 1 << 30


def sent(snapshot: Snapshot) -> Any:
    return json.loads(to_bytes(snapshot_json(snapshot)))


def received(snapshot: Snapshot) -> Snapshot:
    return build_snapshot(sent(snapshot))


def text_of(snapshot: Snapshot, width: int = 100) -> str:
    return "\n".join(
        plain(line).rstrip() for line in render_lines(received(snapshot), 0.2, width, has_colour=False)
    )


@pytest.mark.parametrize(
    ("used", "limit", "figures"),
    [
        (Absent.NOT_PERMITTED, 16 * GIB, "— / 16.0 GiB"),
        (12 * GIB, 16 * GIB, "12.0 / 16.0 GiB"),
        (12 * GIB, 0, "12.0 GiB / 0 B"),
    ],
)
def test_limit_is_shown_whatever_is_known_of_its_use(used: int | Absent, limit: int, figures: str) -> None:
    snapshot = mig_server()
    shares = [
        replace(one, used_bytes=used, limit_bytes=limit) if one.id == "slice" else one for one in snapshot.shares
    ]
    text = text_of(replace(snapshot, shares=tuple(shares)))

    (line,) = (one for one in text.splitlines() if "└ ml.slice" in one)
    assert figures in line


@pytest.mark.parametrize("name", SAMPLES)
def test_status_begins_with_the_verdict_and_lists_all_pools_and_shares(name: str) -> None:
    snapshot = SAMPLES[name]()
    text = text_of(snapshot)
    worst = max(snapshot.pressure, key=lambda one: (one.level, one.ratio), default=None)

    if worst is not None:
        assert f" is {wording.level(worst.level.word)}" in text.splitlines()[0]
    for pool in snapshot.pools:
        assert any(
            line.startswith(pool.label) and wording.size(pool.size_bytes) in line for line in text.splitlines()
        )
    assert text.count("⊂") >= len(snapshot.shares)


@pytest.mark.parametrize(("width", "above"), [(80, True), (100, True), (160, False)])
def test_long_label_is_whole_beside_its_figures_or_above_them(width: int, above: bool) -> None:
    """That of a share too. The figures of all places stay in their columns."""
    long = "GPU 0 limit of /system.slice/inference-server.service"
    cards = discrete_gpu()
    first, *others = cards.pools[1:]
    limit = replace(mig_server().shares[0], id="limit", label=f"{long} ⊂", within="gpu1.vram", device="gpu1")
    named = replace(cards, pools=(cards.pools[0], replace(first, label=long), *others), shares=(limit,))
    lines = text_of(named, width).splitlines()

    (place,) = (number for number, line in enumerate(lines) if line.startswith(long) and " is " not in line)
    figures = lines[place + above]
    assert (lines[place] == long) is above
    assert wording.size(first.size_bytes) in figures
    assert any(line.strip().startswith(f"└ {long}") for line in lines)
    assert len({line.index("available") for line in lines if "  available " in line}) == 1


def test_levels_are_coloured_and_bars_have_one_width() -> None:
    lines = list(render_lines(received(discrete_gpu()), 0.2, 120, has_colour=True))
    bars = [line for line in lines if "available" in plain(line) and "/" in plain(line)]

    assert "\x1b[1;93m▲ GPU 0 VRAM is high" in paint(lines[0], Depth.BASIC)
    assert len({plain(line).index(" / ") for line in bars}) == 1
    assert max(map(line_cells, bars)) <= 120


def test_absent_values_are_dashes_with_their_reason() -> None:
    lost = replace(critical_gb10().devices[0], headroom_after_reclaim_bytes=Absent.STALE, state="stalled")

    assert "—" in text_of(unknown_figures())
    assert "None" not in text_of(unknown_figures())
    assert ", stalled): headroom — stale" in text_of(replace(critical_gb10(), devices=(lost,)))


def test_calm_machine_has_one_verdict_and_its_largest_processes() -> None:
    text = text_of(calm_workstation())

    assert text.startswith("● System RAM is OK: ")
    assert "(not counted as memory)" in text
    assert "PSI): tasks stalled on memory for 12.1% of the time (avg10)" in text_of(critical_gb10())
    assert "footprint" in text


def test_watch_has_one_figure_per_pool_and_the_level_last() -> None:
    """Titles stand above their figures. Shares of System RAM are marked as such."""
    snapshot = received(critical_gb10())
    head, line = plain(header_line(snapshot)), plain(sample_line(snapshot))

    assert head.split() == ["GiB", "used", "RAM", "⊂CUDA", "avail", "swap", "stall", "level"]
    assert line.split()[2:] == ["115.4", "96.4", "4.3", "14.0", "12.1%", "critical"]
    for title, figure in (("RAM", "115.4"), ("avail", "4.3"), ("stall", "12.1%")):
        assert head.index(title) + len(title) == line.index(f" {figure}") + 1 + len(figure)
    assert plain(header_line(received(discrete_gpu()))).count("GPU") == 2


@pytest.mark.parametrize(
    ("fail_on", "warn_on", "level", "code"),
    [
        ("critical", "high", "critical", 2),
        ("critical", "high", "high", 1),
        ("critical", "high", "medium", 0),
        ("critical", "high", "low", 0),
        ("high", "medium", "high", 2),
        ("high", "medium", "medium", 1),
        ("medium", "medium", "medium", 2),
    ],
)
def test_check_maps_levels_to_nagios_codes(fail_on: str, warn_on: str, level: str, code: int) -> None:
    snapshot = sent(critical_gb10())
    snapshot["pressure"][0]["level"] = level

    assert judge(build_snapshot(snapshot), 0.2, fail_on, warn_on, ())[0] == code


def test_check_is_unknown_without_trustworthy_data() -> None:
    """Stale or missing data and an unknown target are never OK."""
    snapshot = received(critical_gb10())

    assert judge(snapshot, 60.0, "critical", "high", ()) == (
        3,
        "stale data, from 1 min ago: memwatchd is not sampling",
    )
    assert judge(replace(snapshot, pressure=()), 0.2, "critical", "high", ()) == (3, "no memory data")
    assert judge(snapshot, 0.2, "critical", "high", ("gpu9",))[1].startswith("no level for gpu9; targets are ram")


def test_check_names_the_worst_targets_with_performance_data() -> None:
    snapshot = sent(mig_server())
    code, text = judge(build_snapshot(snapshot), 0.2, "critical", "high", ())

    assert (code, text.startswith("GPU 0 · MIG 2 is critical")) == (2, True)
    snapshot["pressure"][0]["thresholds"] = {"medium": 0.5, "high": 0.7, "critical": 0.925}
    snapshot["pressure"][1]["thresholds"] = None
    figures = perfdata(build_snapshot(snapshot), (), "critical", "high")
    for one, limits in zip(snapshot["pressure"], ("70;92.5", ";", "80;95"), strict=False):
        assert f"'{one['target']}'={one['ratio'] * 100:.1f}%;{limits};0;100" in figures
        assert (
            f"'{one['target']}_level'={('low', 'medium', 'high', 'critical').index(one['level'])};1;2;0;3"
            in figures
        )


def test_owners_are_a_table_with_short_names() -> None:
    name = "docker-" + "9b1d5e2c70aa43f6" * 4 + ".scope"
    owner = {
        "name": name,
        "processes": 8,
        "footprint_bytes": None,
        "footprint_low_bytes": 8 * GIB,
        "rss_bytes": GIB,
        "device_bytes": {"gpu7.mig2": GIB, "gpu0": GIB, "gpu1": 0},
    }
    ranged = {**owner, "footprint_high_bytes": 9 * GIB, "device_bytes": {"gpu0.gtt": GIB}}
    pools = [{"id": "gpu0", "label": "VRAM 0"}]
    few = {**owner, "name": "a.service", "device_bytes": {f"gpu{number}": GIB for number in range(8)}}
    shares = [{"id": "gpu0.gtt", "relation": "GTT ⊂ System RAM"}]
    owners = [owner, ranged, few]
    found = {"by": "unit", "owners": owners, "pools": pools, "shares": shares, "note": "Some are hidden."}
    text = "\n".join(owner_lines(found, 20))

    assert "docker-9b1d5e2c70aa.scope" in text
    assert "≥ 8.0 GiB" in text
    assert "GPU 7 · MIG 2 1.0 GiB, VRAM 0 1.0 GiB" in text
    assert "8.0 – 9.0 GiB" in text
    assert "GTT 1.0 GiB" in text
    assert "8.0 GiB in 8 places" in text
    assert text.endswith("Some are hidden.")
    assert list(owner_lines(found, 1))[-2] == "2 more; --limit shows them."


def test_owners_of_an_early_daemon_are_listed() -> None:
    """Without bounds of the footprint, and without pools, memory of devices and the state of the list."""
    owner = {"name": "a.service", "processes": 2, "footprint_bytes": GIB, "rss_bytes": GIB, "device_bytes": None}
    lines = list(owner_lines({"by": "unit", "owners": [owner]}, 20))

    assert lines[1].split() == ["a.service", "2", "1.0", "GiB", "1.0", "GiB", "—"]
    assert list(owner_lines({"by": "unit", "owners": []}, 20)) == ["The list of processes is not known."]


def test_owners_are_read_as_the_api_writes_them() -> None:
    name = "9b1d5e2c70aa"
    owners = (Owner("container", name, 1, GIB), Owner("user", "ada", 1, GIB))
    snapshot = replace(critical_gb10(), owners=owners, container_names={name: "vllm-1", "ada": "vllm-1"})
    sent = json.loads(to_bytes(owners_json(snapshot, "container")))

    assert [one.container_name for one in read_owners(sent) if one.name == name] == ["vllm-1"]
    assert [one["container_name"] for one in sent["owners"] if one["name"] == name] == ["vllm-1"]
    assert any(line.startswith("vllm-1") for line in owner_lines(sent, 20))
    assert not any(one["container_name"] for one in owners_json(snapshot, "user")["owners"])


def test_processes_by_footprint_are_listed_largest_first() -> None:
    """GPU memory counts, a lower bound as well, and shares have their labels."""
    snapshot, unknown = critical_gb10(), Absent.NOT_AVAILABLE
    resident = Process(1, 0.0, "train.py", 2 * GIB, 2 * GIB, "rss")
    on_gpu = replace(resident, pid=2, rss_bytes=0, footprint_bytes=5 * GIB, device_bytes={"cuda0": 5 * GIB})
    bound = replace(resident, pid=3, footprint_bytes=unknown, footprint_range=(3 * GIB, unknown))
    lines = list(process_lines(replace(snapshot, processes=(resident, on_gpu, bound)), 2))

    assert [line.split()[0] for line in lines] == ["pid", "2", "3", "1"]
    assert lines[1].endswith("CUDA Pool 5.0 GiB")
    assert lines[3] == "1 more; --limit shows them."


def test_columns_of_device_memory_name_the_kinds_of_devices() -> None:
    """NPU buffers of flm stood in a column "GPU memory"."""
    now = moments_of("strix-halo").fullest
    flm = {"name": "a.service", "processes": 1, "footprint_bytes": GIB, "rss_bytes": GIB}
    flm["device_bytes"] = {"npu0.buffers": GIB}

    assert "GPU/NPU memory" in next(process_lines(now, 9))
    assert "NPU memory" in next(owner_lines({"by": "unit", "owners": [flm]}, 9))
    assert "GPU memory" in next(process_lines(critical_gb10(), 9))


def test_growth_shows_rates_and_suspected_leaks() -> None:
    process = {
        "pid": 51210,
        "name": "train.py",
        "user": "ada",
        "from_unix": 400.0,
        "grown_bytes": 37 * GIB,
        "to_bytes": 39 * GIB,
        "windows": {"60": None},
    }
    suspect = {"pid": 7, "name": None, "grown_bytes": GIB, "evidence": "grew in each sixth of an hour"}
    shrunk = {**process, "pid": 51211, "grown_bytes": -GIB}
    found = {"from": 400.0, "to": 1000.0, "processes": [process, shrunk], "suspects": [suspect]}
    text = "\n".join(growth_lines(found))

    assert "51210  train.py  ada   +37.0 GiB  10 min            —  39.0 GiB" in text
    assert "51211" not in text
    assert "(PID 7) +1.0 GiB: grew in each sixth of an hour" in text
    assert list(growth_lines({**found, "processes": []})) == ["No process grew."]


def test_history_shows_figures_in_the_unit_of_their_series() -> None:
    """A gap has a dash, and a series without any figure a sentence."""
    used = Series("pool.ram.used_bytes", "bytes", (0.0, 1.0), (GIB, None), (2 * GIB, None), (3 * GIB, None))
    ratio = Series("psi.some_10s", "ratio", (0.0,), (0.1,), (0.25,), (0.5,))
    none = Series("gpu0.used_bytes", "bytes", (0.0,), (None,), (None,), (None,))
    found = History(0.0, 2.0, 2, (used, ratio, none))
    read: History = RECORDS.decode(History, json.loads(to_bytes(WIRE.encode(found))))
    lines = list(history_lines(read))

    assert read == found
    assert lines[0] == "pool.ram.used_bytes  █ "
    assert lines[2].endswith("1.0 GiB  2.0 GiB  3.0 GiB")
    assert lines[3].split()[-3:] == ["—", "—", "—"]
    assert lines[6].endswith("10.0%  25.0%  50.0%")
    assert lines[-1] == "gpu0.used_bytes: no data in this time range"


def test_alerts_have_severity_state_and_reason() -> None:
    row = AlertRow("ram", "pressure.critical", "critical", "firing", 900.0, True, (Reason("util", "96.4% used"),))
    (read,) = RECORDS.decode(tuple[AlertRow, ...], [ALERTS.encode(row, Sender())])
    text = "\n".join(alert_lines([read], 1000.0))

    assert read == row
    assert "firing, silenced" in text
    assert f"{clock(900.0)}  ram" in text
    assert "96.4% used" in text
    assert list(alert_lines([], None)) == ["No alerts."]


def test_alert_whose_condition_has_ended_says_since_and_until_when() -> None:
    reason = Reason("kernel", "OOM killer: killed a process")
    fired = AlertRow("ram", "pressure.critical", "critical", "firing", 900.0, False, (reason,))
    alert = replace(fired, clear_since_unix=960.0)
    before = "; before: OOM killer: killed a process"

    assert list(alert_lines([alert], 1000.0))[-1].endswith(f"  clear since {clock(960.0)}{before}")
    text = list(alert_lines([replace(alert, resolves_unix=1020.0)], 1000.0))[-1]
    assert text.endswith(f"{clock(960.0)}, resolves at {clock(1020.0)} unless it returns{before}")


def test_pending_alert_of_an_early_daemon_has_no_time() -> None:
    sent = {"target": "ram", "rule": "pressure.high", "severity": "warning", "state": "pending", "silenced": False}
    (row,) = RECORDS.decode(tuple[AlertRow, ...], [{**sent, "reasons": []}])

    assert list(alert_lines([row], 1000.0))[1].split() == ["warning", "pending", "—", "ram", "pressure.high"]


def test_last_words_show_the_last_samples_and_processes() -> None:
    """As the API writes them, without times since boot. A reason that repeats the use is shown once."""
    samples = tuple(Sample(at, 1000.0 + at, {"pool.ram.used_bytes": at * GIB}) for at in range(40))
    ended = UncleanShutdown(1039.0, False, samples, build_tick(critical_gb10(), 39.0, {}))
    sent = json.loads(to_bytes(WIRE.encode(ended)))
    lines = list(last_word_lines(read_last_words(sent)))

    assert lines[0] == f"{sent['text']}  ({stamp(1039.0)})"
    assert lines[0].startswith("unclean shutdown: memwatchd crashed or was killed")
    assert any(line.startswith("System RAM: critical, 96.4% used; full in 40 s") for line in lines)
    assert any("vllm" in line for line in lines)
    assert lines[-1].split()[-2:] == ["39.0", "GiB"]
    assert len(list(last_word_lines(read_last_words({**sent, "last": None, "samples": []})))) == 1


def test_times_are_local_with_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    try:
        assert (clock(0.0), stamp(0.0)) == ("01:00:00 CET", "1970-01-01 01:00:00 CET")
        assert when(0.0, 3600.0) == "01:00:00 CET"
        assert when(0.0, 86_400.0) == "1970-01-01 01:00:00 CET"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_samples_of_many_gpus_fit_a_narrow_terminal() -> None:
    """Without room the GPUs are one sum, beside the fullest of them. In a pipe each has its column."""
    snapshot = received(eight_by_seven())
    header, line = (plain(one(snapshot, 80)) for one in (header_line, sample_line))

    assert max(len(header), len(line)) <= 80
    assert header.split()[2:] == ["RAM", "avail", "8", "GPUs", "fullest", "swap", "stall", "level"]
    assert re.search(r" 316\.5 +GPU\d +67\.4% ", line)
    assert "GPU7" in plain(header_line(snapshot))
    assert "GPU7" in plain(header_line(snapshot, 200))
    unknown = replace(snapshot.pools[2], used_bytes=Absent.STALE, available_bytes=Absent.STALE)
    snapshot = replace(snapshot, pools=(*snapshot.pools[:2], unknown, *snapshot.pools[3:]))
    assert " — " in plain(sample_line(snapshot, 80))


def test_draft_model_of_a_server_is_listed_beside_its_rest() -> None:
    server = Engine(
        "llama.cpp-8080", "llama.cpp", "llama.cpp", "http://127.0.0.1:8080", draft_weights_bytes=2 * GIB
    )
    unknown = replace(server, draft_weights_bytes=Absent.NOT_AVAILABLE)
    without = replace(server, draft_weights_bytes=Absent.NOT_SUPPORTED)
    engines = [received(replace(calm_workstation(), engines=(one,))) for one in (server, unknown, without)]

    shown = [[line.strip() for line in engine_lines(one) if "draft" in line] for one in engines]
    assert shown == [["draft model 2.0 GiB"], [f"draft model {wording.DASH}"], []]
