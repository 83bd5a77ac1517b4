"""Scopes of names in a cgroup path: a unit's name is unique in one container or one user manager only.

Not a collector. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memwatch.core.owners import WITHIN

# Kata before 3.0 prefixes it: `pod<uid>/kata_<id>` (kata-containers#4128).
_ID = re.compile(r"(?:^(?:kata_)?|[-:])([0-9a-f]{64})(?:\.scope)?$")
# Containers of ECS on Fargate and on managed instances. The number tells those of a task apart.
_ECS_ID = re.compile(r"^[0-9a-f]{32}-\d{1,10}$")
# The kind of container by the text before its id, or by the cgroup around it (cgroupfs): `docker-<id>.scope`,
# `/docker/<id>`, `libpod-<id>.scope`, `/libpod_parent/libpod-<id>`.
_RUNTIMES = (("docker", "docker"), ("libpod", "podman"))
# LXC, Incus and LXD. Proxmox VE, and LXC before 3.1: `/lxc/<name>`; LXC 3.1 to 4.0: `/lxc.payload/<name>`.
_LXC = re.compile(r"^lxc\.payload\.(.+)$")
_LXC_PARENTS = ("lxc", "lxc.payload")
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
    """Return the first 12 characters of the container id in a part, or the id of ECS, of which they name the task.

    conmon monitors a container from outside.
    """
    if _ECS_ID.match(part):
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
