"""What the files about control groups say: who belongs where, and whether this is a container. No collector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from memwatch.linux.files import Roots, read_once

_CONTAINER_ID = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_LXC = re.compile(r"^lxc\.payload\.([^/]+)$")
# `pod<uid>` of cgroupfs, `kubepods-burstable-pod<uid>.slice` of systemd, which writes _ for each - of the uid.
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?$")
_JOB = re.compile(r"^job_(\d{1,20})$")
_OCTAL = re.compile(rb"\\([0-7]{3})")
# Where container runtimes keep the layers of a root file system. containerd leaves no marker file behind.
_RUNTIME_FOLDERS = ("/containerd/", "/docker/", "/containers/storage/")


class Place(Struct, frozen=True):
    """Where a process belongs: its systemd unit, the first 12 characters of its container's id (LXC: its name),
    the uid of its Kubernetes pod, the number of its Slurm job."""

    unit: str | None
    container: str | None
    pod: str | None = None
    job: str | None = None


class Mount(Struct, frozen=True):
    """A line of mountinfo: `root` of the file system is seen at `point`."""

    root: str
    point: str
    kind: str
    options: str


def parse_cgroup(data: bytes) -> dict[str, str]:
    """The paths of a process by hierarchy: `memory`, `name=systemd`, …, and the one of version 2 as ``""``."""
    paths: dict[str, str] = {}
    for line in data.split(b"\n")[:-1]:
        parts = line.decode("utf-8", "backslashreplace").split(":", 2)
        if len(parts) == 3 and parts[0].isdecimal() and parts[2].startswith("/"):
            paths.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return paths


def place_of(paths: dict[str, str]) -> Place:
    """Whom a process belongs to, by the paths of `parse_cgroup`.

    The innermost wins: of a service in a user's session, the service; of a container in a container, the inner.
    """
    home = paths.get("name=systemd") or paths.get("") or ""
    candidates = list(dict.fromkeys([home, *paths.values()]))

    def first(of_part: Callable[[str], str | None]) -> str | None:
        return next(
            (found for path in candidates for part in reversed(path.split("/")) if (found := of_part(part))), None
        )

    return Place(_unit_of(home), first(_container_in), first(_pod_in), _job_of(candidates))


def _container_in(part: str) -> str | None:
    found = _CONTAINER_ID.search(part)
    # conmon is the process that watches a container from outside.
    if found:
        return None if "conmon" in part else found[1][:12]
    found = _LXC.match(part)
    return found[1] if found else None


def _pod_in(part: str) -> str | None:
    found = _POD.search(part)
    return found[1].replace("_", "-") if found else None


def _job_in(part: str) -> str | None:
    found = _JOB.match(part)
    return found[1] if found else None


def _job_of(candidates: Iterable[str]) -> str | None:
    """Others may call a cgroup `job_7` as well, so Slurm has to be on the way."""
    for path in candidates:
        if "slurm" in path:
            parts = path.split("/")
            return next((found for part in parts if (found := _job_in(part))), None)
    return None


def folders_of(place: Place, path: str) -> dict[str, str]:
    """The cgroups that a process's owners are, by kind of owner: each the beginning of its path."""
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
    "container": _container_in,
    "pod": _pod_in,
    "job": _job_in,
}


def _unit_of(path: str) -> str | None:
    parts = [part for part in reversed(path.split("/")) if ":" not in part]
    units = [part for part in parts if part.endswith((".service", ".scope"))]
    slices = [part for part in parts if part.endswith(".slice")]
    return next(iter(units + slices), None)


@lru_cache(maxsize=1)
def parse_mountinfo(data: bytes) -> tuple[Mount, ...]:
    """Several ask at the same look, and it hardly ever changes: the last one is kept."""
    mounts = []
    for line in data.split(b"\n")[:-1]:
        front, dash, back = line.partition(b" - ")
        left, right = front.split(b" "), back.split(b" ")
        if dash and len(left) >= 6 and len(right) >= 3:
            mounts.append(Mount(_path(left[3]), _path(left[4]), _path(right[0]), _path(right[2])))
    return tuple(mounts)


def _path(field: bytes) -> str:
    """Mountinfo writes blanks and backslashes in octal."""
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), field).decode("utf-8", "backslashreplace")


def under(roots: Roots, point: str) -> Path:
    """Where a mount point of the host is to be found from here."""
    path = PurePosixPath(point)
    if path.is_relative_to("/sys"):
        return roots.sysfs / path.relative_to("/sys")
    return roots.rootfs / point.lstrip("/")


def in_container(roots: Roots) -> bool:
    """Whether the machine under these roots is a container.

    Docker, Podman and systemd leave a file. Kubernetes with containerd does not: there the first process
    belongs to a container's cgroup, or, in a cgroup namespace, the root file system is made of image layers.
    """
    markers = ("run/systemd/container", ".dockerenv", "run/.containerenv")
    if any((roots.rootfs / marker).exists() for marker in markers):
        return True
    if place_of(parse_cgroup(read_once(roots.procfs / "1/cgroup") or b"")).container:
        return True
    # Only the mount at the root that is looked at counts: a daemon in a container may be shown the host's.
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(_is_image(mount) for mount in mounts if Path(mount.point) == roots.rootfs)


def _is_image(mount: Mount) -> bool:
    return mount.kind == "overlay" and any(folder in mount.options for folder in _RUNTIME_FOLDERS)


def sees_all_processes(second_process: bytes | None, contained: bool) -> bool:
    """Whether this is the first process id namespace: there, and nowhere else, process 2 is the kernel's.

    Outside of a container a missing process 2 is hidden from this user (`hidepid`), which is another matter.
    """
    return not contained or (second_process or b"").startswith(b"2 (kthreadd) ")
