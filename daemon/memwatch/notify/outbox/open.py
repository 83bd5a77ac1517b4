"""Opens the outbox's file whatever has become of it. What cannot be used is set aside, and never overwritten."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec import Struct

from memwatch.notify.outbox.rows import Kept
from memwatch.notify.outbox.sqlite_store import Store, Unusable, set_aside

FILE_NAME = "outbox.sqlite"
# Primary codes of SQLite (https://sqlite.org/rescode.html): the file is at fault, and not the disk or the moment.
SQLITE_ERROR, SQLITE_CORRUPT, SQLITE_SCHEMA, SQLITE_NOTADB = 1, 11, 17, 26
FILE_AT_FAULT = frozenset({SQLITE_ERROR, SQLITE_CORRUPT, SQLITE_SCHEMA, SQLITE_NOTADB})


class Opened(Struct, frozen=True):
    """A store, or none; what was in it; and what an administrator should know, in sentences."""

    store: Store | None
    kept: Kept
    complaints: tuple[str, ...] = ()
    recovered: bool = False


def open_outbox(folder: Path, unix: float) -> Opened:
    """The outbox of a state folder. Never raises for what it finds there."""
    file = folder / FILE_NAME
    try:
        return _opened(file)
    except Unusable as unusable:
        why = str(unusable)
    except UnicodeError:  # sqlite3 fails to decode what SQLite says of a damaged schema
        why = "is damaged (its schema is no text)"
    except (sqlite3.Error, OSError) as error:
        if not is_file_at_fault(error):
            return Opened(None, Kept(), (f"{file} cannot be used ({error}): {IN_MEMORY}",))
        why = f"is damaged ({error})"
    try:
        aside = set_aside(file, unix, "newer" if "version" in why else "corrupt")
        opened = _opened(file)
    except (sqlite3.Error, OSError, Unusable) as error:
        return Opened(None, Kept(), (f"{file} {why} and cannot be replaced ({error}): {IN_MEMORY}",))
    said = f"{file} {why}; it is now {aside.name}, and alerts begin anew"
    return Opened(opened.store, opened.kept, (said, *opened.complaints), recovered=True)


IN_MEMORY = "alerts are kept in memory only"


def _opened(file: Path) -> Opened:
    store = Store(file)
    try:
        kept = store.load()
    except BaseException:
        store.close()
        raise
    if not kept.bad_rows:
        return Opened(store, kept)
    said = f"{file}: {kept.bad_rows} damaged rows were left out"
    return Opened(store, kept, (said,), recovered=True)


def is_file_at_fault(error: Exception) -> bool:
    """Whether another file would do; no disk, no permission, no lock are no fault of the file."""
    # sqlite_errorcode came with Python 3.11; before that the class of the error tells about as much.
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in FILE_AT_FAULT
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
