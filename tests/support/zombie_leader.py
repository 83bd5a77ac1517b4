"""Process whose first thread ends while another continues and keeps its memory: `with zombie_leader(64) as one`.

The kernel lists it as a zombie then, without memory and files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from support.paths import TESTS
from support.waiting import wait_until

MIB = 1 << 20
# Number of the system call that ends a single thread.
EXIT = {"x86_64": 60, "aarch64": 93}


class ZombieLeader(Struct, frozen=True):
    """Process `pid`, and `thread`, which continues until `end` is called."""

    process: subprocess.Popen[str]
    thread: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def end_first_thread(self) -> None:
        """End the first thread, and wait until the kernel lists the process as a zombie."""
        self._write("first")
        wait_until(lambda: b") Z " in Path(f"/proc/{self.pid}/stat").read_bytes())

    def end(self) -> None:
        """End the other thread as well, which leaves a real zombie until it is reaped."""
        self._write("other")
        wait_until(lambda: os.listdir(f"/proc/{self.pid}/task") == [str(self.pid)])

    def _write(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()


@contextmanager
def zombie_leader(mib: int) -> Iterator[ZombieLeader]:
    """Start a process that holds this many MiB, with both threads running."""
    command = [sys.executable, "-m", "support.zombie_leader", str(mib)]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        try:
            yield ZombieLeader(process, int(process.stdout.readline()))
        finally:
            process.kill()


def main(mib: int) -> None:
    block = bytearray(b"x") * (mib * MIB)
    first_may_end = threading.Event()
    threading.Thread(target=_go_on, args=(first_may_end, block)).start()
    first_may_end.wait()
    ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)


def _go_on(first_may_end: threading.Event, held: bytearray) -> None:
    """Keep running and hold the memory until the order to end."""
    print(threading.get_native_id(), flush=True)
    for word in sys.stdin:
        if word == "other\n":
            os._exit(not held)
        first_may_end.set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
