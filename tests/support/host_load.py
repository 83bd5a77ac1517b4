"""Load of this machine: load average, and PSI of CPU and memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def describe_load(root: Path = Path("/")) -> str:
    """Return one line, such as `load 3.1, PSI cpu 97 %, memory 0 %`: the averages of a minute and of 10 seconds."""
    load = (root / "proc/loadavg").read_text().split()[0]
    shares = [f"{name} {share}" for name in ("cpu", "memory") if (share := _some_avg10(root, name))]
    return f"load {load}, PSI {', '.join(shares) or 'not available'}"


def _some_avg10(root: Path, resource: str) -> str:
    with suppress(OSError):  # a kernel without PSI
        some = (root / "proc/pressure" / resource).read_text().split()
        return f"{float(some[1].partition('=')[2]):.0f} %"
    return ""
