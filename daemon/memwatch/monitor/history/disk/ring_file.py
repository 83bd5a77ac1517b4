"""A ring file of fixed size: records of whole blocks, each with its own checksum.

The file is allocated before it is used, so that a full disk cannot prevent writing. It is not mapped: access to a
mapping of a truncated file kills the process with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from memwatch.core.runtime.own_files import ForeignFileError, open_own

BLOCK = 4096
MAGIC = b"MWR1"
# Start of the magic in every version. The last byte is the version.
FAMILY = b"MWR"
# Magic, kind, run, length, blocks of the file, sequence, boot time, wall time, boot id. The CRC-32 of these and the
# payload follows.
HEAD = struct.Struct("<4sBxxxIIIQdd16s")
CRC = struct.Struct("<I")
HEAD_BYTES = HEAD.size + CRC.size
MAX_PAYLOAD_BYTES = 1 << 20
FILL_BYTES = 256 << 10
# Errors of posix_fallocate on file systems that do not support it.
NO_ALLOCATION = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})
MAX_RUNS, MAX_RECORDS = 1 << 31, 1 << 62
# From this number on a file is rewritten with new numbers, so a daemon never runs out of them.
LATE_RECORDS = MAX_RECORDS >> 1
# The end of the year 9999.
LAST_UNIX = 253_402_300_800.0
# Kind of a record that marks all damage before it as reported.
REPAIRED = 0


class Stamp(Struct, frozen=True):
    """Time and writer of a record. `run` counts starts of the daemon, over all boots."""

    run: int
    boottime: float
    wall: float
    boot: bytes


class Record(Struct, frozen=True):
    """One intact record. Its payload is read from the file when needed."""

    kind: int
    seq: int
    stamp: Stamp
    block: int
    length: int


class RingContents(Struct, frozen=True):
    """Content of a file: records in the order in which they were written, and damaged blocks.

    `damaged`: damaged blocks by offset. `lost`: number of missing records.
    """

    records: tuple[Record, ...] = ()
    damaged: tuple[tuple[int, bytes], ...] = ()
    lost: int = 0


class IncompatibleFileError(OSError):
    """The path of a ring is not a file of this version and must not be written to."""


class RingFile:
    """One open file. Call `read`, which finds the write position, then `prepare`. All methods may raise OSError."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.blocks: int = max(2, size_bytes // BLOCK)
        self.ready: bool = False
        self._at = 0
        self._seq = 0
        self._fd = _open(path)

    def read(self) -> RingContents:
        """Read all intact records. Raises Unusable if another version wrote the file."""
        size = os.fstat(self._fd).st_size
        found = list(_scan_blocks(self._fd, -(-size // BLOCK)))
        whole = sorted((one for one in found if one.record), key=lambda one: one.seq)
        if whole:
            self._seq, self._at = whole[-1].seq, whole[-1].end
        elif any(one.data.startswith(FAMILY) and not one.data.startswith(MAGIC) for one in found):
            self.close()
            raise IncompatibleFileError(errno.EINVAL, "was written by another version of memwatchd", str(self.path))
        return _select_records(found, whole, size)

    @property
    def fits(self) -> bool:
        """Return True if the file is not larger than its limit and has enough sequence numbers left."""
        return os.fstat(self._fd).st_size <= self.blocks * BLOCK and self._seq < LATE_RECORDS

    def prepare(self, contents: RingContents) -> None:
        """Allocate the file, so that no later write fails on a full disk. A file that does not fit is rewritten."""
        if not self.fits:
            self._rewrite(contents.records)
        _allocate(self._fd, self.blocks * BLOCK)
        self.ready = True

    def append(self, kind: int, stamp: Stamp, payload: bytes) -> int:
        """Write a record, return the bytes written. It survives the end of this process, but no power loss yet."""
        if len(payload) > MAX_PAYLOAD_BYTES or blocks_for(len(payload)) > self.blocks:
            raise OSError(errno.EFBIG, f"a record of {len(payload)} bytes does not fit", str(self.path))
        seq, count, at = self._seq + 1, blocks_for(len(payload)), self._at
        head = HEAD.pack(
            MAGIC, kind, stamp.run, len(payload), self.blocks, seq, stamp.boottime, stamp.wall, stamp.boot
        )
        data = head + CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload
        written = 0
        if at + count > self.blocks:
            # Overwrite the rest of the previous lap: it would look like lost records.
            written += self._write(at, b"\0" * ((self.blocks - at) * BLOCK))
            at = 0
        written += self._write(at, data.ljust(count * BLOCK, b"\0"))
        self._seq, self._at = seq, at + count
        return written

    def payload(self, record: Record) -> bytes:
        return os.pread(self._fd, record.length, record.block * BLOCK + HEAD_BYTES)

    def sync(self) -> None:
        """Wait until everything written would survive a power loss."""
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, block: int, data: bytes) -> int:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], block * BLOCK + done)
        return done

    def _rewrite(self, records: tuple[Record, ...]) -> None:
        """Rewrite the file with the newest records that fit."""
        room, kept = self.blocks, []
        for record in reversed(records):
            room -= blocks_for(record.length)
            if room < 0:
                break
            kept.append((record, self.payload(record)))
        os.ftruncate(self._fd, 0)
        self._at = self._seq = 0
        for record, payload in reversed(kept):
            self.append(record.kind, record.stamp, payload)


def blocks_for(length: int) -> int:
    """Return the number of blocks of a record with a payload of `length` bytes."""
    return -(-(HEAD_BYTES + length) // BLOCK)


def _allocate(fd: int, size: int) -> None:
    """Allocate `size` bytes. If the file system does not support that, extend the file with zeros.

    In that case glibc writes zeros itself, musl returns EOPNOTSUPP, and macOS has no such function.
    """
    try:
        getattr(os, "posix_fallocate", _no_allocation)(fd, 0, size)
    except OSError as error:
        if error.errno not in NO_ALLOCATION:
            raise
        at = os.fstat(fd).st_size
        while at < size:
            at += os.pwrite(fd, b"\0" * min(FILL_BYTES, size - at), at)


def _no_allocation(*_: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _open(path: Path) -> int:
    """Open the file, or create it. Links are not followed, and other users' files are rejected."""
    try:
        return open_own(path, os.O_RDWR)
    except ForeignFileError as error:
        raise IncompatibleFileError(error.errno, error.strerror, str(path)) from None
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return open_own(path, os.O_RDONLY)


class _BlockContent(Struct, frozen=True):
    """A block with data: a record that ends before block `end`, or None and the data of the damaged block."""

    block: int
    end: int
    seq: int
    file_blocks: int
    record: Record | None
    data: bytes


def _scan_blocks(fd: int, blocks: int) -> Iterator[_BlockContent]:
    block = 0
    while block < blocks:
        data = os.pread(fd, BLOCK, block * BLOCK)
        found = _read_block(fd, block, data) if data.strip(b"\0") else None
        if found is not None:
            yield found
        block = block + 1 if found is None else found.end


def _read_block(fd: int, block: int, data: bytes) -> _BlockContent:
    nothing = _BlockContent(block, block + 1, 0, 0, None, data)
    if not data.startswith(MAGIC) or len(data) < HEAD_BYTES:
        return nothing
    _, kind, run, length, file_blocks, seq, boottime, wall, boot = HEAD.unpack_from(data)
    if length > MAX_PAYLOAD_BYTES or not _is_plausible(run, seq, boottime, wall):
        return nothing
    count = blocks_for(length)
    if count > 1:
        data += os.pread(fd, (count - 1) * BLOCK, (block + 1) * BLOCK)
    payload = data[HEAD_BYTES : HEAD_BYTES + length]
    (crc,) = CRC.unpack_from(data, HEAD.size)
    if len(payload) != length or crc != zlib.crc32(payload, zlib.crc32(data[: HEAD.size])):
        return _BlockContent(block, block + 1, seq, 0, None, data[:BLOCK])
    record = Record(kind, seq, Stamp(run, boottime, wall, boot), block, length)
    return _BlockContent(block, block + count, seq, file_blocks, record, b"")


def _is_plausible(run: int, seq: int, boottime: float, wall: float) -> bool:
    """Return True for plausible values: the next numbers fit into their fields, and times are valid dates."""
    return run <= MAX_RUNS and seq <= MAX_RECORDS and 0 <= boottime < LAST_UNIX and 0 <= wall < LAST_UNIX


def _select_records(found: list[_BlockContent], whole: list[_BlockContent], size: int) -> RingContents:
    """Distinguish overwritten records from damaged ones.

    Damage is a missing number between others, a torn last record, or a file that became shorter.
    """
    records = tuple(one.record for one in whole if one.record is not None)
    spoilt = tuple((one.block * BLOCK, one.data) for one in found if one.record is None)
    if not records:
        return RingContents((), spoilt, int(bool(spoilt)))
    mended = max((record.seq for record in records if record.kind == REPAIRED), default=records[0].seq)
    since = sum(record.seq >= mended for record in records)
    lost = records[-1].seq - mended + 1 - since
    newest = whole[-1]
    lost += sum(one.record is None and one.block == newest.end and one.seq > newest.seq for one in found)
    lost += size < newest.file_blocks * BLOCK
    return RingContents(records, spoilt if lost else (), lost)
