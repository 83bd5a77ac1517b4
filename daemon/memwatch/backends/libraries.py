"""Which shared libraries are installed, without loading them: the linker's cache, then the usual folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from memwatch.backends.files import head_of

TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# Where distributions, WSL, Jetson's L4T, CUDA's compatibility package and NixOS put what no cache may list.
FOLDERS = (
    *(f"usr/lib/{triplet}{within}" for triplet in TRIPLETS for within in ("", "/nvidia", "/tegra")),
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/cuda/compat",
    "usr/local/lib",
    "run/opengl-driver/lib",
)
MOST_CACHE_BYTES = 8 << 20
LONGEST_PATH = 4096


def parse_linker_cache(cache: bytes) -> Iterator[str]:
    """The paths in /etc/ld.so.cache. Both of its formats end each with a NUL, so the rest need not be known."""
    for part in cache.split(b"\0"):
        if part.startswith(b"/") and len(part) <= LONGEST_PATH:
            yield os.fsdecode(part)


def find_library(name: str, rootfs: Path, folders: Sequence[str] = ()) -> str | None:
    """The path, as seen on that machine, of a library called `name` or, with a version behind it, `name.6.2`.

    A link counts wherever it leads: an absolute one cannot be followed from outside.
    """
    wanted = re.compile(re.escape(name) + r"(?:\.[0-9]{1,9}){0,4}")
    for path in parse_linker_cache(head_of(rootfs / "etc/ld.so.cache", MOST_CACHE_BYTES)):
        if wanted.fullmatch(os.path.basename(path)) and os.path.lexists(rootfs / path.lstrip("/")):
            return path
    for folder in (*folders, *FOLDERS):
        if os.path.lexists(rootfs / folder / name):
            return f"/{folder}/{name}"
    return None
