"""Files of a model that a process serves, given as a path or as the name of a repository of Hugging Face."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")
# Folder of downloads below a user's home (huggingface_hub), and that of the image of TGI.
CACHES = (".cache/huggingface/hub", "/data")
MAX_PASSWD_BYTES = 1 << 20


def find_model(name: str, root: Path, home: str, cwd: str) -> Path | None:
    """Return the folder or file of a model, None if it is not there or may not be read.

    `root`: the root folder of the process, which differs from ours in a container. `home` and `cwd` are inside it.
    """
    for path in candidates(name, home, cwd):
        inside = root / path.lstrip("/")
        snapshot = (
            newest_snapshot(inside) if REPOSITORY.fullmatch(name) and inside.name.startswith("models--") else inside
        )
        if snapshot is not None and os.access(snapshot, os.R_OK):
            return snapshot
    return None


def candidates(name: str, home: str, cwd: str) -> Iterator[str]:
    if not name or "\0" in name:
        return
    if name.startswith("/"):
        yield name
        return
    if cwd:
        yield f"{cwd}/{name}"
    if REPOSITORY.fullmatch(name):
        folder = "models--" + name.replace("/", "--")
        for cache in CACHES:
            yield f"{cache}/{folder}" if cache.startswith("/") else f"{home}/{cache}/{folder}"


def newest_snapshot(folder: Path) -> Path | None:
    """Return the files of the branch `main` in a folder of huggingface_hub."""
    commit = (read_regular(folder / "refs/main", 64) or b"").decode("ascii", "replace").strip()
    return folder / "snapshots" / commit if COMMIT.fullmatch(commit) else None


def find_home(root: Path, uid: int | None) -> str:
    """Return the home of a user, from the file of that root; empty if it is not known."""
    data = read_regular(root / "etc/passwd", MAX_PASSWD_BYTES) or b""
    rows = [line.split(b":") for line in data.splitlines()]
    return next((os.fsdecode(row[5]) for row in rows if len(row) == 7 and row[2] == str(uid).encode()), "")


def read_regular(path: Path, max_bytes: int) -> bytes | None:
    """Return the first bytes of a regular file, None for anything else.

    Users and containers own these files: opening a FIFO would wait for its writer.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    with open(file, "rb") as opened:
        try:
            return opened.read(max_bytes) if stat.S_ISREG(os.fstat(file).st_mode) else None
        except OSError:
            return None
