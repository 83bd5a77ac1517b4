"""The process that is fuzzed: `python -m fuzz.child NAME LIBFUZZER-ARGUMENTS...`, started by run.py."""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
from pathlib import Path

import atheris

PACKAGES = ["memwatch", "memwatchd", "memwatch_web"]
# Who asks for more gets a MemoryError, which no target allows; libFuzzer's own limit only looks now and then.
MOST_ADDRESSES = 6 << 30
# To remove a file takes 3 ms on the disk where this was measured, and nothing here.
MEMORY_DISK = Path("/dev/shm")


def main() -> None:
    name = sys.argv.pop(1)
    logging.disable(logging.WARNING)  # a line for every damaged file, a thousand times a second
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=PACKAGES):
        from fuzz.targets import target

        one = target(name)
    if MEMORY_DISK.is_dir():
        tempfile.tempdir = str(MEMORY_DISK)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    atheris.Setup(sys.argv, one.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
