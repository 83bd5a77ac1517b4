"""Our daemon beside its peers: each alone while nobody asks it, then all, in turns, asked as fast as they can."""

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
    """One program that nobody asks anything."""

    rss_mib: float
    pss_mib: float
    idle: Idle
    first_ms: float


class Busy(Struct, frozen=True):
    """The same with each number of clients, and its memory afterwards."""

    rss_mib: float
    loads: Mapping[int, Load]


def bench_peers(seconds: float, plot: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        everybody = list(subjects(Path(folder)))
        quiet = [quiet_of(subject, seconds) for subject in everybody]
        busy = in_turns(everybody)
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for subject, alone, loaded in zip(everybody, quiet, busy, strict=True):
        print(row(subject, alone, loaded))
    print("\nAs ratios, memwatchd being 1: scrapes a second with 16 clients, memory, idle processor time.\n")
    for subject, alone, loaded in list(zip(everybody, quiet, busy, strict=True))[1:]:
        if not subject.is_yardstick:
            rate = loaded.loads[16].per_second / busy[0].loads[16].per_second
            memory = alone.rss_mib / quiet[0].rss_mib
            print(f"- {subject.name}: {rate:.3f}, {memory:.2f}, {alone.idle.percent / quiet[0].idle.percent:.2f}")
    print()
    if plot is not None:
        shown = [number for number, subject in enumerate(everybody) if not subject.is_yardstick]
        panels = (
            ("scrapes a second, 16 clients", [busy[number].loads[16].per_second for number in shown]),
            ("resident memory, MiB", [quiet[number].rss_mib for number in shown]),
            ("idle processor, % of a core", [quiet[number].idle.percent for number in shown]),
        )
        plot.write_text(bars([everybody[number].name for number in shown], panels))


def quiet_of(subject: Subject, seconds: float) -> Quiet:
    with running(subject) as (pid, start_seconds):
        time.sleep(3)
        (found,) = idle([[pid]], seconds)
        return Quiet(rss_mib(pid), pss_mib(pid), found, start_seconds * 1000)


def in_turns(everybody: Sequence[Subject]) -> list[Busy]:
    """All of them run, one at a time is asked, round after round: what the host takes from this machine for a while
    it takes from each of them. Of each figure the best, as what disturbs a round only makes it worse."""
    found: dict[tuple[str, int], list[Load]] = {}
    with ExitStack() as stack:
        pids = [stack.enter_context(running(subject))[0] for subject in everybody]
        for _ in range(ROUNDS):
            for clients in CLIENTS:
                for subject in everybody:
                    seen = load(subject.port, clients, ROUND_SECONDS, subject.path)
                    found.setdefault((subject.name, clients), []).append(seen)
        return [
            Busy(rss_mib(pid), {clients: best_of(found[subject.name, clients]) for clients in CLIENTS})
            for subject, pid in zip(everybody, pids, strict=True)
        ]


def best_of(loads: Sequence[Load]) -> Load:
    most = max(loads, key=lambda one: one.per_second)
    return Load(most.per_second, min(one.p99_ms for one in loads), most.refused)


def row(subject: Subject, alone: Quiet, loaded: Busy) -> str:
    cells = [
        subject.name,
        f"{alone.rss_mib:.1f}",
        f"{alone.pss_mib:.1f}",
        f"{loaded.rss_mib:.1f}",
        f"{alone.idle.percent:.3f}",
        f"{alone.idle.wakeups:.1f}",
        f"{alone.first_ms:.0f}",
    ]
    for one in loaded.loads.values():
        refused = f" ({one.refused:.0%} refused)" if one.refused else ""
        cells += [f"{one.per_second:,.0f}{refused}", f"{one.p99_ms:.2f}"]
    return f"| {' | '.join(cells)} |"
