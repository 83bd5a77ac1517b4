"""Measure alert latency from tick to receiver, also without free memory, and the effect of a hundred kills."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from memory_limit import LimitedGroup, NoMemoryGroupError, filled, limited_group

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
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
    options = parser.parse_args()
    bench_latency(options.messages)
    bench_kills(options.kills)


if __name__ == "__main__":
    main()
