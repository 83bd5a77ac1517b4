"""Print Metal's properties of the default device as one line of JSON, and exit.

The collector runs it as a separate process, so that the daemon itself is not a client of the GPU. It needs
pyobjc-framework-Metal, which only exists for macOS.
"""

from __future__ import annotations

import importlib
import sys

from memwatch.core.drivers.apple.records import Metal
from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.core.model import Absent


def parse_metal(line: bytes) -> Metal | Absent:
    """Parse the output of this program. Absent if Metal is not installed or has no device."""
    try:
        return from_line(Metal, line)
    except DecodeError:
        return Absent.NOT_AVAILABLE


def main() -> int:
    try:
        library = importlib.import_module("Metal")
        device = library.MTLCreateSystemDefaultDevice()
    except Exception:  # noqa: BLE001  a third-party library may fail in any way; then there is no value
        return 1
    if device is None:
        return 1
    metal = Metal(bool(device.hasUnifiedMemory()), int(device.recommendedMaxWorkingSetSize()))
    sys.stdout.buffer.write(to_line(metal))
    return 0


if __name__ == "__main__":
    sys.exit(main())
