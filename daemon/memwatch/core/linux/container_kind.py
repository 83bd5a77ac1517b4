"""Kind of the container that this machine is, and lxcfs, which replaces /proc/meminfo there. Not a collector."""

from __future__ import annotations

import os
import re

from memwatch.core.linux.cgroups import is_on_lxcfs, parse_mountinfo
from memwatch.core.linux.files import Roots, read_once


def is_container_limited(roots: Roots) -> bool:
    """Return True if lxcfs is mounted over /proc/meminfo, as in LXC containers: it shows the container's limits."""
    places = ("/proc/meminfo", str(roots.procfs / "meminfo"))
    mounts = parse_mountinfo(read_once(roots.procfs / "self/mountinfo") or b"")
    return any(mount.point in places and mount.kind.startswith("fuse") for mount in mounts)


# Prefix of System RAM's source if /proc/meminfo is provided by lxcfs and not by the kernel.
LXCFS = "lxcfs:"


_NAMES = {"docker": "Docker", "lxc": "LXC", "lxc-libvirt": "LXC", "oci": "OCI", "podman": "Podman"}
_WORD = re.compile(rb"[a-z][a-z0-9-]{0,31}")
_ENVIRON = re.compile(rb"(?:^|\0)container=([^\0]{1,40})")
# All user ids, as in the first user namespace (user_namespaces(7)).
_WHOLE_MAP = [b"0", b"0", b"4294967295"]


def describe_container(roots: Roots) -> str | None:
    """Return the kind of container, such as "Podman, rootless". None if it is not known.

    systemd and the container managers write it to /run/systemd/container or to the environment of process 1;
    https://systemd.io/CONTAINER_INTERFACE.
    """
    name = _NAMES.get(word := _read_word(roots), word)
    if not name:
        return None
    if is_in_user_namespace(roots):
        return f"{name}, {'unprivileged' if name == 'LXC' else 'rootless'}"
    return name


def _read_word(roots: Roots) -> str:
    if os.path.exists(roots.rootfs / "run/.containerenv"):
        return "podman"
    if os.path.exists(roots.rootfs / ".dockerenv"):
        return "docker"
    found = _ENVIRON.search(read_once(roots.procfs / "1/environ") or b"")
    word = (read_once(roots.rootfs / "run/systemd/container") or (found[1] if found else b"")).strip()
    if not word and is_on_lxcfs(roots):
        return "lxc"
    return word.decode() if _WORD.fullmatch(word) else ""


def is_in_user_namespace(roots: Roots) -> bool:
    """Return True if the user ids differ from the machine's: root here is another user outside."""
    lines = (read_once(roots.procfs / "self/uid_map") or b"").split(b"\n")
    return bool(lines[0]) and lines[0].split() != _WHOLE_MAP
