"""File format of recordings: gzip, a header line, then one line per snapshot. `zcat FILE | jq` also reads it.

Each line is flushed, so a killed recorder loses at most one. Each line has a checksum, since gzip's own comes after
all lines and does not show which one is damaged. Appending to a recording adds a gzip member with its own header.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec import Struct

from memwatch.build_info import __version__
from memwatch.core.linux.user_files import folder_to_write
from memwatch.core.printable import describe_error
from memwatch.core.runtime.own_files import ForeignFileError, open_own, remedy_to_read, remedy_to_write
from memwatch.core.runtime.regular_file import open_regular

FORMAT = 1
KEY = "memwatch_recording"
GZIP = 31  # wbits of zlib for a gzip header and its CRC-32
MAGIC = b"\x1f\x8b\x08"
# Compressed bytes per read, which inflate to at most 4 MiB.
PIECE = 4096
MAX_HEADER_BYTES = 4096
MAX_LINE_BYTES = 16 << 20


class RecordingError(Exception):
    """A file that cannot be played or appended to. The message is a sentence with the remedy."""


class DamagedPart(Struct, frozen=True):
    """Placeholder for an unreadable part between two lines."""

    why: str


class RecordingFile:
    """A recording open for writing, new or appended to. `write` raises OSError if the disk fails."""

    def __init__(self, path: Path, level: int = 6, **header: Any) -> None:  # noqa: ANN401  JSON
        """Open the file. Raises RecordingError if it cannot be written or is not a recording."""
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, GZIP)
        self.lines: int = 0
        try:
            self._file = _open(path)
            self.write(json.dumps({KEY: FORMAT, "version": __version__, **header}).encode())
        except ForeignFileError as error:
            raise RecordingError(
                f"cannot record to {path}: it {error.strerror}; name a file of this user"
            ) from None
        except OSError as error:
            why = describe_error(error)
            raise RecordingError(f"cannot record to {path}: {why}; {remedy_to_write(error)}") from None

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


def _open(path: Path) -> BinaryIO:
    """Open a recording of this user to append to it, or create it.

    Root may record into a folder such as /tmp, where another user may have prepared a link to a file or a folder.
    """
    with folder_to_write(path) as (folder, name):
        file = os.fdopen(open_own(name, os.O_RDWR | os.O_APPEND, 0o666, folder), "ab+")
    try:
        if os.fstat(file.fileno()).st_size:
            file.seek(0)
            read_header(path, file)
    except BaseException:
        file.close()
        raise
    return cast(BinaryIO, file)


def _with_sum(line: bytes) -> bytes:
    """Add a first field with the CRC-32 of the rest of the line."""
    return b'{"crc":%d,%s\n' % (zlib.crc32(line[1:]), line[1:])


def _without_sum(line: bytes) -> bytes | DamagedPart:
    head, comma, rest = line.partition(b",")
    number = head.removeprefix(b'{"crc":')
    if comma and number.isdigit() and len(number) <= 10 and int(number) == zlib.crc32(rest):
        return b"{" + rest
    return DamagedPart("a line has a wrong checksum")


def first_line(path: Path) -> dict[str, Any]:
    """Return the header. Raises RecordingError if the file is not a recording or has another format version."""
    try:
        with open_regular(path) as (file, _):
            return read_header(path, file)
    except PermissionError as error:
        why = describe_error(error)
        raise RecordingError(f"{path} cannot be read ({why}); {remedy_to_read(error)}") from None
    except OSError as error:
        raise _not_a_recording(path, describe_error(error)) from None


def read_header(path: Path, file: BinaryIO) -> dict[str, Any]:
    """Return the header of an open file. Raises as `first_line`; OSError if it cannot be read."""
    try:
        line = _inflate(zlib.decompressobj(GZIP), file.read(MAX_HEADER_BYTES)).partition(b"\n")[0]
        header = json.loads(line)
        version = header[KEY]
    except (zlib.error, ValueError, KeyError, TypeError):
        raise _not_a_recording(path, "it has no header") from None
    if version != FORMAT:
        by = str(header.get("version", "another version"))[:40]
        raise RecordingError(
            f"{path} is a recording of format {version!r:.20}, made by memwatchd {by}; this reads format {FORMAT}: "
            f"play it with memwatchd {by}"
        )
    return dict(header)


def _not_a_recording(path: Path, why: str) -> RecordingError:
    return RecordingError(f"{path} is not a recording ({why}); make one with: memwatch record FILE --for 10m")


def read_lines(path: Path) -> Iterator[bytes | DamagedPart]:
    """Yield every line, headers included. An unreadable part yields a DamagedPart; reading continues after it."""
    with open_regular(path) as (file, _):
        at: int | None = 0
        while at is not None:
            file.seek(at)
            at = yield from _part(file, at)


def _part(file: BinaryIO, start: int) -> Generator[bytes | DamagedPart, None, int | None]:
    """Yield the lines of one gzip member; return the offset of the next member, or None."""
    inflater, rest, fed = zlib.decompressobj(GZIP), b"", start
    while not inflater.eof:
        piece = file.read(PIECE)
        if not piece:
            yield DamagedPart("the file is truncated")
            return None
        fed += len(piece)
        before = inflater.copy()
        try:
            rest += inflater.decompress(piece)
            why = "a line is too long" if len(rest) > MAX_LINE_BYTES and b"\n" not in rest else ""
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
    """Inflate byte by byte up to the first error; a single call of zlib would return nothing."""
    found: list[bytes] = []
    with suppress(zlib.error):
        found.extend(inflater.decompress(data[at : at + 1]) for at in range(len(data)))
    return b"".join(found)


def _next_part(file: BinaryIO, start: int) -> int | None:
    """Return the offset of the next readable gzip member at or after `start`, or None."""
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


# Redact the JSON of a snapshot: replace names and ids of hosts, users and programs by numbered placeholders.

Json = Any

# Redacted fields and their placeholders.
HIDDEN = {
    "host": "host",
    "boot_id": "boot",
    "uuid": "uuid",
    "pci": "pci",
    "user": "user",
    "unit": "unit",
    "container": "container",
    "container_name": "container-name",
    "pod": "pod",
    "pod_name": "pod-name",
    "job": "job",
    "command": "command",
    "cgroup": "cgroup",
    "made_by": "client",
    "comment": "comment",
    "model": "model",
    "url": "url",
}
# Lists of records with a pid and a `name`, and the placeholders of these names.
PROGRAMS = {
    "processes": "process",
    "kills": "process",
    "tasks": "process",
    "claims": "allocator",
    "leases": "process",
}
# Model servers: their ids have names that users chose, and their notes have paths.
ENGINES = "engines"
# Reasons by field name. The texts are memwatchd's own and contain field names, not their values.
REASONS = "absent"
# The log line of a driver error: it may name programs that are no longer listed.
COMPLAINTS, LINE, HIDDEN_LINE = "driver_errors", "text", "(hidden)"
# A PID in a sentence.
PID = re.compile(r"\b(PID|kill) (\d{1,10})\b")
# Shorter names occur in too many unrelated words.
MIN_NAME_LENGTH = 4


class Redactor:
    """Maps names to placeholders, consistently across snapshots. Sizes, levels, times and hardware models stay.

    `shown` are fields of HIDDEN that stay. `pids` are process ids and the numbers that replace them; the others get
    numbers from `first_pid` upwards.
    """

    def __init__(
        self, shown: Collection[str] = (), pids: Mapping[int, int] | None = None, first_pid: int = 1
    ) -> None:
        self._hidden = {name: kind for name, kind in HIDDEN.items() if name not in shown}
        self._words: dict[tuple[str, object], str] = {}
        self._pids: dict[int, int] = dict(pids or {})
        self._next_pid = first_pid
        self._secrets: dict[str, str] = {}

    @property
    def hidden_counts(self) -> dict[str, int]:
        """Return the number of placeholders by kind."""
        return dict(Counter(kind for (kind, value), word in self._words.items() if word != value))

    def keep(self, kind: str, values: Iterable[str]) -> None:
        """Show these values of a kind."""
        self._words.update({(kind, value): value for value in values})

    def pid(self, pid: int) -> int:
        """Return the number that replaces a process id."""
        if pid not in self._pids:
            self._pids[pid] = self._next_pid
            self._next_pid += 1
        return self._pids[pid]

    def redact(self, snapshot: Json) -> Json:
        """Return a redacted copy."""
        hidden = self._walk(snapshot)
        return self._without_secrets(hidden)

    def _walk(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {name: self._field(name, part) for name, part in value.items()}
        return [self._walk(part) for part in value] if isinstance(value, list) else value

    def _field(self, name: str, value: Json) -> Json:
        if name in PROGRAMS and isinstance(value, list):
            return [self._program(one, PROGRAMS[name]) for one in value]
        if name == ENGINES and isinstance(value, list):
            return [self._engine(one) for one in value]
        if name == REASONS:
            return value
        if name == COMPLAINTS and isinstance(value, list):
            return [{**self._walk(one), LINE: HIDDEN_LINE} for one in value]
        if name in self._hidden and isinstance(value, str):
            return self.word(self._hidden[name], value)
        return self._walk(value)

    def _program(self, record: Json, kind: str) -> Json:
        pid = self.pid(record["pid"])
        # A process that only a driver lists has no name.
        name = self.word(kind, record["name"]) if isinstance(record["name"], str) else record["name"]
        return {**self._walk(record), "name": name, "pid": pid}

    def _engine(self, record: Json) -> Json:
        pid, pids = record["pid"], [self.pid(one) for one in record["pids"]]
        known = pid if pid is None else self.pid(pid)
        return {
            **self._walk(record),
            "id": self.word("engine", record["id"]),
            "pid": known,
            "pids": pids,
            "notes": [],
        }

    def word(self, kind: str, value: str) -> str:
        """Return the placeholder of a name, such as `user-2`."""
        word = self._words.get((kind, value))
        if word is None:
            number = 1 + self.hidden_counts.get(kind, 0)
            word = self._words[kind, value] = f"{kind}-{number}"
            if len(value) >= MIN_NAME_LENGTH:
                self._secrets[value] = word
        return word

    def _without_secrets(self, value: Json) -> Json:
        """Replace redacted names and PIDs in sentences as well (errors, reasons, notes)."""
        if not self._secrets:
            return value
        longest_first = sorted(self._secrets, key=len, reverse=True)
        pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(one)}(?![\w-])" for one in longest_first))
        hidden = _in_sentences(value, lambda text: pattern.sub(lambda found: self._secrets[found[0]], text))
        return _in_sentences(hidden, lambda text: PID.sub(self._replaced_pid, text))

    def _replaced_pid(self, found: re.Match[str]) -> str:
        return f"{found[1]} {self._pids.get(int(found[2]), found[2])}"


def _in_sentences(value: Json, change: Callable[[str], str]) -> Json:
    if isinstance(value, dict):
        return {name: _in_sentences(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [_in_sentences(part, change) for part in value]
    return change(value) if isinstance(value, str) and " " in value else value
