"""Crash records that the kernel kept in pstore, in the firmware or in memory that survives a reset."""

from __future__ import annotations

import os
import re
from pathlib import Path

from memwatch.core.linux.files import Roots
from memwatch.core.listing import first_of
from memwatch.core.printable import decode
from memwatch.core.runtime.regular_file import read_regular

# systemd-pstore.service moves the records to the second folder at boot.
FOLDERS = ("fs/pstore", "var/lib/systemd/pstore")
MAX_FILES, MAX_BYTES, MAX_REASON_LENGTH = 200, 1 << 20, 200
MAX_RECORDS = 3
_REASON = re.compile(
    rb"(Kernel panic - not syncing: [^\n]{0,180}|Out of memory and no killable processes[^\n]{0,80}|"
    rb"BUG: [^\n]{0,180}|Oops: [^\n]{0,180}|watchdog: BUG: [^\n]{0,160})"
)


def find_crash_records(roots: Roots, since_unix: float) -> tuple[str, ...]:
    """Return the records written after a time, each with its reason if it has one. Only root may read them."""
    folders = (roots.sysfs / FOLDERS[0], roots.rootfs / FOLDERS[1])
    found = [one for folder in folders for one in _read_folder(folder, since_unix)]
    with_reason = [one for one in found if ": " in one]
    return first_of(list(dict.fromkeys(with_reason or found)), MAX_RECORDS, "crash records")


def _read_folder(folder: Path, since_unix: float) -> list[str]:
    try:
        named = sorted(path for path in folder.rglob("*") if path.name.startswith(("dmesg", "console")))
        files = [path for path in named if os.path.isfile(path) and path.stat().st_mtime >= since_unix]
        return [*map(_describe, files[:MAX_FILES]), *(path.name for path in files[MAX_FILES:])]
    except OSError:
        return []


def _describe(path: Path) -> str:
    reason = _REASON.search(read_regular(path, MAX_BYTES))
    return f"{path.name}: {decode(reason[1])[:MAX_REASON_LENGTH]}" if reason else path.name
