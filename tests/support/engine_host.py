"""A folder like /proc with processes of model servers, their sockets and their network namespaces."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from memwatch.core.linux.files import Roots

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


class EngineHost:
    """`add` makes a process; `listen` a socket of one. A process is in our network unless it has its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc: Path = root / "proc"
        self.net: Path = self.proc / "net"
        self._rows: dict[Path, list[str]] = {}
        self._inode = 9000
        self.net.mkdir(parents=True)
        root.chmod(0o755)  # pytest's folders are those of one user
        (root / "etc").mkdir()
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nana:x:1000:1000::/home/ana:/bin/sh\n")
        self._write(self.net)

    @property
    def roots(self) -> Roots:
        return Roots(self.proc, self.root / "sys", self.root)

    def add(
        self,
        pid: int,
        argv: Sequence[str],
        parent: int = 1,
        uid: int = 1000,
        start: int = 77,
        resident_bytes: int = 20480,
        name: str = "x",
    ) -> Path:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "net").mkdir()
        columns = [pid, f"({name})", "S", parent, pid, pid, 0, -1, 0x400100, *[0] * 10, 20, 0]
        columns += [start, 999, resident_bytes // mmap.PAGESIZE, *[0] * 28]
        (folder / "stat").write_text(" ".join(map(str, columns)) + "\n")
        (folder / "status").write_text(
            f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\nGroups:\t\n"
        )
        (folder / "root").symlink_to(self.root)
        (folder / "cmdline").write_bytes(b"".join(os.fsencode(one) + b"\0" for one in argv))
        self._write(folder / "net")
        return folder

    def listen(
        self,
        pid: int,
        port: int,
        host: str = "127.0.0.1",
        uid: int = 1000,
        held: bool = True,
        own_net: bool = False,
    ) -> None:
        self._inode += 1
        nets = [self.proc / str(pid) / "net"] if own_net else [self.net, *self.proc.glob("[0-9]*/net")]
        for net in nets:
            self._rows.setdefault(net, []).append(self._row(host, port, uid))
            self._write(net)
        if held:
            (self.proc / str(pid) / "fd" / str(self._inode)).symlink_to(f"socket:[{self._inode}]")

    def _row(self, host: str, port: int, uid: int) -> str:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        packed = socket.inet_pton(family, host)
        words = "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))
        rest = (
            f"{'0' * len(words)}:0000 0A 00000000:00000000 00:00000000 00000000 {uid:5d} 0 {self._inode} 1 0 100 0"
        )
        return f"   0: {words}:{port:04X} {rest} 0 10 0\n"

    def _write(self, net: Path) -> None:
        rows = self._rows.get(net, [])
        for name, width in (("tcp", 8), ("tcp6", 32)):
            own = [row for row in rows if len(row.split()[1].split(":")[0]) == width]
            (net / name).write_text(HEADER + "".join(own))
