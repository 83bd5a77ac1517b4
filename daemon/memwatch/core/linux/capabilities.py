"""Effective capabilities of this process. Not a collector."""

from __future__ import annotations

from pathlib import Path

CAP_SYSLOG = 34


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Return True if this process has the capability now. False if the kernel does not tell."""
    try:
        return bool(parse_effective(status.read_bytes()) >> number & 1)
    except OSError:
        return False


def parse_effective(status: bytes) -> int:
    """Parse the mask of effective capabilities in /proc/<pid>/status. 0 if there is none."""
    _, _, rest = status.partition(b"\nCapEff:")
    try:
        return int(rest.split(maxsplit=1)[0], 16)
    except (IndexError, ValueError):
        return 0
