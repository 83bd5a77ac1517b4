"""Compare our daemon with its peers: all idle without clients, then in turns under full load."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bars_plot import bars
from msgspec import Struct
from peers import subjects
from sheet import Column, Sheet
from subjects import Idle, Load, Subject, idle, load, pss_mib, rss_mib, running

CLIENTS = (1, 16, 128)
ROUNDS = 5
SETTLE_SECONDS = 15.0
ROUND_SECONDS = 2
COLUMNS = (
    Column("RSS MiB"),
    Column("PSS MiB", is_exact=False),
    Column("RSS after load"),
    Column("idle CPU %", ".3f"),
    Column("wake-ups/s"),
    Column("first answer ms", ".0f", is_exact=False),
    *(
        column
        for clients in CLIENTS
        for column in (
            Column(f"scrapes/s, {clients} at once", ",.0f", is_exact=False),
            Column(f"p99 ms, {clients} at once", ".2f", is_exact=False),
        )
    ),
    Column("refused of 128", ".0%", is_exact=False),
)


class Quiet(Struct, frozen=True):
    """One program without clients."""

    rss_mib: float
    pss_mib: float
    idle: Idle
    first_ms: float


class Busy(Struct, frozen=True):
    """The same program with each number of clients, and its memory afterwards."""

    rss_mib: float
    loads: Mapping[int, Load]


def bench_peers(sheet: Sheet, seconds: float, plot: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        programs = list(subjects(Path(folder)))
        quiet = quiet_ones(programs, seconds)
        busy = in_turns(programs)
    sheet.head("peers", "idle, then wrk", *COLUMNS)
    for subject, idle_one, loaded in zip(programs, quiet, busy, strict=True):
        sheet.row(subject.name, *cells(idle_one, loaded), is_ours=subject is programs[0])
    print("\nAs ratios, memwatchd being 1: scrapes a second with 16 clients, memory, idle processor time.\n")
    for subject, idle_one, loaded in list(zip(programs, quiet, busy, strict=True))[1:]:
        if not subject.is_baseline:
            rate = loaded.loads[16].per_second / busy[0].loads[16].per_second
            memory = idle_one.rss_mib / quiet[0].rss_mib
            print(
                f"- {subject.name}: {rate:.3f}, {memory:.2f}, {idle_one.idle.percent / quiet[0].idle.percent:.2f}"
            )
    print()
    if plot is not None:
        shown = [number for number, subject in enumerate(programs) if not subject.is_baseline]
        panels = (
            ("scrapes a second, 16 clients", [busy[number].loads[16].per_second for number in shown]),
            ("resident memory, MiB", [quiet[number].rss_mib for number in shown]),
            ("idle processor, % of a core", [quiet[number].idle.percent for number in shown]),
        )
        plot.write_text(bars([programs[number].name for number in shown], panels))


def quiet_ones(programs: Sequence[Subject], seconds: float) -> list[Quiet]:
    """Measure all at the same time."""
    with ExitStack() as stack:
        started = [stack.enter_context(running(subject)) for subject in programs]
        time.sleep(SETTLE_SECONDS)
        found = idle([[pid] for pid, _ in started], seconds)
        return [
            Quiet(rss_mib(pid), pss_mib(pid), one, took * 1000)
            for (pid, took), one in zip(started, found, strict=True)
        ]


def in_turns(programs: Sequence[Subject]) -> list[Busy]:
    """Run all programs and load one at a time, round after round, so that interference affects all alike.

    The best of each value counts, as interference only makes a round worse.
    """
    found: dict[tuple[str, int], list[Load]] = {}
    with ExitStack() as stack:
        pids = [stack.enter_context(running(subject))[0] for subject in programs]
        for _ in range(ROUNDS):
            for clients in CLIENTS:
                for subject in programs:
                    seen = load(subject.port, clients, ROUND_SECONDS, subject.path)
                    found.setdefault((subject.name, clients), []).append(seen)
        return [
            Busy(rss_mib(pid), {clients: best_of(found[subject.name, clients]) for clients in CLIENTS})
            for subject, pid in zip(programs, pids, strict=True)
        ]


def best_of(loads: Sequence[Load]) -> Load:
    most = max(loads, key=lambda one: one.per_second)
    return Load(most.per_second, min(one.p99_ms for one in loads), most.refused)


def cells(idle_one: Quiet, loaded: Busy) -> list[float]:
    rest = idle_one.idle
    rates = [figure for one in loaded.loads.values() for figure in (one.per_second, one.p99_ms)]
    first = [idle_one.rss_mib, idle_one.pss_mib, loaded.rss_mib, rest.percent, rest.wakeups, idle_one.first_ms]
    return [*first, *rates, loaded.loads[CLIENTS[-1]].refused]
