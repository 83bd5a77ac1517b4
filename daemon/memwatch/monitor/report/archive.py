"""Write the archive of a report: a .tar.gz that tells nothing about who made it."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = "memwatch-report"
MODE = 0o600


def build_archive(members: Mapping[str, bytes], unix: int) -> bytes:
    """Return the archive with these files, without the names of users, groups and the archive itself."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime, member.mode = len(data), unix, 0o644
            archive.addfile(member, io.BytesIO(data))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=unix) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def write_archive(path: Path, data: bytes, overwrite: bool) -> None:
    """Write a file that only its owner can read. Raises FileExistsError if it exists, unless `overwrite` is set.

    A link is never followed: with `overwrite`, the new file replaces it.
    """
    if overwrite:
        _replace(path, data)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        path.unlink()
        raise


def _replace(path: Path, data: bytes) -> None:
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
