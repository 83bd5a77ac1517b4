"""Read a report of `memwatch doctor --report` from a stranger, in memory, without trusting anything in it."""

from __future__ import annotations

import json
import posixpath
import re
import tarfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

from msgspec import Struct

from memwatch.reporting.report.contents import (
    DRIVERS,
    FILES,
    FOLDER,
    FORMAT,
    KEY,
    MAX_FILES,
    README,
    RECORDING,
    SUMMARY,
)
from memwatch.reporting.report.sources import FOLDERS

Json = Any

MAX_PACKED_BYTES = 32 << 20
MAX_BYTES = 64 << 20
MAX_MEMBER_BYTES = 16 << 20
MAX_LINKS = 5000
MAX_DEPTH = 40
ROOTS = ("proc", "sys", "root")
_PART = re.compile(r"[A-Za-z0-9_.,:@+\\=~-]{1,200}")
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class BundleError(Exception):
    """A file that is not a usable report: one sentence with the reason."""


class Bundle(Struct, frozen=True):
    """A report. `files` and `links` are keyed by paths that begin with proc, sys or root."""

    summary: dict[str, Json]
    drivers: dict[str, Json]
    recording: bytes
    files: dict[str, bytes]
    links: dict[str, str]
    folders: tuple[str, ...] = ()


def read_bundle(path: Path) -> Bundle:
    """Read and check the whole file in memory. Raises BundleError."""
    members = read_members(unpack(path))
    summary = _object(members, SUMMARY)
    if summary.get(KEY) != FORMAT:
        raise BundleError(f"it is a report of format {str(summary.get(KEY))[:20]}, this reads format {FORMAT}")
    files = {name.removeprefix(f"{FILES}/"): data for name, data in members.items() if name.startswith(f"{FILES}/")}
    links = check_links(summary.get("files"), files)
    folders = check_folders(summary.get("files"), {*files, *links})
    drivers = _object(members, DRIVERS) if DRIVERS in members else {}
    return Bundle(summary, drivers, members.get(RECORDING, b""), files, links, folders)


def unpack(path: Path) -> bytes:
    """Return the tar file. No more than MAX_BYTES are unpacked."""
    if path.stat().st_size > MAX_PACKED_BYTES:
        raise BundleError(f"it has {path.stat().st_size:,} bytes, more than {MAX_PACKED_BYTES:,}")
    inflater = zlib.decompressobj(31)
    try:
        data = inflater.decompress(path.read_bytes(), MAX_BYTES + 1)
    except zlib.error as error:
        raise BundleError(f"it is not a .tar.gz: {error}") from None
    if len(data) > MAX_BYTES:
        raise BundleError(f"it unpacks to more than {MAX_BYTES:,} bytes")
    if not inflater.eof:
        raise BundleError("it is truncated")
    return data


def read_members(data: bytes) -> dict[str, bytes]:
    """Return the files by name, without the top folder."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=BytesIO(data), mode="r:") as archive:
            for member in archive:
                name = check_member(member)
                if name in found:
                    raise BundleError(f"{member.name!r} is in it twice")
                if len(found) >= MAX_FILES + 10:
                    raise BundleError(f"it has more than {MAX_FILES} files")
                file = archive.extractfile(member)
                found[name] = file.read() if file else b""
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BundleError(f"its tar file is damaged: {error}") from None
    if clash := next((name for name in found for folder in _folders(name) if folder in found), None):
        raise BundleError(f"{clash!r} is below another file")
    return found


def check_member(member: tarfile.TarInfo) -> str:
    """Return the name of a regular file below the top folder."""
    if member.type not in _PLAIN or member.issparse():
        raise BundleError(f"{member.name!r} is not a plain file; a report has no links, folders or devices")
    if member.size > MAX_MEMBER_BYTES:
        raise BundleError(f"{member.name!r} has {member.size:,} bytes, more than {MAX_MEMBER_BYTES:,}")
    top, _, name = member.name.partition("/")
    if top != FOLDER or not is_safe(name):
        raise BundleError(f"{member.name!r} is not a path below {FOLDER}/")
    known = name in (SUMMARY, DRIVERS, RECORDING, README)
    if not known and (name.split("/")[0] != FILES or name.split("/")[1:2] not in [[root] for root in ROOTS]):
        raise BundleError(f"{member.name!r} is not a file of a report")
    return name


def is_safe(path: str) -> bool:
    """Return True for a relative path of usual characters that never goes up."""
    parts = path.split("/")
    return len(parts) <= MAX_DEPTH and all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)


def check_links(part: Json, files: dict[str, bytes]) -> dict[str, str]:
    """Return the symbolic links of report.json with relative targets that stay below their root."""
    links = part.get("links", {}) if isinstance(part, dict) else None
    if not isinstance(links, dict) or len(links) > MAX_LINKS:
        raise BundleError(f"{SUMMARY} has no valid list of links")
    found = {str(path): check_link(str(path), str(target)) for path, target in links.items()}
    for path in (*files, *found):
        if path in files and path in found:
            raise BundleError(f"{path!r} is a file and a link")
        if through := next((folder for folder in _folders(path) if folder in found), None):
            raise BundleError(f"{path!r} is below the link {through!r}")
    return found


def check_folders(part: Json, taken: set[str]) -> tuple[str, ...]:
    """Return the folders of report.json that no file or link has the name of."""
    folders = part.get("folders", []) if isinstance(part, dict) else None
    if not isinstance(folders, list) or not {str(name) for name in folders} <= set(FOLDERS):
        raise BundleError(f"{SUMMARY} has no valid list of folders")
    if clash := next((name for name in folders for one in (name, *_folders(name)) if one in taken), None):
        raise BundleError(f"{clash!r} is a folder and something else")
    return tuple(folders)


def check_link(path: str, target: str) -> str:
    """Return the relative target of a link. A device of a process points to the machine's own root/dev."""
    root = path.split("/")[0]
    if not is_safe(path) or root not in ROOTS:
        raise BundleError(f"the link {path!r} is not below {', '.join(ROOTS)}")
    if target.startswith("/dev/"):
        up = "../" * path.count("/")
        target = f"{up}root{target}"
        root = "root/dev"
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if not is_safe(end) or not end.startswith(f"{root}/"):
        raise BundleError(f"the link {path!r} leaves its folder: {target!r}")
    return target


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _object(members: dict[str, bytes], name: str) -> dict[str, Json]:
    if name not in members:
        raise BundleError(f"it has no {name}: it is not a report of memwatch doctor --report")
    try:
        found = json.loads(members[name])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BundleError(f"{name} is not a JSON object")
    return found
