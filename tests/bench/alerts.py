"""Measure alert latency from a collapse or a tick to the receiver, and the effect of a hundred kills."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from memory_limit import LimitedGroup, NoMemoryGroupError, filled, limited_group

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.collapse import RESTING_GIB, Collapse, CollapsingMachine
from support.daemon_process import WITHOUT_COVERAGE, running_daemon
from support.outbox_kill_loop import kill_at_random, tally
from support.webhook_receiver import Site, raw_receiver, receiving, silent

LIMIT_BYTES = 160 << 20
INTERVAL_SECONDS = 0.1


def latencies(site: Site, machine: AlertMachine, times: int) -> list[float]:
    """Return seconds from tick to receiver, for this many messages, half of them resolves."""
    for number in range(times):
        (machine.empty if number % 2 else machine.fill)()
        wait_for_deliveries(site, number + 1)
    to_wall = time.time() - time.monotonic()
    return [delivery.at + to_wall - json.loads(delivery.body)["unix"] for delivery in site.deliveries]


def measure(times: int, group: LimitedGroup | None = None) -> list[float]:
    """Measure a daemon with its outbox on disk and two receivers, one of them silent; in a group if given."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = AlertMachine.of(scratch)
        site, dead = stack.enter_context(receiving(200)), stack.enter_context(raw_receiver(silent))
        config = quick_config(site, Site([], url="DEAD"), pending="0s").replace("DEAD", dead)
        arguments = [*machine.arguments, f"--state-dir={scratch / 'state'}"]
        with group.entered() if group else ExitStack():
            stack.enter_context(running_daemon(scratch, *arguments, config=config, environ=WITHOUT_COVERAGE))
        if group:
            stack.enter_context(filled(group))
        return latencies(site, machine, times)


def row(name: str, found: list[float]) -> str:
    """Format a row of the table of latencies, in milliseconds."""
    ordered = sorted(1000 * one for one in found)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
    return f"| {name} | {len(ordered)} | {p50:.1f} | {p99:.1f} | {ordered[-1]:.1f} |"


def without_memory(times: int) -> str:
    """Measure the same in a control group at 99 % of its limit."""
    try:
        with limited_group(LIMIT_BYTES) as group:
            found = measure(times, group)
    except NoMemoryGroupError as error:
        return f"| at 99 % of a memory limit: not measured, {error} | | | | |"
    return row(f"the same at 99 % of a memory limit of {LIMIT_BYTES >> 20} MiB", found)


def bench_latency(times: int) -> None:
    print("| tick → receiver on loopback | messages | p50 ms | p99 ms | longest ms |\n|---|---:|---:|---:|---:|")
    print(row("outbox on disk, another receiver hangs", measure(times)), flush=True)
    print(without_memory(times), "\n", flush=True)


def collapses_of(machine: CollapsingMachine) -> dict[str, Collapse]:
    """Return the collapses by name. The first three are too short for a forecast."""
    line = machine.critical_gib
    falls = {
        f"{slope} GiB/s": Collapse(line + 1.1 * slope, slope, line - 0.25 * slope, hold_seconds=2.5)
        for slope in (1.0, 4.0, 14.0)
    }
    return falls | {
        "14 GiB/s from 60 GiB available": Collapse(RESTING_GIB, 14.0),
        "one step from 65 to 97 % used": Collapse(0.35 * machine.size_gib, 0.0, 0.03 * machine.size_gib, 2.5),
    }


def collapse_times(name: str, times: int) -> list[float]:
    """Return seconds from the threshold to the receiver, in a daemon with its outbox on disk."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = CollapsingMachine.of(scratch)
        site, collapse, found = stack.enter_context(receiving(200)), collapses_of(machine)[name], []
        arguments = [*machine.arguments, f"--state-dir={scratch / 'state'}"]
        config = quick_config(site, pending="0s")
        stack.enter_context(running_daemon(scratch, *arguments, config=config, environ=WITHOUT_COVERAGE))
        for _ in range(times):
            found.append(machine.seconds_to_receiver(site, collapse))
            machine.recover(site, random.uniform(1.3, 2.3))
    return found


def bench_collapses(times: int) -> None:
    print("| 95 % used → receiver on loopback | collapses | p50 ms | p99 ms | longest ms | earlier, by forecast |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        names = list(collapses_of(CollapsingMachine.of(Path(folder))))
    for name in names:
        found = collapse_times(name, times)
        late = [one for one in found if one >= 0]
        print(f"{row(name, late) if late else f'| {name} | 0 | | | |'} {times - len(late)} |", flush=True)
    print()


def bench_kills(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder, receiving(*[200, 200, 500] * 1000, 200) as site:
        killed = kill_at_random(Path(folder), site.url, rounds)
        found = tally(killed, site)
    print("| kill -9 at random | acknowledged | lost | arrived twice | ids with two bodies |")
    print("|---:|---:|---:|---:|---:|")
    print(f"| {killed.rounds} | {found.kept} | {found.lost} | {found.duplicates} | {found.two_bodies} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100, help="messages for each measurement")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--collapses", type=int, default=20, help="collapses of each kind")
    options = parser.parse_args()
    if options.collapses:
        bench_collapses(options.collapses)
    if options.messages:
        bench_latency(options.messages)
    if options.kills:
        bench_kills(options.kills)


if __name__ == "__main__":
    main()
