"""Machine whose GPU programs can use: libcuda.so.1 or libamdhip64.so, and a kernel that accounts for them.

with simulated_cuda(tmp_path, sample_nvml.RTX_4090) as environ:
    subprocess.run([...], env=environ)  # cuMemAlloc there changes NVML, nvidia-smi and /proc of the machine
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import socketserver
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from simulators.nvml_machine import CACHE, FLAGS
from support import http_site
from support.paths import TESTS

NEEDED_PROGRAMS = ("cc",)

MIB = 1 << 20
SOURCES = TESTS / "simulators/driver"
CONTEXT_BYTES = 312 * MIB
# Bytes of one process by kind: context, device, managed, pinned.
Bytes = Mapping[str, int]
Holdings = Mapping[int, Bytes]
Free = Callable[[Holdings], tuple[int, int]]
Show = Callable[[Holdings], None]
ON_CARD = ("context", "device", "managed")
ALL = (*ON_CARD, "pinned")


def built_driver(name: str, source: str) -> Path:
    """Return the library, built unless these sources were built before."""
    sources = [SOURCES / "kernel.c", SOURCES / source]
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in (*sources, SOURCES / "kernel.h")))
    library = CACHE.with_name("driver_sim") / digest.hexdigest()[:16] / name
    library.parent.mkdir(parents=True, exist_ok=True)
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            built = Path(scratch, name)
            command = [os.environ.get("CC", "cc"), *FLAGS, "-o", str(built), *map(str, sources)]
            subprocess.run(command, check=True)
            built.replace(library)
    return library


class Kernel(socketserver.ThreadingUnixStreamServer):
    """The kernel's driver: counts the memory of each connected process, and shows the machine after each change."""

    daemon_threads = True

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, str],
        free: Free,
        show: Show,
    ) -> None:
        super().__init__(str(path), Connection)
        self.facts, self.free, self._show = facts, free, show
        self._holdings: dict[int, dict[str, int]] = {}
        self._lock = threading.Lock()

    def change(self, pid: int, kind: str, size: int) -> bool:
        with self._lock:
            if size > self.free(self._holdings)[0]:
                return False
            held = self._holdings.setdefault(pid, {})
            held[kind] = held.get(kind, 0) + size
            self._show(self._holdings)
        return True

    def close_process(self, pid: int) -> None:
        with self._lock:
            self._holdings.pop(pid, None)
            self._show(self._holdings)

    def info(self) -> tuple[int, int]:
        with self._lock:
            return self.free(self._holdings)


class Connection(socketserver.StreamRequestHandler):
    """One process that uses the driver. Its end closes the connection."""

    server: Kernel

    def handle(self) -> None:
        peer = self.request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", peer)[0]
        with suppress(ConnectionError):
            for line in self.rfile:
                self.wfile.write(f"{self._answer(pid, line.decode().split())}\n".encode())
        self.server.close_process(pid)

    def _answer(self, pid: int, words: list[str]) -> str:
        if words[0] in self.server.facts:
            return f"0 {self.server.facts[words[0]]}"
        if words[0] == "info":
            return "0 {} {}".format(*self.server.info())
        kind, size = ("context", CONTEXT_BYTES) if words[0] == "context" else (words[1], int(words[2]))
        return "0" if self.server.change(pid, kind, size) else "-2"


def held(holdings: Holdings, *kinds: str) -> int:
    return sum(size for parts in holdings.values() for kind, size in parts.items() if kind in kinds)


def held_by(holdings: Holdings, pid: int, *kinds: str) -> int:
    return held({pid: holdings[pid]}, *kinds)


class Host:
    """Folder of a machine, in which processes appear and System RAM shrinks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = (folder / "proc/meminfo").read_text()
        self._pids: set[int] = set()

    @property
    def environ(self) -> dict[str, str]:
        return {f"MEMWATCHD_{root.upper()}FS": str(self._folder / root) for root in ("proc", "sys", "root")}

    def meminfo(self, name: str) -> int:
        """Return a figure from before any program ran."""
        found = re.search(rf"{name}:\s+(\d+)", self._before)
        assert found is not None
        return int(found[1]) << 10

    def show(self, pids: set[int], used_bytes: int) -> None:
        proc = self._folder / "proc"
        for pid in self._pids - pids:
            (proc / str(pid)).unlink()
        for pid in pids - self._pids:
            (proc / str(pid)).symlink_to(f"/proc/{pid}")
        self._pids = set(pids)
        text = self._before
        changes = {"MemFree": -used_bytes, "MemAvailable": -used_bytes, "NvMapMemUsed": used_bytes}
        for name in changes.keys() & set(re.findall(r"^\w+", text, re.MULTILINE)):
            size = (self.meminfo(name) + changes[name]) >> 10
            text = re.sub(rf"({name}:\s+)\d+", rf"\g<1>{size}", text)
        overwrite(proc / "meminfo", text)


def overwrite(file: Path, text: str) -> None:
    """Write in place and at once: the daemon keeps files open."""
    with file.open("r+b", buffering=0) as opened:
        opened.write(text.encode())
        opened.truncate()


@contextmanager
def serving(facts: Mapping[str, str], free: Free, show: Show) -> Iterator[dict[str, str]]:
    """Serve programs, and yield the environment with which they find the kernel. Paths of sockets are short."""
    show({})
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:
        path = Path(folder, "kernel")
        with http_site.serving(Kernel(path, facts, free, show)):
            yield {"GPU_SIM_SOCKET": str(path)}
