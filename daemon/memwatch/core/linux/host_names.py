"""Names of this machine: from the kernel, /etc/hostname and /etc/hosts.

DNS and /etc/resolv.conf are not used: on a foreign network their content comes from other machines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from memwatch.core.linux.files import Roots
from memwatch.core.options import HOST_NAME
from memwatch.core.runtime.regular_file import read_regular

# Lists that block advertising make /etc/hosts larger than 1 MiB. The machine's own lines come first.
MAX_FILE_BYTES = 64 * 1024
# Names of every machine in Debian's /etc/hosts, which say nothing about this one.
SHARED_NAMES = frozenset({"localhost", "ip6-localhost", "ip6-loopback"})


class OwnNames:
    """Names of this machine in lower case. The files are read again only if they have changed."""

    def __init__(self, roots: Roots, kernel_name: Callable[[], str] = socket.gethostname) -> None:
        self._files = roots.rootfs / "etc/hostname", roots.rootfs / "etc/hosts"
        self._kernel_name = kernel_name
        self._state: object = None
        self._names: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        name = self._kernel_name()
        state = name, *map(_modified, self._files)
        if state != self._state:
            self._names, self._state = find_names(name, *map(_read_text, self._files)), state
        return self._names


def find_names(kernel_name: str, hostname_file: str, hosts_file: str) -> frozenset[str]:
    """Return the host names, their first labels, and all names in lines of /etc/hosts that contain one of them."""
    given = {_plain(word) for word in (kernel_name, *hostname_file.split()[:1])}
    names = {name for name in given if HOST_NAME.fullmatch(name)} - SHARED_NAMES
    names |= {name.partition(".")[0] for name in names}
    own_lines = [line for line in _host_lines(hosts_file) if not names.isdisjoint(line)]
    return frozenset(names).union(name for line in own_lines for name in line if HOST_NAME.fullmatch(name))


def _host_lines(text: str) -> Iterator[list[str]]:
    """Yield the names of each line: hosts(5)."""
    for line in text.splitlines():
        _, *names = line.partition("#")[0].split() or [""]
        yield [_plain(name) for name in names]


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _modified(path: Path) -> int:
    """Return the modification time, 0 if the file does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _read_text(path: Path) -> str:
    try:
        return read_regular(path, MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
