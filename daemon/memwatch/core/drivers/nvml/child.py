"""Helper process that calls NVML, so that a call that hangs or crashes does not affect the daemon.

`python -m memwatch.core.drivers.nvml.child` reads commands from stdin, one per line, and writes one response line
per command to stdout: `reading {...}` or `failure {...}`. The commands are `read`, and `reopen`, which reads
without waiting for the next attempt to open a driver that failed. It exits with 0 when stdin ends or on SIGTERM,
and with 75 after a failure that needs a new process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from memwatch.core.helper.bootstrap import bootstrap, leave_out_modules, write_all

leave_out_modules(__name__)

from memwatch.core.drivers.nvml.driver import Driver  # noqa: E402
from memwatch.core.drivers.nvml.records import NvmlFailure, NvmlReading  # noqa: E402
from memwatch.core.drivers.nvml.validation import Limits  # noqa: E402
from memwatch.core.helper.codec import LineEncoder  # noqa: E402
from memwatch.core.linux.files import Roots  # noqa: E402

EXIT_USAGE, EXIT_NEEDS_NEW_PROCESS = 2, 75
COMMANDS = (b"read\n", b"reopen\n")
MAX_PID_MAX = 4_194_304  # PID_MAX_LIMIT of 64-bit Linux


class Options(NamedTuple):
    """`system_memory`: MemTotal in bytes, to validate NVML's numbers against. `retry_seconds`: minimum time between
    two attempts to open NVML. `slow_seconds`: maximum age of values that rarely change."""

    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    system_memory: int | None = None
    retry_seconds: float = 10.0
    slow_seconds: float = 30.0


KINDS: Mapping[str, Callable[[str], Any]] = {
    "procfs": Path,
    "sysfs": Path,
    "system-memory": int,
    "retry-seconds": float,
    "slow-seconds": float,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(sys.argv[1:] if arguments is None else arguments)
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


def _options(arguments: Sequence[str]) -> Options:
    """Parse `--name value` and `--name=value`. argparse with gettext would take 0.5 MiB of this process."""
    found, rest = {}, iter(arguments)
    for word in rest:
        name, separator, value = word.removeprefix("--").partition("=")
        try:
            found[name.replace("-", "_")] = KINDS[name](value if separator else next(rest))
        except (KeyError, ValueError, StopIteration):
            known = ", ".join(f"--{known}" for known in KINDS)
            print(f"{word} is not an option with a valid value; there are {known}", file=sys.stderr)
            raise SystemExit(EXIT_USAGE) from None
    return Options(**found)


def _pid_max(procfs: Path) -> int:
    try:
        return int((procfs / "sys/kernel/pid_max").read_text())
    except (OSError, ValueError):
        return MAX_PID_MAX


if __name__ == "__main__":
    sys.exit(main())
