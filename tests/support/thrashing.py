"""A program that stalls on memory in a control group that is too small for its pages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.memory_cgroup import THRASH, MemoryCgroup, memory_cgroup

PRESSURE = Path("/proc/pressure/memory")
MIB = 1 << 20


def drop_page_cache(pages: Path) -> None:
    """Make the next access read the file from disk."""
    with pages.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def thrashing(folder: Path) -> Iterator[MemoryCgroup | None]:
    """Run a program that stalls on pages its cgroup has just evicted. Yield None where that is impossible."""
    pages = folder / "pages"
    with pages.open("wb") as file:
        file.write(os.urandom(MIB) * 96)
    drop_page_cache(pages)
    with memory_cgroup(32 * MIB) as cgroup:
        if cgroup is None:
            yield None
            return
        with cgroup.run(THRASH, str(pages)) as reader:
            before = stalled_seconds()
            time.sleep(2)
            yield cgroup if stalled_seconds() - before > 0.2 else None
            reader.kill()


def stalled_seconds() -> float:
    """Return the seconds that some task of this machine was stalled on memory, 0 without PSI."""
    return int(PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6 if PRESSURE.exists() else 0.0
