"""Parsers of cgroup and mountinfo: owners of a process, and detection of containers. Not a collector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from memwatch.linux.files import Roots, read_once
from memwatch.printable import printable

_CONTAINER_ID = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_LXC = re.compile(r"^lxc\.payload\.([^/]+)$")
# `pod<uid>` with cgroupfs, `kubepods-burstable-pod<uid>.slice` with systemd, which replaces each - of the uid by _.
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?$")
_JOB = re.compile(r"^job_(\d{1,20})$")
_OCTAL = re.compile(rb"\\([0-7]{3})")
# Folders in which container runtimes keep the layers of a root file system. containerd creates no marker file.
_RUNTIME_FOLDERS = ("/containerd/", "/docker/", "/containers/storage/")
_MARKERS = ("run/systemd/container", ".dockerenv", "run/.containerenv")
# File systems of which a runtime mounts a whole one as the root of a container. Of others it mounts a folder: a
# subvolume of btrfs, `/rootfs` of a device of the device mapper, a folder of the driver vfs.
_LAYERED = ("overlay", "aufs", "zfs", "fuse")


class OwnerNames(Struct, frozen=True):
    """Owners of a process.

    Its systemd unit, the first 12 characters of its container's id (LXC: its name), the uid of its Kubernetes pod,
    and the number of its Slurm job.
    """

    unit: str | None
    container: str | None
    pod: str | None = None
    job: str | None = None

    def printable(self) -> OwnerNames:
        """Return the names for display. A cgroup's name may contain anything except a newline."""
        names = (self.unit, self.container, self.pod, self.job)
        return OwnerNames(*[None if name is None else printable(name) for name in names])


class Mount(Struct, frozen=True):
    """A line of mountinfo: `root` of the file system on `device` is mounted at `point`."""

    root: str
    point: str
    kind: str
    options: str
    device: str


def parse_cgroup(data: bytes) -> dict[str, str]:
    """Parse a process's cgroup paths by hierarchy: `memory`, `name=systemd`, …, and ``""`` for version 2."""
    paths: dict[str, str] = {}
    for line in data.split(b"\n")[:-1]:
        parts = line.decode("utf-8", "backslashreplace").split(":", 2)
        if len(parts) == 3 and parts[0].isdecimal() and parts[2].startswith("/"):
            paths.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return paths


def parse_owners(paths: dict[str, str]) -> OwnerNames:
    """Return the owners of a process from the paths of `parse_cgroup`.

    The innermost counts: the service in a user's session, the inner container of nested ones.
    """
    home = paths.get("name=systemd") or paths.get("") or ""
    candidates = list(dict.fromkeys([home, *paths.values()]))

    def first(of_part: Callable[[str], str | None]) -> str | None:
        return next(
            (found for path in candidates for part in reversed(path.split("/")) if (found := of_part(part))), None
        )

    return OwnerNames(_find_unit(home), first(_parse_container), first(_parse_pod), _find_job(candidates))


def _parse_container(part: str) -> str | None:
    found = _CONTAINER_ID.search(part)
    # conmon monitors a container and runs outside it.
    if found:
        return None if "conmon" in part else found[1][:12]
    found = _LXC.match(part)
    return found[1] if found else None


def _parse_pod(part: str) -> str | None:
    found = _POD.search(part)
    return found[1].replace("_", "-") if found else None


def _parse_job(part: str) -> str | None:
    found = _JOB.match(part)
    return found[1] if found else None


def _find_job(candidates: Iterable[str]) -> str | None:
    # Other software may use a cgroup name such as `job_7` as well, so the path must contain "slurm".
    for path in candidates:
        if "slurm" in path:
            parts = path.split("/")
            return next((found for part in parts if (found := _parse_job(part))), None)
    return None


def owner_folders(place: OwnerNames, path: str) -> dict[str, str]:
    """Return the cgroup path of each of a process's owners, by kind. Each is a prefix of the process's path."""
    parts = path.split("/")
    found: dict[str, str] = {}
    for kind, of_part in _PARTS.items():
        name = getattr(place, kind)
        ends = [at for at, part in enumerate(parts) if name and of_part(part) == name]
        if ends:
            found[kind] = "/".join(parts[: ends[-1] + 1])
    return found


_PARTS: dict[str, Callable[[str], str | None]] = {
    "unit": lambda part: part,
    "container": _parse_container,
    "pod": _parse_pod,
    "job": _parse_job,
}


def _find_unit(path: str) -> str | None:
    parts = [part for part in reversed(path.split("/")) if ":" not in part]
    units = [part for part in parts if part.endswith((".service", ".scope"))]
    slices = [part for part in parts if part.endswith(".slice")]
    return next(iter(units + slices), None)


@lru_cache(maxsize=1)
def parse_mountinfo(data: bytes) -> tuple[Mount, ...]:
    """Parse mountinfo. The last result is cached: it rarely changes, and several callers need it per sample."""
    mounts = []
    for line in data.split(b"\n")[:-1]:
        front, dash, back = line.partition(b" - ")
        left, right = front.split(b" "), back.split(b" ")
        if dash and len(left) >= 6 and len(right) >= 3:
            mounts.append(Mount(_path(left[3]), _path(left[4]), _path(right[0]), _path(right[2]), _path(left[2])))
    return tuple(mounts)


def _path(field: bytes) -> str:
    """Decode a path of mountinfo, in which blanks and backslashes are octal escapes."""
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), field).decode("utf-8", "backslashreplace")


def under(roots: Roots, point: str) -> Path:
    """Return the path of a host's mount point below `roots`."""
    path = PurePosixPath(point)
    if path.is_relative_to("/sys"):
        return roots.sysfs / path.relative_to("/sys")
    return roots.rootfs / point.lstrip("/")


def in_container(roots: Roots) -> bool:
    """Return True if the machine under these roots is a container.

    Docker, Podman and systemd-nspawn create a marker file. Kubernetes with containerd does not: there process 1 is
    in a container's cgroup, or, in a cgroup namespace, the root file system consists of image layers. LXC without
    systemd has neither, but its files in /proc are those of lxcfs.
    """
    if any((roots.rootfs / marker).exists() for marker in _MARKERS) and not _is_own_machine(roots):
        return True
    if parse_owners(parse_cgroup(read_once(roots.procfs / "1/cgroup") or b"")).container:
        return True
    if is_on_lxcfs(roots):
        return True
    # Only the mount at `rootfs` counts: a daemon in a container may be given the host's root.
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(_is_image(mount) for mount in mounts if Path(mount.point) == roots.rootfs)


def _is_own_machine(roots: Roots) -> bool:
    """Return True if the kernel's threads are visible and the root is a whole file system.

    Virtual machines made from a container image contain its marker files: seen in a Firecracker machine with an
    H100, with /.dockerenv and /run/systemd/container, and ext4 on /dev/vda as root. A container with `--pid=host`
    sees the kernel's threads as well, but its root has layers, or is a folder of the host's file system.
    """
    if not _is_kthreadd(read_once(roots.procfs / "2/stat")):
        return False
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    above = [mount for mount in mounts if roots.rootfs.absolute().is_relative_to(mount.point)]
    # Of several mounts on one folder the last is on top: the root of an initramfs is below the real one.
    root = max(reversed(above), key=lambda mount: len(mount.point), default=None)
    return root is not None and root.root == "/" and not root.kind.startswith(_LAYERED)


def is_on_lxcfs(roots: Roots) -> bool:
    """Return True if lxcfs is mounted over files in /proc, as in LXC containers and never on their host."""
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(mount.kind == "fuse.lxcfs" and mount.point.startswith("/proc/") for mount in mounts)


def _is_image(mount: Mount) -> bool:
    return mount.kind == "overlay" and any(folder in mount.options for folder in _RUNTIME_FOLDERS)


def sees_all_processes(second_process: bytes | None, contained: bool) -> bool:
    """Return True in the initial PID namespace, the only one in which process 2 is kthreadd.

    Outside a container a missing process 2 is only hidden from this user (`hidepid`).
    """
    return not contained or _is_kthreadd(second_process)


def _is_kthreadd(second_process: bytes | None) -> bool:
    return (second_process or b"").startswith(b"2 (kthreadd) ")
