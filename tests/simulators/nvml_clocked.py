"""The NVML driver in a process with a virtual clock: ten minutes of readings, one a second, take a moment.

A command is a number of seconds. After each of them the driver reads once; the last reading is the answer. The
command `read` reads once more at the same time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memwatch.core.helper.codec import to_line
from memwatch.core.linux.files import Roots
from simulators.nvml_child import Child
from simulators.nvml_machine import Simulator
from support.daemon_process import clean_environment
from support.paths import TESTS

WALL_OFFSET = 1_700_000_000.0


@contextmanager
def clocked_child(simulator: Simulator, roots: Roots) -> Iterator[Child]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "simulators.nvml_clocked", str(roots.procfs), str(roots.sysfs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(**simulator.environ, PYTHONPATH=str(TESTS)),
    )
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()


def main(procfs: str, sysfs: str) -> None:
    from memwatch.core.drivers.nvml.driver import Driver
    from memwatch.core.drivers.nvml.records import NvmlReading
    from memwatch.core.drivers.nvml.validation import Limits

    now = [0.0]
    roots = Roots(Path(procfs), Path(sysfs))
    driver = Driver(Limits(1 << 22), 10.0, 30.0, roots, lambda: now[0], lambda: now[0] + WALL_OFFSET)
    for line in sys.stdin.buffer:
        for step in [0.0] if line == b"read\n" else [1.0] * int(line):
            now[0] += step
            found = driver.read()
        kind = b"reading " if isinstance(found, NvmlReading) else b"failure "
        sys.stdout.buffer.write(kind + to_line(found))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
