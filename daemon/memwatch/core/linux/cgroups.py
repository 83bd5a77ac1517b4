"""Parsers of cgroup and mountinfo: owners of a process, and the container that this machine is. Not a collector.

A unit's name is unique in one container or one user manager only: names have a scope.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec import Struct

from memwatch.core.linux.files import Roots, maps_every_user, read_once
from memwatch.core.owners import WITHIN
from memwatch.core.printable import printable

# Kata before 3.0 prefixes it: `pod<uid>/kata_<id>` (kata-containers#4128).
_ID = re.compile(r"(?:^(?:kata_)?|[-:])([0-9a-f]{64})(?:\.scope)?$")
# Containers of ECS on Fargate and on managed instances. The number tells those of a task apart.
_ECS_ID = re.compile(r"^[0-9a-f]{32}-\d{1,10}$")
# Containers of Hadoop YARN, of which the numbers name the application, below a folder that the administrator names
# (apache/hadoop#6734). `e17` is the epoch: the starts of its resource manager.
_YARN_ID = re.compile(r"^container_(?:e\d{1,6}_)?\d{13}_\d{4,10}_\d{2,6}_\d{6,12}$")
# The kind of container by the text before its id, or by the cgroup around it (cgroupfs): `docker-<id>.scope`,
# `/docker/<id>`, `libpod-<id>.scope`, `/libpod_parent/libpod-<id>`.
_RUNTIMES = (("docker", "docker"), ("libpod", "podman"))
# LXC, Incus and LXD. Proxmox VE, and LXC before 3.1: `/lxc/<name>`; LXC 3.1 to 4.0: `/lxc.payload/<name>`.
_LXC = re.compile(r"^lxc\.payload\.(.+)$")
_LXC_PARENTS = ("lxc", "lxc.payload")
# Containers whose cgroup is in one with the name of the manager: Mesos names it by a UUID (apache/mesos#551), BPM
# of Cloud Foundry by the job (cloudfoundry/bpm-release#109).
# Nomad with version 1: by the allocation and the task, below the kind of its CPUs.
_MANAGERS = ("mesos", "bpm", "nomad")
_PARTS_OF_NOMAD = ("share", "reserve")
# systemd-nspawn and libvirt's LXC driver. machine-qemu-… is a virtual machine, whose processes are the host's.
_MACHINE = re.compile(r"^(?:machine-(?!qemu\\x2d)(.+)\.scope|systemd-nspawn@(.+)\.service)$")
# A service of any name that runs systemd-nspawn with --keep-unit, as NixOS does with container@<name>.service
# (moby #44402, netdata #20146): the processes of the container are in this cgroup of it.
_KEPT_UNIT = re.compile(r"^(?:[^@]+@)?([^@]+)\.service$")
_PAYLOAD = "payload"
# Processes of the host that run a container: systemd-nspawn itself, and libvirt's controller.
_OUTSIDE = ("supervisor", "libvirt")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_USER_MANAGER = re.compile(r"^user@(\d{1,10})\.service$")
# Prefix of System RAM's source if /proc/meminfo is provided by lxcfs and not by the kernel.
LXCFS = "lxcfs:"
_CONTAINERS = {"docker": "Docker", "lxc": "LXC", "lxc-libvirt": "LXC", "oci": "OCI", "podman": "Podman"}
_CONTAINER_WORD = re.compile(rb"[a-z][a-z0-9-]{0,31}")
_CONTAINER_VARIABLE = re.compile(rb"(?:^|\0)container=([^\0]{1,40})")


class Scope(NamedTuple):
    """A container, or a user's service manager. `end`: the number of parts of the path up to its own cgroup."""

    end: int
    kind: str
    name: str

    @property
    def is_container(self) -> bool:
        return self.kind != "user"

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"


def find_scopes(parts: Sequence[str]) -> list[Scope]:
    """Return the scopes of the parts of a cgroup path, the outermost first."""
    return [scope for at in range(len(parts)) if (scope := _find_scope(parts, at))]


def parse_container_id(part: str) -> str | None:
    """Return the first 12 characters of the container id in a part, or a whole id of ECS or YARN, which is no hash.

    conmon monitors a container from outside.
    """
    if _ECS_ID.match(part) or _YARN_ID.match(part):
        return part
    found = _ID.search(part)
    return found[1][:12] if found and "conmon" not in part else None


def name_container(scopes: Sequence[Scope]) -> str | None:
    """Return the innermost container: its id, or its name, which is unique in the scope around it only."""
    last = next((at for at in reversed(range(len(scopes))) if scopes[at].is_container), None)
    if last is None:
        return None
    if scopes[last].kind not in ("lxc", "nspawn"):
        return scopes[last].name
    return "/".join(scope.name if scope.is_container else scope.label for scope in scopes[: last + 1])


def qualify(name: str, scopes: Iterator[Scope]) -> str:
    """Return a name with the scopes around it, the innermost first. The host's own names are unchanged."""
    return WITHIN.join([name, *(scope.label for scope in reversed(list(scopes)))])


def _find_scope(parts: Sequence[str], at: int) -> Scope | None:
    part, inner = parts[at], parts[at + 1] if at + 1 < len(parts) else None
    if container_id := parse_container_id(part):
        return Scope(at + 1, _find_runtime(part, parts[at - 1] if at else ""), container_id)
    if found := _LXC.match(part):
        return Scope(at + 1, "lxc", found[1])
    if part in _LXC_PARENTS and inner:
        return Scope(at + 2, "lxc", inner)
    if part in _MANAGERS and inner and not any(parts[:at]):
        end = at + 3 if part == "nomad" and inner in _PARTS_OF_NOMAD else at + 2
        return Scope(end, part, parts[end - 1]) if len(parts) >= end else None
    if found := _USER_MANAGER.match(part):
        return Scope(at + 1, "user", found[1])
    found = _MACHINE.match(part)
    if found is not None and inner not in _OUTSIDE:
        return Scope(at + 1, "nspawn", _ESCAPED.sub(_unescape, found[1] or found[2]))
    kept = _KEPT_UNIT.match(part) if inner == _PAYLOAD else None
    return Scope(at + 1, "nspawn", _ESCAPED.sub(_unescape, kept[1])) if kept else None


def _find_runtime(part: str, parent: str) -> str:
    for text, runtime in _RUNTIMES:
        if part.startswith(text) or parent == text:
            return runtime
    return "container"


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


# Jobs of batch systems by their cgroup paths. Not a collector. Pure functions.

# `81`, a job of an array `81[2]`, or with a second number for each run `81.2`; then the name of the server.
_PBS_ID = r"(?P<job>\d{1,20}(?:\[\d{1,20}\])?(?:\.\d{1,20}(?![^/]))?)(?:\.[^/]*)?"
# Form of the path up to the cgroup of the job. Of several jobs the outermost counts.
JOB_PATHS = {
    # cgroup.conf(5); other software may use the name `job_7` as well.
    "Slurm": r"slurm.*?/job_(?P<job>\d{1,20})",
    # Slurm 26.05 names it by the SLUID of the job, unless CgroupJobIdPaths is set.
    "Slurm by SLUID": r"slurmstepd\.scope/(?P<job>s[0-9A-Z]{13})",
    # The hook pbs_cgroups with version 1 (`jobid`) and 2 (`jobs`); its cgroup_prefix is `pbs_jobs` or `pbspro`.
    "PBS": rf"/pbs\w*\.service/(?:jobid|jobs)/{_PBS_ID}",
    "PBS before version 19": rf"/pbs\w*\.slice/pbs\w*-{_PBS_ID}\.slice",
    "Torque": rf"/torque/{_PBS_ID}",
    # /lsf/CLUSTER/job.ID.PID.TIME, for both versions.
    "LSF": r"/lsf/[^/]+/job\.(?P<job>\d{1,20}(?:\[\d{1,20}\])?)(?:\.[^/]*)?",
    # Its units by systemd (OAR 2.5 and 3): the user, and the job.
    "OAR": r"/oar\.slice/oar-u\d{1,10}\.slice/oar-u\d{1,10}-j(?P<job>\d{1,20})\.slice",
    # BASE_CGROUP, the folder EXECUTE with _ for /, and the slot: the number of the job is not in the path.
    "HTCondor": r"/condor_[^/]*?_(?P<job>slot\d{1,9}(?:_\d{1,9})?)(?:@[^/]*)?",
    # The number of the application, as in application_1410901177871_0001.
    "YARN": r"/container_(?:e\d{1,6}_)?(?P<job>\d{13}_\d{4,10})_\d{2,6}_\d{6,12}",
}
_FORMS = [re.compile(f"(?:{form})(?![^/])") for form in JOB_PATHS.values()]


class Job(NamedTuple):
    """Name of a job, and the number of parts of the path up to its own cgroup."""

    name: str
    end: int


def find_job(path: str) -> Job | None:
    """Return the job in a cgroup path: its number, with Slurm perhaps its SLUID, with HTCondor its slot."""
    for form in _FORMS:
        if found := form.search(path):
            return Job(found["job"], path.count("/", 0, found.end()) + 1)
    return None


# `pod<uid>` with cgroupfs, `kubepods-burstable-pod<uid>.slice` with systemd, which replaces each - of the uid by _.
# A runtime with cgroupfs under a kubelet with systemd: `kubepods-pod<uid>.slice:cri-containerd:<id>`.
_POD = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?(?::|$)")
# A zombie's cgroup may be gone; its memory, that of a GPU for example, may not.
_DELETED = " (deleted)"
_OCTAL = re.compile(rb"\\([0-7]{3})")
# Folders in which container runtimes keep the layers of a root file system. containerd creates no marker file.
RUNTIME_FOLDERS = ("/containerd/", "/docker/", "/containers/storage/")
_MARKERS = ("run/systemd/container", ".dockerenv", "run/.containerenv")
# File systems of which a runtime mounts a whole one as the root of a container. Of others it mounts a folder: a
# subvolume of btrfs, `/rootfs` of a device of the device mapper, a folder of the driver vfs.
_LAYERED = ("overlay", "aufs", "zfs", "fuse")


class OwnerNames(Struct, frozen=True):
    """Owners of a process.

    Its systemd unit, the first 12 characters of its container's id (LXC and nspawn: its name), the uid of its
    Kubernetes pod, and the number, SLUID or slot of its batch job. A unit of a container or of a user manager is
    named with it: `ollama.service in lxc/101`. It is not the host's unit of that name.
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
            paths.update(dict.fromkeys(parts[1].split(","), parts[2].removesuffix(_DELETED)))
    return paths


def parse_owners(paths: dict[str, str]) -> OwnerNames:
    """Return the owners of a process from the paths of `parse_cgroup`.

    The innermost counts: the service in a user's session, the inner container of nested ones.
    """
    home = paths.get("name=systemd") or paths.get("") or ""
    candidates = [_find_all(path) for path in dict.fromkeys([home, *paths.values()])]

    def first(kind: str) -> str | None:
        return next((path[kind].name for path in candidates if kind in path), None)

    unit = candidates[0].get("unit")
    return OwnerNames(unit.name if unit else None, first("container"), first("pod"), first("job"))


def owner_folders(place: OwnerNames, path: str) -> dict[str, str]:
    """Return the cgroup path of each of a process's owners, by kind. Each is a prefix of the process's path."""
    parts = path.split("/")
    return {
        kind: "/".join(parts[: found.end])
        for kind, found in _find_all(path).items()
        if found.name == getattr(place, kind)
    }


class _Found(NamedTuple):
    """An owner in a path. `end`: the number of parts of the path up to its own cgroup."""

    name: str
    end: int


def _find_all(path: str) -> dict[str, _Found]:
    """Return the innermost owner of each kind."""
    parts = path.split("/")
    scopes = find_scopes(parts)
    found = {
        "unit": _find_unit(parts, scopes),
        "container": _find_container(scopes),
        "pod": next((_Found(uid, at + 1) for at, uid in _backwards(parts, _parse_pod)), None),
        "job": _find_job(path, scopes),
    }
    return {kind: owner for kind, owner in found.items() if owner is not None}


def _backwards(parts: Sequence[str], of_part: Callable[[str], str | None]) -> Iterator[tuple[int, str]]:
    for at in reversed(range(len(parts))):
        if name := of_part(parts[at]):
            yield at, name


def _find_container(scopes: Sequence[Scope]) -> _Found | None:
    ends = [scope.end for scope in scopes if scope.is_container]
    name = name_container(scopes)
    return _Found(name, ends[-1]) if name else None


def _parse_pod(part: str) -> str | None:
    found = _POD.search(part)
    return found[1].replace("_", "-") if found else None


def _find_job(path: str, scopes: Sequence[Scope]) -> _Found | None:
    """Find the outermost job. Its number is unique in one cluster, and so in one container."""
    if not (job := find_job(path)):
        return None
    around = (scope for scope in scopes if scope.is_container and scope.end < job.end)
    return _Found(qualify(job.name, around), job.end)


def _find_unit(parts: Sequence[str], scopes: Sequence[Scope]) -> _Found | None:
    """Find the innermost service or scope, else the innermost slice.

    The scope of a container is unique by the container's id.
    """
    for suffixes in ((".service", ".scope"), ".slice"):
        for at in reversed(range(len(parts))):
            part = parts[at]
            if part.endswith(suffixes) and ":" not in part:
                around = (scope for scope in scopes if scope.end <= at and not parse_container_id(part))
                return _Found(qualify(part, around), at + 1)
    return None


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
    if any(os.path.exists(roots.rootfs / marker) for marker in _MARKERS) and not _is_own_machine(roots):
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
    return mount.kind == "overlay" and any(folder in mount.options for folder in RUNTIME_FOLDERS)


def sees_all_processes(second_process: bytes | None, contained: bool) -> bool:
    """Return True in the initial PID namespace, the only one in which process 2 is kthreadd.

    Outside a container a missing process 2 is only hidden from this user (`hidepid`).
    """
    return not contained or _is_kthreadd(second_process)


def _is_kthreadd(second_process: bytes | None) -> bool:
    return (second_process or b"").startswith(b"2 (kthreadd) ")


def is_container_limited(roots: Roots) -> bool:
    """Return True if lxcfs is mounted over /proc/meminfo, as in LXC containers: it shows the container's limits."""
    places = ("/proc/meminfo", str(roots.procfs / "meminfo"))
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(mount.point in places and mount.kind.startswith("fuse") for mount in mounts)


def describe_container(roots: Roots) -> str | None:
    """Return the kind of container, such as "Podman, rootless". None if it is not known.

    systemd and the container managers write it to /run/systemd/container or to the environment of process 1;
    https://systemd.io/CONTAINER_INTERFACE.
    """
    name = _CONTAINERS.get(word := _read_container_word(roots), word)
    if not name:
        return None
    if is_in_user_namespace(roots):
        return f"{name}, {'unprivileged' if name == 'LXC' else 'rootless'}"
    return name


def _read_container_word(roots: Roots) -> str:
    if os.path.exists(roots.rootfs / "run/.containerenv"):
        return "podman"
    if os.path.exists(roots.rootfs / ".dockerenv"):
        return "docker"
    found = _CONTAINER_VARIABLE.search(read_once(roots.procfs / "1/environ") or b"")
    word = (read_once(roots.rootfs / "run/systemd/container") or (found[1] if found else b"")).strip()
    if not word and is_on_lxcfs(roots):
        return "lxc"
    return word.decode() if _CONTAINER_WORD.fullmatch(word) else ""


def is_in_user_namespace(roots: Roots) -> bool:
    """Return True if the user ids differ from the machine's: root here is another user outside."""
    return not maps_every_user(roots.procfs / "self/uid_map")
