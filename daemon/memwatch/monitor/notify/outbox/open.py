"""Opening of the outbox's file. A file that cannot be used is renamed and never overwritten."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec import Struct

from memwatch.monitor.notify.outbox.rows import StoredOutbox
from memwatch.monitor.notify.outbox.sqlite_store import IncompatibleStoreError, OutboxStore, set_aside

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
