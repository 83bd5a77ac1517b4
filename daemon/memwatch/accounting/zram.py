"""Who holds what is used, where that takes more than one collector to say. Pure rules."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.model import Absent, Content, Pool, PoolKind
from memwatch.snapshot import Zram


def with_zram(pool: Pool, zram: Zram | None) -> Pool:
    """System RAM with zram's compressed pages counted to the kernel; /proc/meminfo has them in no line.

    Never more than nobody else holds: the two are not read at the same moment.
    """
    unattributed = pool.unattributed_bytes
    if zram is None or pool.kind is not PoolKind.SYSTEM_RAM or isinstance(unattributed, Absent):
        return pool
    held = min(zram.memory_bytes, unattributed)
    if not held:
        return pool
    moved = {"kernel": held, "unattributed": -held}
    contents = tuple(Content(part.kind, part.size_bytes + moved.get(part.kind, 0)) for part in pool.contents)
    return replace(pool, unattributed_bytes=unattributed - held, contents=contents)
