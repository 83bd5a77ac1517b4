"""Child process that holds memory: `with holder(512 << 20) as pid`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def holder(size: int, *, uid: int | None = None, cgroups: tuple[Path, ...] = ()) -> Iterator[int]:
    """Yield its pid once it holds this many bytes; as another user and in these cgroups, if given."""
    command = [sys.executable, "-S", "-E", __file__, str(size), str(uid or ""), *map(str, cgroups)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child.pid
        child.communicate()


def main(size: int, uid: str, cgroups: list[str]) -> None:
    """Hold memory. Another user may not be permitted to start a Python in a home folder, so setuid comes later."""
    for cgroup in cgroups:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    if uid:
        os.setuid(int(uid))
    block = bytearray(b"x") * size
    print("held", flush=True)
    sys.stdin.read()
    del block


@contextmanager
def real_cgroup(path: str) -> Iterator[tuple[Path, ...]]:
    """Yield a cgroup of this machine in each hierarchy of memory and units; nothing if none may be created."""
    roots = [CGROUPS / "memory", CGROUPS / "systemd"] if (CGROUPS / "memory").is_dir() else [CGROUPS]
    made: list[Path] = []
    try:
        with suppress(OSError):
            for root in roots:
                for part in [*reversed(Path(path).parents[:-1]), Path(path)]:
                    if not (root / part).exists():
                        (root / part).mkdir()
                        made.append(root / part)
        complete = all((root / path).is_dir() for root in roots)
        yield tuple(root / path for root in roots) if complete else ()
    finally:
        for folder in reversed(made):
            folder.rmdir()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
