"""Identity of a machine and its boot."""

from __future__ import annotations

import platform
import socket

from msgspec import Struct

from memwatch.core.linux.files import Roots, read_boot_id, read_once
from memwatch.core.printable import decode, printable
from memwatch.core.snapshot import UNKNOWN_BOOT


class Identity(Struct, frozen=True):
    """Identity of the machine and its boot. `kernel` (its release) and `cpu` (aarch64) are empty if not known."""

    host: str
    boot_id: str
    simulated: bool = False
    kernel: str = ""
    cpu: str = ""


def read_host(roots: Roots) -> str:
    """Return the name of the machine from procfs, else that of this process's host. It may change at any time."""
    return _word(roots, "sys/kernel/hostname") or printable(socket.gethostname())


def read_identity(roots: Roots) -> Identity:
    """Return host name, boot id and kernel from procfs, else the host name and CPU of this process.

    Linux has `arch` since 6.1.
    """
    return Identity(
        read_host(roots),
        read_boot_id(roots.procfs) or UNKNOWN_BOOT,
        kernel=_word(roots, "sys/kernel/osrelease"),
        cpu=_word(roots, "sys/kernel/arch") or platform.machine(),
    )


def _word(roots: Roots, path: str) -> str:
    return decode((read_once(roots.procfs / path) or b"").strip())
