"""Build the library that injects faults between a daemon and its libc, and control it."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from pathlib import Path

from msgspec import Struct

from support.paths import ROOT

NEEDED_PROGRAMS = ("cc",)

SOURCE = Path(__file__).with_suffix(".c")
CACHE = ROOT / ".pytest_cache" / "libc_faults"
FLAGS = ("-shared", "-fPIC", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")
LAYOUT = struct.Struct("<qqiiii4064s")


def built_library(source: Path = SOURCE) -> Path:
    """Build once per source version. Test processes may build concurrently, so the file is renamed into place."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    library = CACHE / digest / f"{source.stem}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            built = Path(scratch, library.name)
            command = [os.environ.get("CC", "cc"), *FLAGS, "-o", str(built), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
            built.replace(library)
    return library


class LibcFaults(Struct):
    """Faults of one process and its children, effective from the next call on."""

    file: Path
    wall_seconds: int = 0
    boot_seconds: int = 0
    poll_error: int = 0

    @classmethod
    def of(cls, scratch: Path) -> LibcFaults:
        found = cls(scratch / "faults")
        found.file.write_bytes(bytes(LAYOUT.size))
        return found

    @property
    def environ(self) -> dict[str, str]:
        before = os.environ.get("LD_PRELOAD")
        return {
            "LD_PRELOAD": " ".join(filter(None, [str(built_library()), before])),
            "FAULTS_STATE": str(self.file),
        }

    def refuse(self, folder: Path, write: int = 0, sync: int = 0, allocate: int = 0) -> None:
        """Let writes below `folder` fail with `write`, and fsync with `sync`.

        posix_fallocate fails with `allocate`, or with `write` if that is 0.
        """
        self._write_state(write, sync, allocate, os.fsencode(folder))

    def heal(self) -> None:
        self._write_state(0, 0, 0, b"")

    def set_wall_clock(self, seconds: int) -> None:
        """Set the offset of the wall clock in seconds."""
        self.wall_seconds = seconds
        self.heal()

    def suspend(self, seconds: int) -> None:
        """Simulate a suspend: boot time and wall clock advance, monotonic time does not."""
        self.boot_seconds += seconds
        self.wall_seconds += seconds
        self.heal()

    def fail_poll(self, error: int) -> None:
        """Let poll(2) fail with `error`."""
        self.poll_error = error
        self.heal()

    def _write_state(self, write: int, sync: int, allocate: int, folder: bytes) -> None:
        with self.file.open("r+b", buffering=0) as file:
            file.write(
                LAYOUT.pack(self.wall_seconds, self.boot_seconds, write, sync, allocate, self.poll_error, folder)
            )
