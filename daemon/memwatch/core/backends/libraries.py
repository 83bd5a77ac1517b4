"""Find installed shared libraries without loading them: in the linker's cache, then in the usual folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from memwatch.core.backends.files import read_head

TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# Library folders of distributions, WSL, Jetson Linux, CUDA's compatibility package and NixOS, which the linker's
# cache may not list.
FOLDERS = (
    *(f"usr/lib/{triplet}{within}" for triplet in TRIPLETS for within in ("", "/nvidia", "/tegra")),
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/cuda/compat",
    "usr/local/lib",
    "run/opengl-driver/lib",
)
MAX_CACHE_BYTES = 8 << 20
MAX_PATH_LENGTH = 4096


def parse_linker_cache(cache: bytes) -> Iterator[str]:
    """Return the paths in /etc/ld.so.cache. Both of its formats end each path with a NUL."""
    for part in cache.split(b"\0"):
        if part.startswith(b"/") and len(part) <= MAX_PATH_LENGTH:
            yield os.fsdecode(part)


def find_library(name: str, rootfs: Path, folders: Sequence[str] = ()) -> str | None:
    """Return the path, on the machine under `rootfs`, of a library `name` or, with a version, `name.6.2`.

    The target of a link is not checked: an absolute link cannot be followed from outside.
    """
    wanted = re.compile(re.escape(name) + r"(?:\.[0-9]{1,9}){0,4}")
    for path in parse_linker_cache(read_head(rootfs / "etc/ld.so.cache", MAX_CACHE_BYTES)):
        if wanted.fullmatch(os.path.basename(path)) and os.path.lexists(rootfs / path.lstrip("/")):
            return path
    for folder in (*folders, *FOLDERS):
        if os.path.lexists(rootfs / folder / name):
            return f"/{folder}/{name}"
    return None
