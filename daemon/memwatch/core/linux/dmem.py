"""Limits and use of device memory by cgroup: the dmem controller, Linux 6.14 and newer. Not a collector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from memwatch.core.model import Absent, Bytes

# `drm/0000:03:00.0/vram 1234`. NVIDIA's driver R615 registers `nvidia/<pci>/vidmem`.
_LINE = re.compile(rb"^([!-~]{1,200}) (\d{1,19}|max)$", re.MULTILINE)
# No machine has that much memory: a limit above it is none.
UNLIMITED_BYTES = 1 << 62


class RegionUse(Struct, frozen=True):
    """One region of device memory in one cgroup, descendants included. `limit_bytes` None: no limit.

    `protected_bytes` (dmem.min and dmem.low) is kept while other cgroups need memory.
    """

    region: str
    used_bytes: Bytes
    limit_bytes: int | None = None
    peak_bytes: Bytes = Absent.NOT_SUPPORTED
    protected_bytes: int = 0


class DmemGroup(Struct, frozen=True):
    """One cgroup, by its path below the mount point: `/` or `/system.slice/ollama.service`."""

    cgroup: str
    regions: tuple[RegionUse, ...]

    @property
    def rank_bytes(self) -> int | None:
        """Return the largest limit of the group, by which groups are ranked; None if it has none."""
        return max([one.limit_bytes for one in self.regions if one.limit_bytes is not None], default=None)


class DmemReading(Struct, frozen=True):
    """Cgroups with a limit, or with device memory in use.

    `own` is the cgroup of memwatchd below the mount point. `capacity_bytes` is the size of each region, which only
    the root cgroup has: a container does not see it. `left_out` counts limited cgroups beyond the maximum.
    """

    groups: tuple[DmemGroup, ...] = ()
    own: str = "/"
    capacity_bytes: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


def parse_regions(data: bytes | None) -> dict[str, int | None]:
    """Parse a dmem file: bytes by region, None for `max`."""
    found: dict[str, int | None] = {}
    for region, figure in _LINE.findall(data or b""):
        limit = None if figure == b"max" else int(figure)
        found[region.decode()] = None if limit is not None and limit >= UNLIMITED_BYTES else limit
    return found


def parse_sizes(data: bytes | None) -> dict[str, int]:
    """Parse a dmem file without limits, such as dmem.current."""
    return {region: size for region, size in parse_regions(data).items() if size is not None}


def region_address(region: str) -> str | None:
    """Return the part of a region's name that is a PCI address."""
    return next((part for part in region.split("/") if re.fullmatch(r"[0-9a-fA-F:]+\.[0-7]", part)), None)


def is_within(cgroup: str, parent: str) -> bool:
    """Return True if a cgroup is `parent` or below it."""
    return cgroup == parent or cgroup.startswith(parent.rstrip("/") + "/")


def nearest(cgroup: str, candidates: Iterable[str]) -> str | None:
    """Return the innermost of some cgroups that contains this one, itself excluded."""
    around = [one for one in candidates if one != cgroup and is_within(cgroup, one)]
    return max(around, key=len, default=None)
