"""A machine whose /proc hides processes of other users."""

from __future__ import annotations

import os
from pathlib import Path

from support.container_host import simulated
from support.daemon_process import POWERLESS

GID = 4242
_MOUNT = 'mount -t proc -o hidepid=2,gid="$1" proc /proc && shift && exec "$@"'


def hidden_machine(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return (command that starts the daemon, its arguments) on a machine with hidepid=2.

    As root, the machine is this one: a private mount namespace with a real procfs, in which a daemon without
    capabilities cannot see processes that have them. Other users may not mount a procfs, so they get a folder with
    its mount table.
    """
    root = folder / "root"  # without the marker of a container that the tests may run in
    root.mkdir()
    if os.geteuid() != 0:
        return [], simulated(folder / "host", mount=f"rw,gid={GID},hidepid=invisible")
    return ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(GID), *POWERLESS], ("--rootfs", str(root))
