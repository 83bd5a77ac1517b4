"""Compare memwatchd with a real GPU: `make test-hardware`.

Start the daemon on a free loopback port with its own state folder, allocate known amounts of GPU memory in a
separate process by the driver's API, and compare the daemon's figures with the vendor's tool at the same moment. It
needs no root and no framework. Exit code 0: all figures are right. 1: a figure is wrong. 2: no GPU could be tested.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hardware.checks import CHECKS, Bench
from hardware.figures import find_device, find_place
from hardware.holder import APIS
from hardware.holder_process import HolderProcess, open_holder
from hardware.machine_facts import HOST_PATHS, Cost, describe_machine, display_gpus
from hardware.native import DriverApiError
from hardware.plan import MIB, TooFullError
from hardware.report import Report, Section, render
from hardware.sampling import Sampler
from hardware.vendor_tools import find_tool
from support.daemon_process import RunningDaemon, running_daemon

VENDORS = {"cuda": "NVIDIA", "hip": "AMD", "level-zero": "Intel"}
RIGHT, WRONG, NO_GPU = 0, 1, 2
# By default a new process is listed up to 10 s after it allocates, which is longer than a step should take.
SETTINGS = '[processes]\ninterval = "1s"\n'


class NotListedError(Exception):
    """A GPU that the driver's API has and the daemon does not show."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-hardware", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--api", choices=tuple(APIS), action="append", default=[], help="use only this driver API")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="number of the GPU in that API (0)")
    parser.add_argument("--check", choices=tuple(CHECKS), action="append", default=[], help="run only these checks")
    parser.add_argument("--sizes", type=_sizes, default=(), metavar="MIB,…", help="sizes of the steps in MiB")
    parser.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="time for each step (10)")
    return parser.parse_args(arguments)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) * MIB for part in text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        holder = open_holder(options.api, options.gpu)
    except DriverApiError as error:
        print(explain_no_gpu(str(error)), file=sys.stderr)
        return NO_GPU
    try:
        report = run(options, holder)
    except TooFullError as error:
        print(f"the GPU cannot be tested: {error}; end programs that use it, and run this again", file=sys.stderr)
        return NO_GPU
    except (DriverApiError, NotListedError) as error:
        print(f"the test failed: {error}", file=sys.stderr)
        return WRONG
    finally:
        holder.end()
    print(render(report))
    return RIGHT if report.is_right else WRONG


def explain_no_gpu(problems: str) -> str:
    """Return what was not found, and what to do."""
    gpus = display_gpus()
    if gpus:
        found = f"no driver API works for {', '.join(gpus)}: {problems}"
        libraries = "install its compute library (libcuda1, libamdhip64 or libze1)"
        return f"{found}; {libraries}, end programs that fill its memory, and run this again"
    return f"no GPU was found: {problems}; run this on a machine with a GPU, its driver and its compute library"


def run(options: argparse.Namespace, holder: HolderProcess) -> Report:
    """Run the checks with a daemon for this test. `holder` is ended: each check starts another one."""
    environ = {name: os.environ[name] for name in HOST_PATHS if name in os.environ}
    facts, vendor = holder.facts, VENDORS[holder.api]
    holder.end()
    with tempfile.TemporaryDirectory(prefix="memwatchd-hardware-") as folder:
        state = Path(folder, "state")
        state.mkdir(mode=0o700)
        with running_daemon(Path(folder), "--state-dir", str(state), config=SETTINGS, environ=environ) as daemon:
            cost = Cost.since_now(daemon.pid)
            device = wait_for_device(daemon, facts.pci, vendor, options.wait)
            snapshot = daemon.snapshot()
            tool = find_tool(vendor, facts.pci)
            sampler = Sampler(daemon, find_place(snapshot, device), tool, options.wait)
            bench = Bench(
                sampler, lambda: HolderProcess(holder.api, options.gpu), sampler.sample(holder), options.sizes
            )
            with start_doctor(daemon) as doctor:  # it runs while the first check waits for the driver
                sections = [run_check(name, bench) for name in options.check or CHECKS]
                text = doctor.communicate()[0]
            found = daemon.snapshot()
            return Report(describe_machine(found, device, facts, tool), text, sections, cost.describe(found))


def run_check(name: str, bench: Bench) -> Section:
    print(f"{name} …", file=sys.stderr)
    return CHECKS[name](bench)


def wait_for_device(daemon: RunningDaemon, pci: str | None, vendor: str, seconds: float) -> Any:
    """Return the device once its figures are there. Raises `NotListedError`."""

    def is_ready(found: Any) -> bool:
        return (find_device(found, pci, vendor) or {}).get("headroom_after_reclaim_bytes") is not None

    with suppress(AssertionError):  # a device without headroom is tested as well
        daemon.wait_for("/api/v1/snapshot", is_ready, seconds)
    device = find_device(daemon.snapshot(), pci, vendor)
    if device is None:
        raise NotListedError(f"memwatchd shows no {vendor} GPU at {pci}, which the driver's API has")
    return device


def start_doctor(daemon: RunningDaemon) -> subprocess.Popen[str]:
    memwatch = str(Path(sys.executable).with_name("memwatch"))
    return subprocess.Popen(
        [memwatch, "--url", daemon.url, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    sys.exit(main())
