"""The file of a recording: gzip, a header line and then a line a snapshot. `zcat FILE | jq` reads it as well.

Each line is flushed, so a recorder that is killed loses at most one, and has a checksum, since gzip's own comes too
late to tell which line is wrong. A recorder that goes on with a file appends a part with a header of its own.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from memwatch import __version__

FORMAT = 1
KEY = "memwatch_recording"
GZIP = 31  # zlib's way to ask for a gzip header and its CRC-32
MAGIC = b"\x1f\x8b\x08"
# Deflated, so at most 4 MiB of lines at a time.
PIECE = 4096
MAX_HEADER_BYTES = 4096
MAX_LINE_BYTES = 16 << 20


class RecordingError(Exception):
    """A file that cannot be played or gone on with, in a sentence that says what would work."""


class DamagedPart(Struct, frozen=True):
    """Stands in for what cannot be read between two lines."""

    why: str


class RecordingFile:
    """Open for writing: new, or the next part of a recording. `write` raises OSError where the disk does."""

    def __init__(self, path: Path, level: int = 6, **header: Any) -> None:  # noqa: ANN401  JSON
        """Raises RecordingError for what cannot be written to, and for what is no recording."""
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, GZIP)
        self.lines = 0
        try:
            if path.exists() and path.stat().st_size:
                first_line(path)
            self._file = path.open("ab")
            self.write(json.dumps({KEY: FORMAT, "version": __version__, **header}).encode())
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RecordingError(f"{path} cannot be recorded to: {why}") from None

    def write(self, line: bytes) -> None:
        data = self._deflater.compress(_with_sum(line)) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        self._file.write(data)
        self._file.flush()
        self.lines += 1

    def close(self) -> None:
        self._file.write(self._deflater.flush(zlib.Z_FINISH))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _with_sum(line: bytes) -> bytes:
    """A line of JSON with the CRC-32 of what follows it as its first field."""
    return b'{"crc":%d,%s\n' % (zlib.crc32(line[1:]), line[1:])


def _without_sum(line: bytes) -> bytes | DamagedPart:
    head, comma, rest = line.partition(b",")
    number = head.removeprefix(b'{"crc":')
    if comma and number.isdigit() and len(number) <= 10 and int(number) == zlib.crc32(rest):
        return b"{" + rest
    return DamagedPart("a line is not what was written")


def first_line(path: Path) -> dict[str, Any]:
    """The header. Raises RecordingError for a file that is no recording, or one of another version."""
    try:
        with path.open("rb") as file:
            line = _inflate(zlib.decompressobj(GZIP), file.read(MAX_HEADER_BYTES)).partition(b"\n")[0]
        header = json.loads(line)
        version = header[KEY]
    except (OSError, zlib.error, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it does not begin like one"
        raise RecordingError(
            f"{path} is no recording ({why.lower()}); make one with: memwatch record FILE --for 10m"
        ) from None
    if version != FORMAT:
        by = str(header.get("version", "another version"))[:40]
        raise RecordingError(
            f"{path} is a recording of format {version!r:.20}, made by memwatchd {by}; this reads format {FORMAT}: "
            f"play it with memwatchd {by}"
        )
    return dict(header)


def read_lines(path: Path) -> Iterator[bytes | DamagedPart]:
    """Every line, headers included; Broken where something cannot be read, and then what comes after it."""
    with path.open("rb") as file:
        at: int | None = 0
        while at is not None:
            file.seek(at)
            at = yield from _part(file, at)


def _part(file: BinaryIO, start: int) -> Generator[bytes | DamagedPart, None, int | None]:
    """The lines of one gzip member; returns where the next one begins, if one does."""
    inflater, rest, fed = zlib.decompressobj(GZIP), b"", start
    while not inflater.eof:
        piece = file.read(PIECE)
        if not piece:
            yield DamagedPart("it ends in the middle")
            return None
        fed += len(piece)
        before = inflater.copy()
        try:
            rest += inflater.decompress(piece)
            why = "a line without an end" if len(rest) > MAX_LINE_BYTES and b"\n" not in rest else ""
        except zlib.error as error:
            rest, why = rest + _inflate(before, piece), str(error).rpartition(": ")[2]
        *lines, rest = rest.split(b"\n")
        yield from map(_without_sum, lines)
        if why:
            yield DamagedPart(why)
            return _next_part(file, start + 1)
    end = fed - len(inflater.unused_data)
    file.seek(end)
    return end if file.read(1) else None


def _inflate(inflater: Any, data: bytes) -> bytes:  # noqa: ANN401  zlib names no type
    """What can be had of these bytes before they make no sense; zlib itself would keep all of it back."""
    found: list[bytes] = []
    with suppress(zlib.error):
        found.extend(inflater.decompress(data[at : at + 1]) for at in range(len(data)))
    return b"".join(found)


def _next_part(file: BinaryIO, start: int) -> int | None:
    """Where after `start` another part begins that can be read, if one does."""
    file.seek(start)
    tail = b""
    at = start
    while piece := file.read(PIECE):
        window = tail + piece
        found = window.find(MAGIC)
        while found >= 0:
            place = at - len(tail) + found
            if _begins_a_part(file, place):
                return place
            found = window.find(MAGIC, found + 1)
        at += len(piece)
        tail = window[-2:]
        file.seek(at)
    return None


def _begins_a_part(file: BinaryIO, place: int) -> bool:
    file.seek(place)
    try:
        return KEY.encode() in zlib.decompressobj(GZIP).decompress(file.read(512), 256)
    except zlib.error:
        return False
