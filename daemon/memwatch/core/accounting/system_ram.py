"""System RAM where other sources than /proc/meminfo know more: in an LXC container, and with zram. Pure functions.

In an LXC container, /proc/meminfo shows the container's limit as MemTotal. A GPU uses System RAM of the whole
machine and is not charged to a container. So System RAM is taken from the machine's NUMA nodes, and the limit
becomes a share of it, as in every other container.
"""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.findings import Findings
from memwatch.core.linux.cgroups import LXCFS
from memwatch.core.model import (
    CGROUP_NOTE,
    Absent,
    Content,
    Pool,
    PoolKind,
    Quality,
    Share,
    ShareKind,
    find_system_ram,
    sum_figures,
)
from memwatch.core.snapshot import Zram


def with_both_scopes(found: Findings) -> Findings:
    """Return findings unchanged if meminfo shows the machine, or if the machine's memory size is unknown.

    Where its nodes are there and cannot be read, the container's size is an estimate of the machine's.
    """
    limit = find_system_ram(found.pools)
    if limit is None or not limit.source.startswith(LXCFS):
        return found
    machine = machine_ram(found, limit)
    if machine is None and any(isinstance(node.size_bytes, Absent) for node in found.nodes):
        estimated = replace(limit, quality=Quality.ESTIMATED)
        return replace(found, pools=tuple(estimated if pool is limit else pool for pool in found.pools))
    if machine is None:
        return found
    others = tuple(share for share in found.shares if share.kind is not ShareKind.CGROUP)
    tighter = next((share for share in found.shares if is_below(share, limit.size_bytes)), None)
    return replace(
        found,
        pools=tuple(machine if pool is limit else pool for pool in found.pools),
        shares=(tighter or build_share(limit), *others),
    )


def is_below(share: Share, size: int) -> bool:
    """Check for the limit of a cgroup inside the container."""
    return share.kind is ShareKind.CGROUP and isinstance(share.limit_bytes, int) and share.limit_bytes < size


def machine_ram(found: Findings, limit: Pool) -> Pool | None:
    """Sum all nodes. An estimate: the kernel has no MemAvailable for nodes."""
    size = sum_figures([node.size_bytes for node in found.nodes])
    if isinstance(size, Absent) or size < limit.size_bytes:
        return None
    available = sum_figures([node.available_bytes for node in found.nodes])
    return Pool(
        id=limit.id,
        kind=limit.kind,
        label=limit.label,
        size_bytes=size,
        used_bytes=available if isinstance(available, Absent) else size - available,
        available_bytes=available,
        source="sysfs:node/meminfo",
        quality=Quality.ESTIMATED,
        free_bytes=sum_figures([node.free_bytes for node in found.nodes]),
    )


def build_share(limit: Pool) -> Share:
    """Build the container's share from lxcfs: its cgroup may be outside the visible hierarchy."""
    return Share(
        id="cgroup",
        kind=ShareKind.CGROUP,
        label="Container limit",
        within=limit.id,
        used_bytes=limit.used_bytes,
        limit_bytes=limit.size_bytes,
        source=limit.source,
        quality=limit.quality,
        note=CGROUP_NOTE,
    )


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
