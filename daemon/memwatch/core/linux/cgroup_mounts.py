"""Mount points and file names of the cgroup hierarchy that accounts memory. Not a collector."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct

from memwatch.core.linux.cgroups import Mount, parse_cgroup, parse_mountinfo, under
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable, read_once
from memwatch.core.model import Absent, Bytes, Quality

# Version 1 writes almost 2^63 in place of no limit, and so does the kernel log.
UNLIMITED_BYTES = 1 << 60
_GPU_LINE = re.compile(rb"^gpu\w* \d+$", re.MULTILINE)


class CgroupVersion(Struct, frozen=True):
    """File names of a cgroup version, and the reclaimable part of its usage.

    Usage includes the page cache. Memory that the kernel would reclaim under pressure (the file LRUs and, if
    reported, reclaimable slab) is subtracted, as in MemAvailable: "used" then means the same for a container as for
    the machine. tmpfs is on the anonymous LRUs, so it stays used in both.

    `throttle`: the limit above which the kernel slows the processes and kills none. Version 1 has none: its soft
    limit counts only when the machine is short of memory.
    """

    limit: str
    usage: str
    events: str
    reclaimable: tuple[str, ...]
    source: str
    quality: Quality
    throttle: str | None = None


V2 = CgroupVersion(
    "memory.max",
    "memory.current",
    "memory.events",
    ("inactive_file", "active_file", "slab_reclaimable"),
    "cgroup2:memory.current less file cache and reclaimable slab",
    Quality.DERIVED,
    "memory.high",
)
# Documentation/admin-guide/cgroup-v1/memory.rst, 5.5, calls usage_in_bytes a "fuzz value".
V1 = CgroupVersion(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.oom_control",
    ("total_inactive_file", "total_active_file"),
    "cgroup1:memory.usage_in_bytes less file cache",
    Quality.ESTIMATED,
)


class OwnCgroup(Struct, frozen=True):
    """The cgroup of this process: the mount point of its hierarchy's `root`, and the path from there."""

    version: CgroupVersion
    mount: Path
    path: PurePosixPath
    root: str = "/"

    @property
    def folders(self) -> list[Path]:
        """Return all visible cgroup folders, from the outermost to this process's own."""
        return [self.mount / parent for parent in reversed([self.path, *self.path.parents])]


def parse_figure(data: bytes) -> int:
    text = data.strip()
    if not text.isdigit() or len(text) > 20:
        raise ParseError(f"cgroup: {data[:40]!r} is not a number of bytes")
    return int(text)


def parse_limit(data: bytes) -> int | None:
    """Parse a limit in bytes; None for `max`. Version 1 writes 2^63 less a page instead, which exceeds any RAM, and
    before Linux 3.19 2^64 − 1 (RESOURCE_MAX of res_counter).

    The kernel never prints another figure above that: it is one below zero, and no "none". Raises ParseError.
    """
    text = data.strip()
    if text == b"max" or text == b"%d" % ((1 << 64) - 1):
        return None
    figure = parse_figure(data)
    if figure >= 1 << 63:
        raise ParseError(f"cgroup: a limit of {figure} bytes is below zero")
    return figure


def charges_gpu(memory_stat: bytes | None) -> bool:
    """Return True if the kernel charges GPU memory to cgroups: memory.stat has a `gpu` line then."""
    return _GPU_LINE.search(memory_stat or b"") is not None


def find_own_cgroup(cgroup: bytes, mountinfo: bytes, roots: Roots) -> OwnCgroup:
    """Find this process's cgroup. In a hybrid layout version 1 accounts memory; version 2 has no memory files."""
    paths, mounts = parse_cgroup(cgroup), parse_mountinfo(mountinfo)
    if "memory" in paths:
        version, path = V1, paths["memory"]
        found = [mount for mount in mounts if mount.kind == "cgroup" and "memory" in mount.options.split(",")]
    elif "" in paths:
        version, path = V2, paths[""]
        found = [mount for mount in mounts if mount.kind == "cgroup2"]
    else:
        raise SourceUnavailable("self/cgroup lists no hierarchy with the memory controller")
    if not found:
        raise SourceUnavailable(f"self/mountinfo: the hierarchy with {version.usage} is not mounted")
    mount = next((mount for mount in found if _covers(mount, path)), found[0])
    way = PurePosixPath(path).relative_to(mount.root) if _covers(mount, path) else PurePosixPath()
    return OwnCgroup(version, under(roots, mount.point), way, mount.root)


def _covers(mount: Mount, path: str) -> bool:
    """Return True if the cgroup is visible in this mount. Otherwise the mount's root is the closest visible one."""
    here = PurePosixPath(path)
    return ".." not in here.parts and here.is_relative_to(mount.root)


class UnifiedTree(Struct, frozen=True):
    """The version 2 tree: `folder` is the mount point of its cgroup `root`."""

    folder: Path
    root: str

    def own_path(self, cgroup: bytes) -> str:
        """Return the path below the mount point, `/` first, of a process with this cgroup file."""
        path = PurePosixPath(parse_cgroup(cgroup).get("", "/"))
        return f"/{path.relative_to(self.root)}" if path != self._top and self._holds(path) else "/"

    @property
    def _top(self) -> PurePosixPath:
        return PurePosixPath(self.root)

    def _holds(self, path: PurePosixPath) -> bool:
        return ".." not in path.parts and path.is_relative_to(self._top)


def find_unified_tree(roots: Roots, missing: str = "") -> UnifiedTree:
    """Find the version 2 tree; a hybrid layout has it beside those of version 1. `missing`: what else is missing
    without it."""
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    found = next((mount for mount in mounts if mount.kind == "cgroup2"), None)
    if found is None:
        raise SourceUnavailable(f"self/mountinfo: no cgroup2 is mounted{missing}")
    return UnifiedTree(under(roots, found.point), found.root)


def list_children(folder: Path, most: int) -> list[tuple[Path, int]]:
    """List child groups with their inodes, at most that many; none if the group was removed in the meantime."""
    try:
        with os.scandir(folder) as entries:
            groups = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            return [(Path(entry.path), entry.inode()) for entry in islice(groups, max(0, most))]
    except OSError:
        return []


class CgroupUsage:
    """Memory usage of cgroups by their path in the hierarchy: `memory.current`, including the page cache."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._folder: Path | None = None
        self._root = PurePosixPath()
        self._file = ""

    def refresh(self) -> None:
        """Find the hierarchy's mount point again."""
        folder = self._roots.procfs / "self"
        try:
            cgroup, mountinfo = (folder / "cgroup").read_bytes(), (folder / "mountinfo").read_bytes()
            home = find_own_cgroup(cgroup, mountinfo, self._roots)
        except (OSError, SourceUnavailable):
            self._folder = None
        else:
            self._folder, self._root, self._file = home.mount, PurePosixPath(home.root), home.version.usage

    def read(self, path: str) -> Bytes | None:
        """Return a cgroup's usage. None if its memory is not accounted, or it is not visible in the mount."""
        here = PurePosixPath(path)
        if self._folder is None or ".." in here.parts or not here.is_relative_to(self._root):
            return None
        try:
            return parse_figure((self._folder / here.relative_to(self._root) / self._file).read_bytes())
        except PermissionError:
            return Absent.NOT_PERMITTED
        except ParseError:
            return Absent.INCONSISTENT
        except (OSError, ValueError):  # ValueError: a NUL in the path, which no real path contains
            return None
