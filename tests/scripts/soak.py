"""Soak test: run the daemon at ten ticks a second under load, and fit a line through its second half.

Ticks are accelerated: growth is measured per tick and given per day at one tick a second, the daemon's default.
Requests, processes and eight simulated GPUs come and go far more often than in reality and count as if they came at
the rate of ticks. `make soak` uses a separate PID namespace where permitted, so that its daemon does not watch
other processes of this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from scripts.soak_churn import CALM, Churn
from scripts.soak_load import Load
from simulators.nvml_machine import Simulator
from support.daemon_process import RunningDaemon, descriptors, running_daemon

MIB = 1 << 20
DAY_SECONDS = 86_400
INTERVAL_SECONDS = 0.1
SAMPLE_SECONDS = 2.0
QUIET_SECONDS = 5.0
MAX_MEGABYTES_A_DAY = 1.0


class Reading(Struct, frozen=True):
    """Values of the daemon at one time, read from outside."""

    seconds: float
    ticks: int
    rss_bytes: int
    anonymous_bytes: int
    descriptors: int
    threads: int


class Line(Struct, frozen=True):
    """Straight line through readings: its growth, and the distance that nine of ten readings keep."""

    bytes_per_tick: float
    spread_bytes: float

    @property
    def megabytes_a_day(self) -> float:
        return self.bytes_per_tick * DAY_SECONDS / 1e6


class Soak(Struct, frozen=True):
    """Readings under load, and one without load before and after it."""

    before: Reading
    loaded: Sequence[Reading]
    after: Reading

    @property
    def second_half(self) -> Sequence[Reading]:
        return self.loaded[len(self.loaded) // 2 :]


def line_through(ticks: Sequence[int], figures: Sequence[int]) -> Line:
    """Return the median slope of all pairs (Theil and Sen), which a single step or peak does not change."""
    slope = median(
        (figures[late] - figures[early]) / (ticks[late] - ticks[early])
        for late in range(len(ticks))
        for early in range(late)
        if ticks[late] > ticks[early]
    )
    offsets = [figure - slope * tick for tick, figure in zip(ticks, figures, strict=True)]
    middle = median(offsets)
    distances = sorted(abs(offset - middle) for offset in offsets)
    return Line(slope, distances[len(distances) * 9 // 10])


def lines_of(soak: Soak) -> dict[str, Line]:
    half = soak.second_half
    ticks = [reading.ticks for reading in half]
    return {
        "RSS": line_through(ticks, [reading.rss_bytes for reading in half]),
        "anonymous memory": line_through(ticks, [reading.anonymous_bytes for reading in half]),
    }


def counts_of(soak: Soak) -> dict[str, float]:
    """Return the growth of each count in a day at one tick a second."""
    half = soak.second_half
    ticks = [reading.ticks for reading in half]
    return {
        name: line_through(ticks, [getattr(reading, name) for reading in half]).bytes_per_tick * DAY_SECONDS
        for name in ("descriptors", "threads")
    }


def complaints_about(soak: Soak) -> list[str]:
    """Return one sentence for each value that grows; none if all is well."""
    found = [
        f"{name} grows by {line.megabytes_a_day:.2f} MB a day at one tick a second (limit {MAX_MEGABYTES_A_DAY:g})"
        for name, line in lines_of(soak).items()
        if line.megabytes_a_day > MAX_MEGABYTES_A_DAY
    ]
    for name in ("descriptors", "threads"):
        before, after = getattr(soak.before, name), getattr(soak.after, name)
        if after > before:
            found.append(f"{before} {name} before the load and {after} after it")
    return found


def read(daemon: RunningDaemon, started: float) -> Reading:
    ticks = int(daemon.snapshot()["seq"])
    return Reading(
        seconds=time.monotonic() - started,
        ticks=ticks,
        rss_bytes=figure_in(daemon.pid, "VmRSS") * 1024,
        anonymous_bytes=figure_in(daemon.pid, "RssAnon") * 1024,
        descriptors=descriptors(daemon.pid),
        threads=figure_in(daemon.pid, "Threads"),
    )


def figure_in(pid: int, name: str) -> int:
    """Return a value of /proc/<pid>/status, in its unit."""
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, f"/proc/{pid}/status has no {name}"
    return int(found[1])


def soak(daemon: RunningDaemon, simulator: Simulator, minutes: float) -> tuple[Soak, Load]:
    """Warm up, run the load for this many minutes with a reading every two seconds, then read without load."""
    started = time.monotonic()
    with Load(daemon.port) as warm_up:
        warm_up.fill()
    before = read_quiet(daemon, started)
    loaded = []
    with Churn(simulator), Load(daemon.port) as load:
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            loaded.append(read(daemon, started))
            if len(loaded) % 30 == 1:
                show_row(loaded[-1])
            time.sleep(SAMPLE_SECONDS)
    return Soak(before, loaded, read_quiet(daemon, started)), load


def read_quiet(daemon: RunningDaemon, started: float) -> Reading:
    """Return the least of ten readings without load: a scan of /proc opens files while it lasts."""
    time.sleep(QUIET_SECONDS)
    readings = []
    for _ in range(10):
        readings.append(read(daemon, started))
        time.sleep(0.23)
    return min(readings, key=lambda reading: (reading.descriptors, reading.threads))


def process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def show_row(reading: Reading) -> None:
    print(
        f"| {reading.seconds / 60:.1f} | {reading.ticks:,} | {reading.rss_bytes / MIB:.2f} "
        f"| {reading.anonymous_bytes / MIB:.2f} | {reading.descriptors} | {reading.threads} |",
        flush=True,
    )


def report(done: Soak, load: Load) -> None:
    show_row(done.after)
    first, last = done.loaded[0], done.loaded[-1]
    ticks, seconds = last.ticks - first.ticks, last.seconds - first.seconds
    answers = ", ".join(f"{count:,} × {name}" for name, count in sorted(load.answers.items()))
    print(f"\nanswers during the load: {answers}")
    print(f"{ticks:,} ticks in {seconds / 60:.1f} minutes: equal to {ticks / 3600:.1f} hours at one tick a second.")
    half = done.second_half
    print(f"The second half ({half[-1].ticks - half[0].ticks:,} ticks), per tick × {DAY_SECONDS:,} ticks a day:")
    for name, line in lines_of(done).items():
        print(
            f"  {name}: {line.bytes_per_tick:+.2f} bytes a tick = {line.megabytes_a_day:+.3f} MB a day "
            f"(limit {MAX_MEGABYTES_A_DAY:g}); "
            f"90 % of readings lie within {line.spread_bytes / 1024:.0f} KiB of that line"
        )
    for name, growth in counts_of(done).items():
        print(f"  {name}: {growth:+.1f} a day")
    print(
        f"  before and after the load: {done.before.descriptors} and {done.after.descriptors} descriptors, "
        f"{done.before.threads} and {done.after.threads} threads"
    )


def config_for(minutes: float) -> str:
    """Return settings whose ring has as many ticks as one hour at one a second, full before the second half."""
    history = max(60, min(360, int(minutes * 60 * 0.45)))
    return (
        f'[history]\nlength = "{history}s"\nmedium_length = "10m"\n[processes]\ninterval = "1s"\nmetrics = true\n'
        '[collectors.nvml]\nrestart_after = "1s"\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=15.0, help="duration (default 15); below 5 the result is unreliable"
    )
    parser.add_argument("--hours", type=float, default=0.0, help="duration, instead of --minutes")
    given = parser.parse_args()
    minutes = given.hours * 60 or given.minutes
    print(f"{len(process_ids())} processes at the start\n")
    print("| minute | ticks | RSS MiB | anonymous MiB | descriptors | threads |\n|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator.of(Path(folder), CALM)
        arguments = [*simulator.roots[1:], "--interval", f"{INTERVAL_SECONDS}s", "--log-level", "warning"]
        with running_daemon(
            Path(folder), *arguments, config=config_for(minutes), environ=simulator.environ
        ) as daemon:
            daemon.wait_until_ok("nvml")
            done, load = soak(daemon, simulator, minutes)
            log = daemon.read_log()
    report(done, load)
    complaints = complaints_about(done)
    complaints += [f"{count} × {name}" for name, count in load.wrong.items()]
    complaints += [f"the daemon logged: {line}" for line in log.splitlines() if "collector nvml" not in line][:20]
    print("\n".join(f"NOT FLAT: {one}" for one in complaints) or "flat")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
