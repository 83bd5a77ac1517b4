"""Helper process that calls NVML, so that a call that hangs or crashes does not affect the daemon.

`python -m memwatch.core.drivers.nvml.child` reads commands from stdin, one per line, and writes one response line
per command to stdout: `reading {...}` or `failure {...}`. The commands are `read`, and `reopen`, which reads
without waiting for the next attempt to open a driver that failed. It exits with 0 when stdin ends or on SIGTERM,
and with 75 after a failure that needs a new process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from memwatch.core.drivers.nvml.driver import Driver
from memwatch.core.drivers.nvml.records import NvmlFailure, NvmlReading
from memwatch.core.drivers.nvml.validation import Limits
from memwatch.core.helper.bootstrap import bootstrap, write_all
from memwatch.core.helper.codec import LineEncoder
from memwatch.core.linux.files import Roots

EXIT_NEEDS_NEW_PROCESS = 75
COMMANDS = (b"read\n", b"reopen\n")
MAX_PID_MAX = 4_194_304  # PID_MAX_LIMIT of 64-bit Linux


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    answers = bootstrap()
    limits = Limits(_pid_max(options.procfs), options.system_memory)
    roots = Roots(options.procfs, options.sysfs)
    driver = Driver(limits, options.retry_seconds, options.slow_seconds, roots)
    try:
        return serve(sys.stdin.buffer, lambda line: write_all(answers, line), driver.read, driver.end_pause)
    except BrokenPipeError:
        return 0
    finally:
        driver.close()


def serve(
    commands: BinaryIO,
    answer: Callable[[bytes], None],
    read: Callable[[], NvmlReading | NvmlFailure],
    end_pause: Callable[[], None] = lambda: None,
) -> int:
    """Answer commands until stdin ends, and return the exit code."""
    speaker = LineEncoder()
    for command in iter(commands.readline, b""):
        if command == b"reopen\n":
            end_pause()
        found = read() if command in COMMANDS else _unknown(command)
        if isinstance(found, NvmlReading):
            answer(b"reading " + speaker.encode(found))
            continue
        answer(b"failure " + speaker.encode(found))
        if found.reason == "needs_new_process":
            return EXIT_NEEDS_NEW_PROCESS
    return 0


def _unknown(command: bytes) -> NvmlFailure:
    return NvmlFailure("failed", f"unknown command {command[:40]!r}: there are 'read' and 'reopen'")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "memwatch.core.drivers.nvml.child", description="Read NVML on request. See the module's docstring."
    )
    parser.add_argument("--procfs", type=Path, default=Path("/proc"), metavar="DIR")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), metavar="DIR")
    parser.add_argument(
        "--system-memory", type=int, metavar="BYTES", help="MemTotal, to validate NVML's numbers against"
    )
    parser.add_argument(
        "--retry-seconds", type=float, default=10.0, help="minimum time between two attempts to open NVML"
    )
    parser.add_argument("--slow-seconds", type=float, default=30.0, help="maximum age of values that rarely change")
    return parser.parse_args(arguments)


def _pid_max(procfs: Path) -> int:
    try:
        return int((procfs / "sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return MAX_PID_MAX


if __name__ == "__main__":
    sys.exit(main())
