"""Idle processes by the hundred: `with sleepers(300) as pids`.

They are children of a separate process, which runs this module. All of them end when their pipe is closed, however
this process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """Yield the pids of this many idle processes."""
    command = [sys.executable, "-S", "-E", __file__, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == count
        yield pids
        parent.communicate()


def main(count: int) -> None:
    waiting, wake = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(wake)
            os.close(0)
            os.read(waiting, 1)
            os._exit(0)
        pids.append(pid)
    print(*pids, flush=True)
    sys.stdin.read()
    os.close(wake)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
