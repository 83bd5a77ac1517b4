"""The fuzzed process: `python -m fuzz.child NAME LIBFUZZER-ARGUMENTS...`, started by run.py."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
from pathlib import Path

import atheris

PACKAGES = ["memwatch", "memwatch_monitor", "memwatchd", "memwatch_web"]
# More address space raises MemoryError, which no target allows; libFuzzer's own limit is checked only periodically.
MAX_ADDRESS_SPACE = 6 << 30
# Removing a file takes 3 ms on the disk where this was measured, and next to nothing in memory.
MEMORY_DISK = Path("/dev/shm")


def main() -> None:
    name = sys.argv.pop(1)
    logging.disable(logging.WARNING)  # one line for every damaged file, a thousand a second
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=PACKAGES):
        from fuzz.targets import target

        one = target(name)
    if MEMORY_DISK.is_dir():
        tempfile.tempdir = str(MEMORY_DISK)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    atheris.Setup(sys.argv, one.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
