"""Generated limits of nested cgroups on GPU memory, as the dmem controller has them."""

from __future__ import annotations

from collections.abc import Sequence

from memwatch.core.linux.dmem import UNLIMITED_BYTES, DmemGroup, DmemReading, RegionUse
from memwatch.core.model import Absent
from support.generated.figures import Figures
from support.generated.nvidia import GROUPS


def draw_dmem(figures: Figures, sizes: Sequence[tuple[str, int]]) -> DmemReading:
    """`sizes`: by region, those of the machine's GPUs and of one that no collector reports."""
    choose = figures.choose
    groups = [
        DmemGroup(cgroup, tuple(draw_use(figures, *choose.pick(sizes)) for _ in range(choose.integer(1, 2))))
        for cgroup in dict.fromkeys(choose.many(5, lambda _: choose.pick(GROUPS)))
    ]
    groups = [
        DmemGroup(group.cgroup, tuple({one.region: one for one in group.regions}.values())) for group in groups
    ]
    capacity = {region: size for region, size in sizes if choose.chance(60)}
    return DmemReading(tuple(groups), choose.pick(("/", "/a", "/a/b")), capacity)


def draw_use(figures: Figures, region: str, size: int) -> RegionUse:
    choose = figures.choose
    limit = None if choose.chance(30) else figures.reported(figures.part(size))
    return RegionUse(
        region,
        min(UNLIMITED_BYTES - 1, figures.reported(figures.part(size) >> 1)),
        None if limit is None or limit >= UNLIMITED_BYTES else limit,
        figures.reported(figures.part(size)) if choose.chance(50) else Absent.NOT_SUPPORTED,
        min(UNLIMITED_BYTES, figures.part(size) >> 2) if choose.chance(20) else 0,
    )
