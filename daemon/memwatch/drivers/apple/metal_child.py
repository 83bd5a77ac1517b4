"""Prints what Metal says of the default device, as one line of JSON, and ends: run by the collector as a process of
its own, so that the daemon itself is no client of the GPU. Needs pyobjc-framework-Metal, which only macOS has."""

from __future__ import annotations

import importlib
import sys

from memwatch.drivers.apple.records import Metal
from memwatch.helper.codec import Garbled, from_line, to_line
from memwatch.model import Absent


def parse_metal(line: bytes) -> Metal | Absent:
    """What this program printed. Absent where Metal is not installed or has no device."""
    try:
        return from_line(Metal, line)
    except Garbled:
        return Absent.NOT_AVAILABLE


def main() -> int:
    try:
        library = importlib.import_module("Metal")
        device = library.MTLCreateSystemDefaultDevice()
    except Exception:  # noqa: BLE001  a foreign library may fail in any way; then there is no figure
        return 1
    if device is None:
        return 1
    metal = Metal(bool(device.hasUnifiedMemory()), int(device.recommendedMaxWorkingSetSize()))
    sys.stdout.buffer.write(to_line(metal))
    return 0


if __name__ == "__main__":
    sys.exit(main())
