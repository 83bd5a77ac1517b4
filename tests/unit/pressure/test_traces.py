"""Test that traces are read exactly, and that contradictions are refused with their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memwatch.core.collectors.meminfo import Collector as Meminfo
from memwatch.core.collectors.psi import Collector as Psi
from memwatch.core.collectors.vmstat import Collector as Vmstat
from memwatch.core.linux.files import Roots
from memwatch.core.model import find_system_ram
from memwatch.core.snapshot import Swap
from support.trace_file import TraceError, load_trace, parse_trace
from support.trace_replay import Machine
from support.trace_score import FOLDER

HEADER = {
    "trace": 1,
    "name": "t",
    "half": "healthy",
    "source": "s",
    "given": "g",
    "assumed": "a",
    "size_bytes": 1000,
    "seconds": 10,
}


def text_of(*lines: object, **more: object) -> str:
    return "\n".join(json.dumps(line) for line in ({**HEADER, **more}, *lines))


def test_columns_are_linear_between_their_own_readings() -> None:
    found = parse_trace(
        text_of(
            {"at": 0, "available_bytes": 1000},
            {"at": 5, "psi_some_seconds": 1},
            {"at": 10, "available_bytes": "0GiB", "psi_some_seconds": 3},
        ),
        "t",
    )

    assert [found.value("available_bytes", at) for at in (0, 2.5, 10, 99)] == [1000, 750, 0, 0]
    assert [found.value("psi_some_seconds", at) for at in (0, 5, 7.5)] == [1, 1, 2]
    assert found.value("free_bytes", 5) == 0
    assert not found.has("free_bytes")


def test_two_readings_at_one_time_are_a_step() -> None:
    lines = [{"at": at, "available_bytes": size} for at, size in ((0, 900), (5, 900), (5, 100), (10, 100))]
    found = parse_trace(text_of(*lines), "t")

    assert [found.value("available_bytes", at) for at in (4.9, 5, 5.1)] == [900, 100, 100]


def test_repeated_part_goes_on_with_counters_and_log_lines() -> None:
    found = parse_trace(
        text_of(
            {"at": 0, "available_bytes": 100, "allocstall_total": 0},
            {"at": 1, "log": "x"},
            {"at": 2, "available_bytes": 200, "allocstall_total": 6},
            repeat={"begin": 0, "seconds": 2},
        ),
        "t",
    )

    assert [found.value("available_bytes", at) for at in (1, 3, 5)] == [150, 150, 150]
    assert [found.value("allocstall_total", at) for at in (1, 3, 5)] == [3, 9, 15]
    assert [line.at for line in found.log_between(0.5, 5.5)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ['{"at": 0, "available_bytes": 900, "used_bytes": 99}'],
            "line 2: used 99 + available 900 is not size 1000",
        ),
        (['{"at": 5, "available_bytes": 9}', '{"at": 4}'], "line 3: time goes back from 5 to 4 s"),
        (['{"at": 0, "available_bytes": 1001}'], "line 2: available_bytes is 1001, more than size 1000"),
        (['{"at": 0, "available_bytes": -1}'], "line 2: available_bytes is -1, below 0"),
        (
            ['{"at": 0, "pswpin_total": 5}', '{"at": 1, "pswpin_total": 4}'],
            "line 3: pswpin_total falls from 5",
        ),
        (['{"at": 0, "memfree": 5}'], 'line 2: "memfree" is no column; these are: allocstall_total'),
        (['{"at": 0, "free_bytes": "5 GB"}'], 'line 2: free_bytes: "5 GB" is no size'),
        (['{"available_bytes": 5}'], 'line 2: "at" must be seconds from the start, not null'),
        (["[]"], "line 2: not an object"),
        (["{"], "line 2: not JSON"),
        (['{"at": 0}'], "t: no line has available_bytes"),
    ],
)
def test_contradiction_is_refused_with_its_line(lines: list[str], words: str) -> None:
    with pytest.raises(TraceError) as refusal:
        parse_trace("\n".join([json.dumps(HEADER), *lines]), "t")

    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({**HEADER, "trace": 2}, "format 2 is unknown; this version reads 1"),
        ({**HEADER, "half": "wedge"}, "a wedge needs the time at which it ends"),
        ({**HEADER, "heigth": 1}, "unknown field `heigth`"),
        ({"trace": 1}, "missing required field `name`"),
    ],
)
def test_invalid_header_is_refused(header: object, words: str) -> None:
    with pytest.raises(TraceError) as refusal:
        parse_trace(json.dumps(header), "t")

    assert "t, line 1: " in str(refusal.value)
    assert words in str(refusal.value)


def test_replayed_readings_are_what_collectors_read_from_proc(tmp_path: Path) -> None:
    """The same second of a trace, as findings of the replay and as files of a /proc that collectors parse."""
    trace = load_trace(FOLDER / "wedge-earlyoom-320.jsonl")
    at = 75.0
    write_proc(tmp_path / "proc", {name: int(trace.value(name, at)) for name in COLUMNS}, trace.size)
    machine = Machine(trace)
    roots = Roots(procfs=tmp_path / "proc", sysfs=tmp_path / "sys", rootfs=tmp_path)

    replayed = machine.findings(at)
    read = [one.collect() for one in (Meminfo(roots, 4096), Psi(roots), Vmstat(roots, 4096))]

    ours, theirs = find_system_ram(replayed.pools), find_system_ram(read[0].pools)
    assert ours is not None
    assert theirs is not None
    for name in ("size_bytes", "available_bytes", "free_bytes"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1024)
    assert isinstance(replayed.swap, Swap)
    assert isinstance(read[0].swap, Swap)
    assert replayed.swap.used_bytes == pytest.approx(read[0].swap.used_bytes, abs=2048)
    assert replayed.psi is not None
    assert read[1].psi is not None
    assert replayed.psi.some.total_seconds == pytest.approx(read[1].psi.some.total_seconds, abs=1e-3)
    assert replayed.kernel is not None
    assert read[2].kernel is not None
    for name in ("allocstall_total", "pgscan_direct_total", "workingset_refault_file_total", "pswpin_total"):
        assert getattr(replayed.kernel, name) == getattr(read[2].kernel, name)


COLUMNS = (
    "available_bytes",
    "free_bytes",
    "swap_used_bytes",
    "allocstall_total",
    "pgscan_direct_total",
    "workingset_refault_file_total",
    "pswpin_total",
    "pswpout_total",
)


def write_proc(proc: Path, values: dict[str, int], size: int) -> None:
    trace = load_trace(FOLDER / "wedge-earlyoom-320.jsonl")
    (proc / "pressure").mkdir(parents=True)
    swap = 8191 << 20
    (proc / "meminfo").write_text(
        f"MemTotal: {size >> 10} kB\nMemFree: {values['free_bytes'] >> 10} kB\n"
        f"MemAvailable: {values['available_bytes'] >> 10} kB\nBuffers: 0 kB\nCached: 0 kB\nSwapCached: 0 kB\n"
        f"SwapTotal: {swap >> 10} kB\nSwapFree: {(swap - values['swap_used_bytes']) >> 10} kB\n"
    )
    totals = [int(trace.value(f"psi_{line}_seconds", 75.0) * 1e6) for line in ("some", "full")]
    lines = zip(("some", "full"), totals, strict=True)
    (proc / "pressure/memory").write_text(
        "".join(f"{line} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for line, total in lines)
    )
    normal = values["allocstall_total"] // 3
    (proc / "vmstat").write_text(
        f"nr_free_pages 9\npswpin {values['pswpin_total']}\npswpout {values['pswpout_total']}\n"
        f"allocstall_dma 0\nallocstall_normal {normal}\nallocstall_movable {values['allocstall_total'] - normal}\n"
        f"pgscan_direct {values['pgscan_direct_total']}\n"
        f"workingset_refault_file {values['workingset_refault_file_total']}\n"
    )
