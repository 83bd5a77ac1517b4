"""Attribution of zram's memory, which needs two collectors. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.model import Absent, Content, Pool, PoolKind
from memwatch.core.snapshot import Zram


def with_zram(pool: Pool, zram: Zram | Absent | None) -> Pool:
    """Move zram's compressed pages from unattributed memory to the kernel; no line of /proc/meminfo contains them.

    At most all unattributed memory moves: the two figures are not read at the same instant. If zram's memory is not
    known, it is not known either how much of the rest is unattributed.
    """
    unattributed = pool.unattributed_bytes
    if zram is None or pool.kind is not PoolKind.SYSTEM_RAM or isinstance(unattributed, Absent):
        return pool
    memory = zram if isinstance(zram, Absent) else zram.memory_bytes
    if isinstance(memory, Absent) or memory > pool.size_bytes:
        return replace(
            pool, unattributed_bytes=memory if isinstance(memory, Absent) else Absent.INCONSISTENT, contents=()
        )
    held = min(memory, unattributed)
    if not held:
        return pool
    moved = {"kernel": held, "unattributed": -held}
    contents = tuple(Content(part.kind, part.size_bytes + moved.get(part.kind, 0)) for part in pool.contents)
    return replace(pool, unattributed_bytes=unattributed - held, contents=contents)
