"""State folder of a running daemon, read from a copy."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from memwatch_monitor.incidents.store import IncidentStore
from memwatch_monitor.notify.sqlite_store import FILE_NAME
from memwatchd.settings.schema import Settings
from support.fakes import FakeClock
from support.store_machine import BOOTS, Machine


@contextmanager
def _copied(state: Path) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "state"
        shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.tmp"), copy_function=_copy)
        yield copy


def _copy(source: str, target: str) -> None:
    """Copy a file, unless it is gone since it was listed: the daemon renames new files to the names of old ones."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def events_on_disk(state: Path) -> list[tuple[str, str]]:
    """Return kind and text of all events."""
    with _copied(state) as copy:
        running = Machine(copy, size=Settings().history.disk_size).start()
        try:
            return running.events()
        finally:
            running.keeper.stop(30.0)


def incidents_on_disk(state: Path) -> list[str]:
    """Return the ids of all incidents."""
    with _copied(state) as copy:
        store = IncidentStore(copy, FakeClock(), BOOTS[0])
        try:
            return [incident.id for incident in store.load()]
        finally:
            store.stop()


def messages_on_disk(state: Path) -> int:
    """Return the number of notifications in the outbox; 0 if the copy was made during a write."""
    with _copied(state) as copy, closing(sqlite3.connect(copy / FILE_NAME)) as outbox:
        try:
            return int(outbox.execute("SELECT count(*) FROM messages").fetchone()[0])
        except sqlite3.DatabaseError:
            return 0
