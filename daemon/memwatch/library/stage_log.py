"""Log line with the memory at a stage of a program, also sent to the daemon as a mark on its timeline."""

from __future__ import annotations

import sys

from memwatch.core.model import Absent, Bytes
from memwatch.core.units import size
from memwatch.library import guard as guarding
from memwatch.library.frameworks import pools, read_free, read_stats
from memwatch.library.host import host, rss_bytes
from memwatch.library.memory_pool import MemoryPool, describe_bytes
from memwatch.library.program_safety import log, never_raise
from memwatch.library.reporter import reporter


@never_raise("")
def log_memory_usage(stage: str) -> str:
    """Log and return the memory at a stage of a program, and send it to the daemon as a mark.

    `[Before VAE Load] Free: 2.3 GiB | Allocated: 18.5 GiB (92.5% of the 20.0 GiB limit) | Reserved: 19.2 GiB`.
    Logged as "memwatch" with level INFO, or written to stderr if logging is not configured. Without a GPU in use,
    the line has the resident set in place of the allocators' values.
    """
    line = f"[{stage}] {' | '.join(build_parts(pools()))}"
    write_line(line)
    reporter.mark(line)
    return line


def write_line(line: str) -> None:
    """Log a line with level INFO, or write it to stderr if logging is not configured."""
    if log.hasHandlers():
        log.info("%s", line)
    else:
        print(line, file=sys.stderr)


def build_parts(found: list[MemoryPool]) -> list[str]:
    if not found:
        resident = rss_bytes()
        return [
            f"Free: {describe_bytes(host.available_bytes())}",
            f"Resident: {describe_bytes(resident)}{_describe_limit(resident)}",
        ]
    if len(found) == 1:
        return _build_pool_parts(found[0], "")
    return [part for pool in found for part in _build_pool_parts(pool, f"{pool.device} ")]


def _build_pool_parts(pool: MemoryPool, prefix: str) -> list[str]:
    stats = read_stats(pool)
    return [
        f"{prefix}Free: {describe_bytes(read_free(pool))}",
        f"Allocated: {describe_bytes(stats.allocated_bytes)}{_describe_limit(stats.allocated_bytes)}",
        f"Reserved: {describe_bytes(stats.reserved_bytes)}",
        *([f"Cache hits: {stats.hit_rate:.1%}"] if isinstance(stats.hit_rate, float) else ()),
        *([f"CPU fallbacks: {stats.cpu_fallbacks}"] if stats.cpu_fallbacks not in (0, *Absent) else ()),
    ]


def _describe_limit(used: Bytes) -> str:
    limit = guarding.limit_bytes()
    if limit is None or isinstance(used, Absent):
        return ""
    return f" ({100 * used / limit:.1f}% of the {size(limit)} limit)"
