"""Write the archive of a report: a .tar.gz that tells nothing about who made it."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import tarfile
from collections.abc import Mapping
from pathlib import Path

from memwatch.core.linux.user_files import folder_to_write

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

    A link is never followed: with `overwrite`, the new file replaces it. Root goes through no folder that is a link
    of another user.
    """
    with folder_to_write(path) as (folder, place):
        fresh = place.with_name(f".{place.name}.{secrets.token_hex(8)}") if overwrite else place
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE, dir_fd=folder
        )
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            if overwrite:
                os.replace(fresh, place, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(fresh, dir_fd=folder)
            raise
