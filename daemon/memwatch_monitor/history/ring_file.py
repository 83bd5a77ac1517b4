"""Ring files of fixed size: records of whole blocks, each with its own checksum; and those of a state folder.

A file is allocated before it is used, so that a full disk cannot prevent writing. It is not mapped: access to a
mapping of a truncated file kills the process with SIGBUS. Damaged parts are moved aside when a file is opened.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.runtime.own_files import ForeignFileError, free_name, open_own
from memwatch.core.snapshot_json import LAST_UNIX

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
        """Read all intact records. Raises IncompatibleFileError if another version wrote the file."""
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


UNKNOWN_BOOT = b"\0" * 16


def boot_bytes(boot_id: str) -> bytes:
    """Convert a boot id to 16 bytes, all 0 on a machine without one."""
    try:
        return bytes.fromhex(boot_id.replace("-", ""))[:16].ljust(16, b"\0")
    except ValueError:
        return UNKNOWN_BOOT


# Each file and its part of the size limit, in 64ths: every tick at high and critical pressure, the finest tier,
# events, notable ticks, the other tiers. They are allocated in this order, in case the disk has too little space.
PARTS = {"flight": 18, "fine": 8, "events": 2, "ticks": 8, "medium": 14, "coarse": 14}
WHOLE = sum(PARTS.values())
TIERS = ("fine", "medium", "coarse")
# Number of damaged versions of each file that are kept for inspection.
MAX_SET_ASIDE = 2


class RingSet(Struct):
    """The rings by name. Unusable ones are missing. `complaints` are sentences for the log."""

    rings: dict[str, RingFile] = field(default_factory=dict)
    contents: dict[str, RingContents] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    lost: int = 0

    @property
    def stamps(self) -> list[Stamp]:
        return [record.stamp for contents in self.contents.values() for record in contents.records]

    def payload(self, name: str, record: Record) -> bytes:
        return self.rings[name].payload(record)

    def records(self, name: str, kind: int) -> list[Record]:
        return [record for record in self.contents.get(name, RingContents()).records if record.kind == kind]


def open_ring_set(folder: Path, size_bytes: int, unix: float) -> RingSet:
    """Open all rings and read their intact records. Damaged data is saved under a name with the time."""
    ring_set = RingSet()
    when = file_time(unix)
    for name, part in PARTS.items():
        path = folder / f"{name}.ring"
        try:
            ring, contents = _open_ring(ring_set, path, size_bytes * part // WHOLE, when)
            ring_set.rings[name], ring_set.contents[name] = ring, contents
            if contents.lost:
                ring_set.damaged.add(name)
                _set_aside(ring_set, path, contents, when)
        except OSError as error:
            ring_set.complaints.append(f"{path} cannot be read: {error.strerror or error}")
    return ring_set


def prepare(ring_set: RingSet, stamp: Stamp) -> None:
    """Prepare every ring for writing, unless it is ready. Raises OSError for the first one that fails."""
    for name, ring in ring_set.rings.items():
        if not ring.ready:
            contents = ring_set.contents.pop(name, RingContents())
            ring.prepare(contents)
            if name in ring_set.damaged:
                ring.append(REPAIRED, stamp, b"")
                ring_set.damaged.remove(name)


def _open_ring(ring_set: RingSet, path: Path, size_bytes: int, when: str) -> tuple[RingFile, RingContents]:
    ring, contents, renamed = open_ring(path, size_bytes, when)
    if renamed is not None:
        ring_set.lost += 1
        ring_set.aside.append(renamed.name)
        ring_set.complaints.append(renamed.sentence)
    return ring, contents


class Renamed(NamedTuple):
    """New name of a file that could not be used, and a sentence about it for the log."""

    name: str
    sentence: str


def open_ring(path: Path, size_bytes: int, when: str) -> tuple[RingFile, RingContents, Renamed | None]:
    """Open a ring and read its intact records. An unusable file, such as one of another version, is renamed."""
    try:
        ring = RingFile(path, size_bytes)
        return ring, ring.read(), None
    except IncompatibleFileError as error:
        aside = free_name(path.with_name(f"{path.name}.damaged-{when}"))
        os.rename(path, aside)
        _delete_old(path)
        ring = RingFile(path, size_bytes)
        return ring, ring.read(), Renamed(aside.name, f"{path} {error.strerror}: it was renamed to {aside.name}")


def file_time(unix: float) -> str:
    """Return a time for names of files, in UTC."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def _set_aside(ring_set: RingSet, path: Path, contents: RingContents, when: str) -> None:
    """Save damaged blocks in a separate file. The ring continues with its intact records."""
    ring_set.lost += contents.lost
    records = "1 record" if contents.lost == 1 else f"{contents.lost} records"
    aside = free_name(path.with_name(f"{path.name}.damaged-{when}"))
    if not contents.damaged:
        ring_set.complaints.append(f"{path} lost {records}")
        return
    try:
        with os.fdopen(open_own(aside, os.O_WRONLY), "wb") as file:
            file.write(b"".join(data for _, data in contents.damaged))
        _delete_old(path)
    except OSError as error:
        why = error.strerror or error
        ring_set.complaints.append(f"{path} lost {records}; the damaged data cannot be saved: {why}")
        return
    ring_set.aside.append(aside.name)
    ring_set.complaints.append(f"{path} lost {records}; the damaged data was saved as {aside.name}")


def _delete_old(path: Path) -> None:
    found = sorted(path.parent.glob(f"{path.name}.damaged-*"))
    for old in found[:-MAX_SET_ASIDE]:
        with suppress(OSError):
            old.unlink()
