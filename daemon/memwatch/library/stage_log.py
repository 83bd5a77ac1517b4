"""Log line with the memory at a stage of a program, also sent to the daemon as a mark on its timeline."""

from __future__ import annotations

import sys

from memwatch.library import guard as guarding
from memwatch.library.frameworks import pools, stats_of
from memwatch.library.host import host, rss_bytes
from memwatch.library.memory_pool import MemoryPool
from memwatch.library.never_raise import harmless, log
from memwatch.library.reporter import courier
from memwatch.model import Absent, Bytes
from memwatch.units import size


@harmless("")
def log_memory_usage(stage: str) -> str:
    """Log and return the memory at a stage of a program, and send it to the daemon as a mark.

    `[Before VAE Load] Free: 2.3 GiB | Allocated: 18.5 GiB (92.5% of the 20.0 GiB limit) | Reserved: 19.2 GiB`.
    Logged as "memwatch" with level INFO, or written to stderr if logging is not configured. Without a GPU in use,
    the line has the resident set in place of the allocators' values.
    """
    line = f"[{stage}] {' | '.join(parts_of(pools()))}"
    if log.hasHandlers():
        log.info("%s", line)
    else:
        print(line, file=sys.stderr)
    courier.mark(line)
    return line


def parts_of(found: list[MemoryPool]) -> list[str]:
    if not found:
        resident = rss_bytes()
        return [f"Free: {_size(host.available_bytes())}", f"Resident: {_size(resident)}{_of_limit(resident)}"]
    if len(found) == 1:
        return _parts_of_pool(found[0], "")
    return [part for pool in found for part in _parts_of_pool(pool, f"{pool.device} ")]


def _parts_of_pool(pool: MemoryPool, prefix: str) -> list[str]:
    stats = stats_of(pool)
    return [
        f"{prefix}Free: {_size(_free(pool))}",
        f"Allocated: {_size(stats.allocated_bytes)}{_of_limit(stats.allocated_bytes)}",
        f"Reserved: {_size(stats.reserved_bytes)}",
    ]


@harmless(Absent.NOT_AVAILABLE)
def _free(pool: MemoryPool) -> Bytes:
    return pool.free()


def _of_limit(used: Bytes) -> str:
    limit = guarding.limit_bytes()
    if limit is None or isinstance(used, Absent):
        return ""
    return f" ({100 * used / limit:.1f}% of the {size(limit)} limit)"


def _size(figure: Bytes) -> str:
    return f"— {figure.value.replace('_', ' ')}" if isinstance(figure, Absent) else size(figure)
