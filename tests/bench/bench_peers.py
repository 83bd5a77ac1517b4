"""Compare our daemon with its peers: each idle_one without clients, then all, in turns, under full load."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bars_plot import bars
from msgspec import Struct
from peers import subjects
from subjects import Idle, Load, Subject, idle, load, pss_mib, rss_mib, running

CLIENTS = (1, 16, 128)
ROUNDS = 5
ROUND_SECONDS = 2
COLUMNS = (
    "idle, then wrk",
    "RSS MiB",
    "PSS MiB",
    "RSS after load",
    "idle CPU % of a core",
    "wake-ups/s",
    "first answer ms",
    *(column for clients in CLIENTS for column in (f"scrapes/s, {clients} at once", "p99 ms")),
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


def bench_peers(seconds: float, plot: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        programs = list(subjects(Path(folder)))
        quiet = [quiet_of(subject, seconds) for subject in programs]
        busy = in_turns(programs)
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for subject, idle_one, loaded in zip(programs, quiet, busy, strict=True):
        print(row(subject, idle_one, loaded))
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


def quiet_of(subject: Subject, seconds: float) -> Quiet:
    with running(subject) as (pid, start_seconds):
        time.sleep(3)
        (found,) = idle([[pid]], seconds)
        return Quiet(rss_mib(pid), pss_mib(pid), found, start_seconds * 1000)


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


def row(subject: Subject, idle_one: Quiet, loaded: Busy) -> str:
    aggregates = [
        subject.name,
        f"{idle_one.rss_mib:.1f}",
        f"{idle_one.pss_mib:.1f}",
        f"{loaded.rss_mib:.1f}",
        f"{idle_one.idle.percent:.3f}",
        f"{idle_one.idle.wakeups:.1f}",
        f"{idle_one.first_ms:.0f}",
    ]
    for one in loaded.loads.values():
        rejected = f" ({one.refused:.0%} refused)" if one.refused else ""
        aggregates += [f"{one.per_second:,.0f}{rejected}", f"{one.p99_ms:.2f}"]
    return f"| {' | '.join(aggregates)} |"
