"""The outbox's SQLite file. Each transaction is synced to disk before it counts as written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from memwatch.core.runtime.own_files import open_own, why_foreign
from memwatch_monitor.notify.outbox import (
    Batch,
    OutboxRowError,
    Row,
    StoredOutbox,
    parse_delivered,
    parse_message,
    parse_value,
)

# Opening of the outbox's file. A file that cannot be used is renamed and never overwritten.

FILE_NAME = "outbox.sqlite"
# Primary result codes of SQLite (https://sqlite.org/rescode.html) that mean a bad file, not a disk or lock problem.
SQLITE_ERROR, SQLITE_CORRUPT, SQLITE_SCHEMA, SQLITE_NOTADB = 1, 11, 17, 26
FILE_AT_FAULT = frozenset({SQLITE_ERROR, SQLITE_CORRUPT, SQLITE_SCHEMA, SQLITE_NOTADB})


class OpenResult(Struct, frozen=True):
    """The store, if any, its content, and sentences to log."""

    store: OutboxStore | None
    stored: StoredOutbox
    complaints: tuple[str, ...] = ()
    recovered: bool = False


def open_outbox(folder: Path, unix: float) -> OpenResult:
    """Open the outbox of a state folder. Never raises for a bad file."""
    file = folder / FILE_NAME
    try:
        return _open(file)
    except IncompatibleStoreError as unusable:
        why = str(unusable)
    except UnicodeError:  # sqlite3 fails to decode SQLite's error message about a damaged schema
        why = "is damaged (its schema is not text)"
    except (sqlite3.Error, OSError) as error:
        if not is_file_at_fault(error):
            return OpenResult(None, StoredOutbox(), (f"{file} cannot be used ({error}): {IN_MEMORY}",))
        why = f"is damaged ({error})"
    try:
        aside = set_aside(file, unix, "newer" if "version" in why else "corrupt")
        opened = _open(file)
    except (sqlite3.Error, OSError, IncompatibleStoreError) as error:
        return OpenResult(None, StoredOutbox(), (f"{file} {why} and cannot be replaced ({error}): {IN_MEMORY}",))
    complaint = f"{file} {why}; renamed to {aside.name}, starting with an empty outbox"
    return OpenResult(opened.store, opened.stored, (complaint, *opened.complaints), recovered=True)


IN_MEMORY = "alerts are kept in memory only"


def _open(file: Path) -> OpenResult:
    store = OutboxStore(file)
    try:
        kept = store.load()
    except BaseException:
        store.close()
        raise
    if not kept.bad_rows:
        return OpenResult(store, kept)
    rows = "1 row was" if kept.bad_rows == 1 else f"{kept.bad_rows} rows were"
    complaint = f"{file}: {rows} skipped: damaged, or of a version that this one cannot read"
    return OpenResult(store, kept, (complaint,), recovered=True)


def is_file_at_fault(error: Exception) -> bool:
    """Return True if the error is caused by the file, not by the disk, permissions or a lock."""
    # sqlite_errorcode is new in Python 3.11; before that, the class of the error is nearly as precise.
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in FILE_AT_FAULT
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


Key = TypeVar("Key", bound=tuple[int | str, ...])

VERSION = 1
FILE_MODE = 0o600
MAX_FILE_BYTES = 256 << 20
MAX_ROWS = 100_000
CACHE_KIB = 256
# Suffixes of the files that SQLite writes.
FILE_SUFFIXES = ("", "-wal", "-shm", "-journal")

# Order matters: with an exclusive lock before WAL, the WAL index is on the heap, where a truncated file cannot
# kill the process with SIGBUS. FULL: committed transactions survive a power failure.
SETUP = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA mmap_size = 0",
    f"PRAGMA cache_size = -{CACHE_KIB}",
    "PRAGMA journal_size_limit = 1048576",
    "PRAGMA trusted_schema = OFF",
)
TABLES = (
    "CREATE TABLE IF NOT EXISTS messages (seq INTEGER PRIMARY KEY, receiver, id, alert, kind, body, attempts, crc)",
    "CREATE TABLE IF NOT EXISTS heard (receiver, alert, heard, body, crc, PRIMARY KEY (receiver, alert))",
    "CREATE TABLE IF NOT EXISTS named_values (name PRIMARY KEY, value, crc)",
    f"PRAGMA user_version = {VERSION}",
)


class StoreWriteError(OSError):
    """A transaction could not be written to disk."""


class IncompatibleStoreError(Exception):
    """A file that is not an outbox of this version. The message completes "FILE …"."""


class OutboxStore:
    """One open file. Opening and loading raise sqlite3.Error or OSError on disk errors."""

    def __init__(self, file: Path) -> None:
        """Open or create the file. Also raises IncompatibleStoreError."""
        self._unread: dict[str, list[int]] = {}
        refuse_strange(file)
        os.close(open_own(file, os.O_RDWR, FILE_MODE))
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=1.0)
        # Damage is found by checksums, so decoding a text must not fail.
        self._connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> StoredOutbox:
        """Load everything. Rows that cannot be read are counted and skipped; they stay in the file."""
        kept = StoredOutbox()
        keep: tuple[tuple[str, Callable[[Row], None]], ...] = (
            ("messages", lambda row: _keep_message(kept, row)),
            ("heard", lambda row: _keep_delivered(kept, row)),
            ("named_values", lambda row: kept.values.update([parse_value(row)])),
        )
        for table, take in keep:
            query = f"SELECT rowid, * FROM {table} ORDER BY rowid LIMIT ?"  # noqa: S608  one of three words
            for number, *row in self._connection.execute(query, (MAX_ROWS,)):
                if not is_taken(take, tuple(row)):
                    kept.bad_rows += 1
                    self._unread.setdefault(table, []).append(number)
        # The number of a row that cannot be read is not used again.
        kept.last_seq = max(kept.last_seq, *self._unread.get("messages", ()), 0)
        return kept

    def write(self, batch: Batch) -> None:
        """Write and sync a batch in one transaction. Raises StoreWriteError if nothing was written."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if batch.everything:
                for table in ("messages", "heard", "named_values"):
                    unread = ", ".join(map(str, self._unread.get(table, ())))
                    self._connection.execute(f"DELETE FROM {table} WHERE rowid NOT IN ({unread})")  # noqa: S608
            self._put("messages", "seq = ?", {(seq,): row for seq, row in batch.messages.items()})
            self._put("heard", "receiver = ? AND alert = ?", batch.delivered)
            self._put("named_values", "name = ?", {(name,): row for name, row in batch.values.items()})
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise StoreWriteError(str(error)) from None
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def _put(self, table: str, key: str, rows: Mapping[Key, Row | None]) -> None:
        gone = [key_values for key_values, row in rows.items() if row is None]
        here = [row for row in rows.values() if row is not None]
        self._connection.executemany(f"DELETE FROM {table} WHERE {key}", gone)  # noqa: S608
        if here:
            marks = ", ".join("?" * len(here[0]))
            self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", here)  # noqa: S608

    def _set_up(self) -> None:
        for statement in SETUP:
            self._connection.execute(statement)
        version = self._one("PRAGMA user_version")
        if version not in (0, VERSION):
            raise IncompatibleStoreError(f"has version {version}, but this memwatchd supports version {VERSION}")
        if version and (complaint := self._one("PRAGMA quick_check(1)")) != "ok":
            raise IncompatibleStoreError(f"is damaged ({complaint})")
        for statement in TABLES:
            self._connection.execute(statement)

    def _one(self, query: str) -> object:
        with closing(self._connection.execute(query)) as found:
            return found.fetchone()[0]


def is_taken(take: Callable[[Row], None], row: Row) -> bool:
    try:
        take(row)
    except OutboxRowError:
        return False
    return True


def _keep_message(kept: StoredOutbox, row: Row) -> None:
    receiver, message = parse_message(row)
    kept.messages.setdefault(receiver, []).append(message)
    kept.last_seq = max(kept.last_seq, message.seq)


def _keep_delivered(kept: StoredOutbox, row: Row) -> None:
    receiver, alert, delivered = parse_delivered(row)
    kept.delivered.setdefault(receiver, []).append((alert, delivered))


def refuse_strange(file: Path) -> None:
    """Raise IncompatibleStoreError for a file of another user, a link or a device, or too large a file.

    SQLite opens its files by name and follows links, so those beside the file are checked, too. No other user can
    change them afterwards: the state folder is writable by its owner only.
    """
    for suffix in FILE_SUFFIXES:
        try:
            found = os.lstat(f"{file}{suffix}")
        except FileNotFoundError:
            continue
        if why := why_foreign(found):
            raise IncompatibleStoreError(f"has a file {file.name}{suffix} that {why}" if suffix else why)
        if found.st_size > MAX_FILE_BYTES:
            raise IncompatibleStoreError(f"has {found.st_size} bytes, more than {MAX_FILE_BYTES}")


def set_aside(file: Path, unix: float, word: str, max_kept: int = 2) -> Path:
    """Rename the file and SQLite's files beside it. Only the newest `max_kept` files with that `word` are kept."""
    moment = int(unix)
    while _exists(aside := file.with_name(f"{file.name}.{word}-{moment}")):
        moment += 1
    for ending in FILE_SUFFIXES:
        beside = file.with_name(file.name + ending)
        if os.path.lexists(beside):
            os.replace(beside, aside.with_name(aside.name + ending))
    asides = [path for path in file.parent.glob(f"{file.name}.{word}-*") if path.name.endswith(tuple("0123456789"))]
    for old in sorted(asides, key=_parse_timestamp)[:-max_kept]:
        for ending in FILE_SUFFIXES:
            _remove(old.with_name(old.name + ending))
    return aside


def _exists(aside: Path) -> bool:
    return any(os.path.lexists(f"{aside}{suffix}") for suffix in FILE_SUFFIXES)


def _parse_timestamp(aside: Path) -> int:
    digits = aside.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0


def _remove(old: Path) -> None:
    if old.is_dir() and not old.is_symlink():
        return  # memwatchd creates no folder here: it belongs to someone else
    old.unlink(missing_ok=True)
