"""Huge pages of every size, from /sys/kernel/mm/hugepages: /proc/meminfo counts pages of the default size only."""

from __future__ import annotations

import re
from pathlib import Path

from memwatch.core.linux.files import names_in, read_once
from memwatch.core.model import Absent, Bytes

_FOLDER = re.compile(r"hugepages-(\d{1,12})kB")


def read_unused_huge_pages(sysfs: Path) -> Bytes:
    """Return the bytes of huge pages that are neither used nor promised to a process, over all sizes."""
    folder = sysfs / "kernel/mm/hugepages"
    try:
        found = [match for match in map(_FOLDER.fullmatch, names_in(folder)) if match]
        counts = [(int(match[1]), *_read_counts(folder / match[0])) for match in found]
    except (OSError, ValueError):
        return Absent.NOT_AVAILABLE
    if not counts:
        return Absent.NOT_AVAILABLE
    return sum([kib * max(0, free - reserved) for kib, free, reserved in counts]) << 10


def _read_counts(folder: Path) -> tuple[int, int]:
    """Return the free pages of one size, and those of them that mappings have reserved. Raises ValueError."""
    free, reserved = (int(read_once(folder / f"{name}_hugepages") or b"") for name in ("free", "resv"))
    return free, reserved
