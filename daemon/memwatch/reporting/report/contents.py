"""The contents of a report: its files, the sentences about what is in it and what was hidden, and its archive."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from memwatch.core.linux.user_files import folder_to_write
from memwatch.reporting.render import words as wording
from memwatch.reporting.report.evidence import Evidence

Json = Any

FORMAT = 1
KEY = "memwatch_report"
RECORDING, SUMMARY, DRIVERS, README, FILES = (
    "recording.memwatch",
    "report.json",
    "drivers.json",
    "README.txt",
    "files",
)
# Value of "settings" in report.json; otherwise it is the error.
VALID = "valid"
# Rows of the terminal; report.json has all.
MAX_UNREAD_ROWS = 5
_PLURALS = {"ip": "IP addresses", "mac": "MAC addresses", "uuid": "UUIDs", "id": "ids and serial numbers",
            "host": "hosts", "user": "users", "uid": "user ids", "unit": "units", "process": "process names",
            "container": "containers", "container-name": "container names", "pod": "pods", "pod-name": "pod names",
            "job": "jobs", "command": "command lines", "cgroup": "cgroups", "boot": "boot ids", "path": "paths",
            "mail": "mail addresses", "allocator": "allocator names", "client": "clients"}  # fmt: skip

ABOUT = """A report of memwatch about one machine, for a bug report. Read it before you send it.

report.json         versions, machine, collectors, results of memwatch doctor, files that could not be read
recording.memwatch  snapshots of the machine: zcat recording.memwatch shows them, memwatchd --replay plays them
drivers.json        what NVML and tegrastats reported
files/              copies of files in /proc, /sys and / that memwatch reads

Replaced by numbered words: names of hosts, users, processes, units, containers, pods, jobs and cgroups; process and
user ids; UUIDs, serial numbers, container ids, MAC and IP addresses, boot id, home folders.
Not in it: command lines, environments (but `container=` of process 1), open files other than GPUs, the machine id.
Not hidden: sizes, times, the models of the machine and its GPUs, versions, PCI addresses.
"""


class Contents(Struct, frozen=True):
    """A redacted report. `summary` is report.json. `why_no_files` is empty if files were read."""

    summary: dict[str, Json]
    recording: bytes
    drivers: dict[str, Json]
    evidence: Evidence
    hidden: Mapping[str, int] = field(default_factory=dict)

    def members(self) -> dict[str, bytes]:
        """Return the files of the archive by name."""
        found = {README: ABOUT.encode(), SUMMARY: _encode(self.summary)}
        if self.drivers:
            found[DRIVERS] = _encode(self.drivers)
        if self.recording:
            found[RECORDING] = self.recording
        return found | {f"{FILES}/{path}": data for path, data in sorted(self.evidence.files.items())}

    def lines(self, file: str, size: str) -> Iterator[str]:
        """Yield the sentences for the terminal."""
        yield f"Report written to {file} ({size}; only you can read it). It contains:"
        for name, text in self.rows():
            yield f"  {name:<12} {text}"
        hidden = ", ".join(f"{_PLURALS.get(kind, kind)} {count}" for kind, count in sorted(self.hidden.items()))
        yield f"Replaced by numbered words: {hidden or 'nothing'}."
        yield from self._unread()
        yield f"Look at it before you send it: tar -xzf {file}, then read {FOLDER}/{README}."

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the report and their size."""
        summary, versions = self.summary, self.summary["versions"]
        named = (f"{name} {version}" for name, version in versions.items() if isinstance(version, str))
        yield "versions", ", ".join(named)
        if summary["settings"] != VALID:
            yield "settings", summary["settings"]
        machine = summary["machine"]
        yield "machine", machine["name"] or f"its firmware names no model. {machine['explanation']}"
        states = Counter(one["state"] for one in summary["collectors"])
        yield "collectors", ", ".join(f"{count} {state}" for state, count in states.most_common())
        verdicts = Counter(check["verdict"] for check in summary["doctor"]["checks"])
        results = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        yield "doctor", results or str(summary["doctor"].get("error", "no results"))
        yield "recording", summary["recording"]["text"]
        working = [name for name, one in self.drivers.items() if "reading" in one]
        yield "drivers", ", ".join(working) or "no reading of NVML or tegrastats"
        yield "files", summary["files"]["text"]

    def _unread(self) -> Iterator[str]:
        unread = self.evidence.unread
        if unread:
            were = "was" if len(unread) == 1 else "were"
            yield f"{wording.count(len(unread), 'file')} {were} not read ({SUMMARY} lists them):"
            yield from (f"  {path}: {why}" for path, why in list(unread.items())[:MAX_UNREAD_ROWS])


def summarize_files(evidence: Evidence, processes: int, seen: int | None, why_none: str) -> Json:
    """Return the part of report.json about files. It has links and folders, which are not in the archive."""
    count = f"{len(evidence.files)} files of /proc, /sys and /, with {processes} of {seen or 'unknown'} processes"
    return {
        "text": f"none: {why_none}" if why_none else count,
        "why_none": why_none,
        "folders": evidence.folders,
        "links": dict(sorted(evidence.links.items())),
        "unread": dict(sorted(evidence.unread.items())),
    }


def _encode(value: Json) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False).encode() + b"\n"


FOLDER = "memwatch-report"
MODE = 0o600


def build_archive(members: Mapping[str, bytes], unix: int) -> bytes:
    """Return the archive with these files, without the names of users, groups and the archive itself."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime, member.mode = len(data), unix, 0o644
            archive.addfile(member, io.BytesIO(data))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=unix) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def write_archive(path: Path, data: bytes, overwrite: bool) -> None:
    """Write a file that only its owner can read. Raises FileExistsError if it exists, unless `overwrite` is set.

    A link is never followed: with `overwrite`, the new file replaces it. Root goes through no folder that is a link
    of another user.
    """
    with folder_to_write(path) as (folder, place):
        fresh = place.with_name(f".{place.name}.{secrets.token_hex(8)}") if overwrite else place
        descriptor = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE, dir_fd=folder
        )
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            if overwrite:
                os.replace(fresh, place, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(fresh, dir_fd=folder)
            raise
