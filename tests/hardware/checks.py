"""The checks, in order: each returns a section of the report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from hardware.comparison import MIB, OTHERS_BYTES, ROUNDING_BYTES, Held, Row, Sample, Verdict, compare_whole
from hardware.figures import (
    CERTAIN,
    HEADROOM,
    MEMORY,
    NO_FIGURE,
    PROCESS,
    Figure,
    figure_in,
    process_bytes,
    read_figures,
)
from hardware.holder_process import HolderProcess
from hardware.native import DEVICE, MANAGED, PINNED, DriverApiError
from hardware.plan import plan_steps
from hardware.report import Section
from hardware.sampling import POLL_SECONDS, Sampler
from hardware.vendor_tools import read_meminfo
from support.daemon_process import get

# Of the daemon's sensors, which are read in rotation.
SENSOR_AGE_SECONDS = 22.0
RELEASE_SECONDS = 2
# Two reads of a driver: the context of a process that no list shows is in the figures by then.
UNLISTED_SECONDS = 2.2
# Libraries and device files that hold a driver open.
DRIVER_FILES = ("libnvidia-ml", "/dev/nvidia", "libamd_smi")
EXTRA_BYTES = 128 * MIB


class Bench(Struct):
    """The machine under test. `before` was read before a program of this test used the GPU."""

    sampler: Sampler
    open_holder: Callable[[], HolderProcess]
    before: Sample
    sizes: tuple[int, ...] = ()


@contextmanager
def running_holder(bench: Bench) -> Iterator[tuple[HolderProcess, Sample]]:
    """Start a holder, and yield the figures once its context is shown."""
    holder = bench.open_holder()
    try:
        yield holder, _settled_context(bench, holder)
    finally:
        holder.end()


def _settled_context(bench: Bench, holder: HolderProcess) -> Sample:
    """Wait until the daemon lists the process with the memory that the tool shows, as far as it shows any."""
    began = time.monotonic()
    while True:
        sample = bench.sampler.shown(holder)
        passed, own = time.monotonic() - began, sample.shown[PROCESS]
        is_over = passed > bench.sampler.max_seconds
        if is_over or (passed > UNLISTED_SECONDS if isinstance(own, str) else own > 0):
            sample = bench.sampler.beside_vendor(sample, holder)
            # Without a pool a tool that lists processes has those of compute, the daemon those of graphics as well.
            is_whole = _agree(sample, MEMORY) or not (bench.sampler.place.has_pool or isinstance(own, str))
            if is_over or (is_whole and _agree(sample, PROCESS)):
                return sample
        time.sleep(POLL_SECONDS)


def _agree(sample: Sample, name: str) -> bool:
    """Return False if both figures are whole ones and differ. A driver API's is no whole one, and negative."""
    shown, vendor = sample.shown[name], sample.vendor[name]
    if isinstance(shown, str) or isinstance(vendor, str) or vendor < 0:
        return True
    return abs(shown - vendor) <= OTHERS_BYTES + ROUNDING_BYTES


def check_whole_figures(bench: Bench) -> Section:
    """Compare sizes and use before any allocation."""
    sampler, reading, meminfo = bench.sampler, bench.sampler.tool.read(), read_meminfo()
    snapshot = sampler.daemon.snapshot()
    pools = {pool["id"]: pool for pool in snapshot["pools"]}
    rows = []
    if reading.total is not None and sampler.place.device in pools:
        pool = pools[sampler.place.device]
        rows.append(compare_whole("before", "size", figure_in(pool, "size_bytes"), reading.total, ROUNDING_BYTES))
        used = NO_FIGURE if reading.used is None else reading.used
        limit = OTHERS_BYTES + ROUNDING_BYTES
        rows.append(compare_whole("before", "used", figure_in(pool, "used_bytes"), used, limit))
    if "ram" in pools and sampler.place.architecture != "coherent":
        size = figure_in(pools["ram"], "size_bytes")
        rows.append(compare_whole("before", "System RAM, size", size, meminfo["MemTotal"], ROUNDING_BYTES))
    return Section("Before", rows, f"Vendor: {sampler.tool.name} and /proc/meminfo.")


def check_steps(bench: Bench) -> Section:
    """Allocate in steps, free all, and end the process."""
    rows: list[Row] = []
    seconds = []
    with running_holder(bench) as (holder, base):
        held = Held()
        for size in _plan(bench, holder, bench.sizes):
            holder.allocate(DEVICE, size)
            held = held.plus(DEVICE, size)
            settled = bench.sampler.settle(f"allocate {size // MIB} MiB", holder, base, held)
            rows += settled.rows
            seconds.append(settled.seconds)
        holder.free()
        settled = bench.sampler.settle("free all", holder, base, Held(allocations=held.allocations))
        rows += settled.rows
        seconds.append(settled.seconds)
    rows += _ended_rows(bench, holder, "process ended")
    note = "Sums of all steps so far. Shown after " + ", ".join(f"{one:.1f} s" for one in seconds) + "."
    return Section("Allocate and free", rows, note)


def _plan(bench: Bench, holder: HolderProcess, wanted: Sequence[int] = ()) -> list[int]:
    """Plan the sizes by every figure there is: the daemon's, the driver API's and the kernel's."""
    shown = read_figures(bench.sampler.daemon.snapshot(), bench.sampler.place, holder.pid)
    headroom: list[Figure | None] = [shown[HEADROOM]]
    if not bench.sampler.place.has_pool or holder.facts.free_bytes is None:
        headroom.append(read_meminfo().get("MemAvailable"))
    return plan_steps(_numbers(headroom), _numbers([shown[CERTAIN], holder.facts.free_bytes]), wanted)


def _numbers(figures: Sequence[Figure | None]) -> list[int]:
    return [figure for figure in figures if isinstance(figure, int)]


def _ended_rows(bench: Bench, holder: HolderProcess, step: str) -> list[Row]:
    """Check that the memory of a process comes back when it has ended, and that it is listed no more."""
    sampler = bench.sampler
    settled = sampler.settle(step, holder, bench.before, Held(allocations=1))
    gone = sampler.wait(lambda snapshot: not _holds(snapshot, holder.pid))
    left = process_bytes(sampler.daemon.snapshot(), _device(sampler), sampler.place, holder.pid)
    listed = Row(step, "process, bytes", 0, left, "", None, Verdict.OK if gone is not None else Verdict.WRONG)
    return [*settled.rows, listed]


def _holds(snapshot: Any, pid: int) -> bool:
    found = next((one for one in snapshot["processes"] if one["pid"] == pid), None)
    return found is not None and any(isinstance(size, int) and size for size in found["device_bytes"].values())


def _device(sampler: Sampler) -> Any:
    return next(one for one in sampler.daemon.snapshot()["devices"] if one["id"] == sampler.place.device)


def check_kinds(bench: Bench) -> Section:
    """Allocate managed and pinned memory, which drivers list elsewhere than device memory."""
    rows: list[Row] = []
    with running_holder(bench) as (holder, base):
        size = min([EXTRA_BYTES, *_plan(bench, holder)])
        for kind in (MANAGED, PINNED):
            if kind not in holder.kinds:
                continue
            try:
                holder.allocate(kind, size)
            except DriverApiError as error:
                rows.append(Row(kind, "allocation", size, "", "", None, Verdict.UNJUDGED, str(error)))
                continue
            held = Held().plus(kind, size)
            rows += bench.sampler.settle(f"{kind} {size // MIB} MiB", holder, base, held).rows
            holder.free()
    return Section("Managed and pinned memory", rows)


def check_kill(bench: Bench) -> Section:
    """Kill a process that holds memory."""
    with running_holder(bench) as (holder, base):
        size = _plan(bench, holder)[0]
        holder.allocate(DEVICE, size)
        rows = bench.sampler.settle("before the kill", holder, base, Held().plus(DEVICE, size)).rows
        holder.kill()
        rows += _ended_rows(bench, holder, "killed")
    return Section("Killed process", rows)


def check_release(bench: Bench) -> Section:
    """Have the daemon release the driver: its files are closed meanwhile, and its figures come back."""
    sampler = bench.sampler
    answer = get(sampler.daemon.port, f"/api/v1/release?seconds={RELEASE_SECONDS}", method="POST")
    if answer.status != 200 or not answer.json["released"]:
        reason = "no collector holds a driver" if answer.status == 200 else f"the daemon answered {answer.status}"
        return Section("Release", note=f"Not judged: {reason}.")
    names = answer.json["released"]
    stopped = sampler.wait(lambda snapshot: not _works(snapshot, names))
    held = held_driver_files(sampler.daemon.pid)
    back = sampler.wait(lambda snapshot: _works(snapshot, names) and _has_memory(snapshot, sampler))
    rows = [
        _event_row("collector has stopped", stopped),
        _event_row("no driver file is open", None if held else 0.0, ", ".join(held)),
        _event_row("figures are back", back),
    ]
    return Section("Release", rows, f"Released for {RELEASE_SECONDS} s: {', '.join(names)}.")


def _works(snapshot: Any, names: Sequence[str]) -> bool:
    return all(one["state"] == "ok" for one in snapshot["collectors"] if one["name"] in names)


def _has_memory(snapshot: Any, sampler: Sampler) -> bool:
    return isinstance(read_figures(snapshot, sampler.place, 0)[MEMORY], int)


def _event_row(label: str, seconds: float | None, note: str = "") -> Row:
    verdict = Verdict.WRONG if seconds is None else Verdict.OK
    shown = "no" if seconds is None else f"after {seconds:.1f} s"
    return Row("release", label, "", shown, "", None, verdict, note)


def held_driver_files(pid: int) -> list[str]:
    """Return the driver's libraries and device files that the daemon and its helpers have open."""
    found = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        folder = Path("/proc", str(process.pid))
        try:
            names = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
            names += (folder / "maps").read_text().split()
        except OSError:  # it has ended
            continue
        found |= {name for name in names if any(part in name for part in DRIVER_FILES)}
    return sorted(found)


# Label, unit, and the part of the vendor's value that may differ, but at least the last number.
SENSORS: Sequence[tuple[str, str, float, int]] = (
    ("temperature", "°C", 0.0, 5),
    ("power", "W", 0.25, 15),
    ("clock sm", "MHz", 0.1, 50),
    ("clock memory", "MHz", 0.1, 50),
    ("utilization", "%", 0.0, 20),
)


def check_sensors(bench: Bench) -> Section:
    """Compare sensors with the tool until each has agreed once: they move, and the daemon's are up to 20 s old."""
    began = time.monotonic()
    rows: dict[str, Row] = {}
    while True:
        reading = bench.sampler.tool.sensors()
        shown = sensors_in(_device(bench.sampler))
        for label, unit, part, least in SENSORS:
            if label in reading and (label not in rows or rows[label].verdict is not Verdict.OK):
                vendor = round(reading[label])
                limit = max(least, part * vendor)
                rows[label] = compare_whole("now", label, shown.get(label, NO_FIGURE), vendor, limit, unit)
        if all(row.verdict is Verdict.OK for row in rows.values()) or time.monotonic() - began > SENSOR_AGE_SECONDS:
            note = "5 °C, 25 % or 15 W, 10 % or 50 MHz, 20 % of time; each must agree once within 22 s."
            return Section("Sensors", list(rows.values()), note if rows else "Not judged: the tool shows none.")
        time.sleep(0.5)


def sensors_in(device: Any) -> Mapping[str, Figure]:
    """Return the daemon's figures in the units of the tools."""
    clocks = device["clock_hertz"] or {}
    found = {
        "temperature": device["temperature_celsius"],
        "power": device["power_watts"],
        "utilization": None if device["busy_ratio"] is None else device["busy_ratio"] * 100,
        **{f"clock {name}": hertz / 1e6 for name, hertz in clocks.items()},
    }
    return {name: NO_FIGURE if value is None else round(value) for name, value in found.items()}


CHECKS: Mapping[str, Callable[[Bench], Section]] = {
    "whole": check_whole_figures,
    "steps": check_steps,
    "kinds": check_kinds,
    "kill": check_kill,
    "sensors": check_sensors,
    "release": check_release,
}
