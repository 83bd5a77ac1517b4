"""The contents of a report: what is read of the machine, the sentences about it and what was hidden, the archive.

Files and drivers are read as collectors do, redacted, each failure noted.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import secrets
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.linux.cgroups import parse_cgroup, parse_mountinfo
from memwatch.core.linux.files import Roots, names_in, read_once
from memwatch.core.linux.listeners import MAX_DESCRIPTORS
from memwatch.core.linux.pci import is_awake
from memwatch.core.linux.user_files import folder_to_write
from memwatch.core.printable import describe_error
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.regular_file import read_regular
from memwatch.reporting.render import words as wording
from memwatch.reporting.report.redaction import TextRedactor, cgroup_path, redact_file, redact_path
from memwatch.reporting.report.sources import (
    FOLDERS,
    Kind,
    Source,
    Walk,
    cgroup_sources,
    list_sources,
    process_sources,
)

Json = Any

# zoneinfo of a server with 16 nodes has 200 KB.
MAX_FILE_BYTES = 2 << 20
MAX_TOTAL_BYTES = 16 << 20
MAX_FILES = 20_000
# Process 1 tells the kind of a container, process 2 that processes of the whole machine are visible.
ALWAYS_LISTED = (1, 2)
_DEVICES = re.compile(
    r"/dev/(?:dri/(?:card|renderD)\d+|accel/accel\d+|kfd|nvidia[\w-]*|nvmap|nvhost[\w-]*|mali\d+|dxg)"
)


class Evidence(Struct, frozen=True):
    """Files by path (`proc/meminfo`), the targets of symbolic links, and why files were not read.

    `folders` are some that exist, with or without files.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


class EvidenceReader:
    """Reads files below the roots of a machine. Names are replaced as `names` does for the whole report."""

    def __init__(self, roots: Roots, names: TextRedactor) -> None:
        self._names = names
        self._folders = {"proc": roots.procfs, "sys": roots.sysfs, "root": roots.rootfs}
        self._roots = roots
        self._found = Evidence()
        self._bytes = 0

    def read(self, pids: Iterable[int]) -> Evidence:
        """Read the machine's own files, and those of the processes with these ids."""
        listed = [
            pid for pid in dict.fromkeys((*ALWAYS_LISTED, *pids)) if os.path.isdir(self._roots.procfs / str(pid))
        ]
        for source in (*list_sources(self._roots), *process_sources(listed)):
            self._read_source(source)
        for source in cgroup_sources(self._hierarchies(), self._cgroups(listed)):
            self._read_source(source)
        for pid in listed:
            self._read_descriptors(pid)
        self._write_users(listed)
        self._found.folders.extend(name for name in FOLDERS if os.path.isdir(self._place(name)))
        return self._found

    def _place(self, path: str) -> Path:
        root, _, rest = path.partition("/")
        return self._folders[root] / rest

    def _read_source(self, source: Source) -> None:
        folder, prefix, pattern = self._folders[source.root], source.root, source.pattern
        if source.root == "proc" and pattern.startswith("self/"):
            # A link to this process, which is not followed by name: its number differs in each report.
            folder, prefix, pattern = folder / "self", "proc/self", pattern.removeprefix("self/")
        walk = Walk(folder)
        for path in walk.find(pattern, source.kind is not Kind.LINK):
            self._read_file(folder / path, f"{prefix}/{path}", source)
        for path, target in walk.links.items():
            self._found.links[redact_path(f"{prefix}/{path}", self._names)] = target
        for path, why in walk.unread.items():
            self._found.unread[redact_path(f"{prefix}/{path}", self._names)] = why

    def _read_file(self, file: Path, path: str, source: Source) -> None:
        shown = redact_path(path, self._names)
        if source.kind is Kind.LINK or shown in self._found.files:
            return
        if source.wakes and _is_suspended(file):
            self._found.unread[shown] = "not read, as it would resume a suspended device"
            return
        try:
            data = b"" if source.kind is Kind.PRESENCE else read_limited(file)
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            return
        except OSError as error:
            self._found.unread[shown] = describe_error(error)
            return
        self._keep(shown, redact_file(source.kind, data, self._names))

    def _keep(self, path: str, data: bytes) -> None:
        if self._bytes + len(data) > MAX_TOTAL_BYTES or len(self._found.files) >= MAX_FILES:
            self._found.unread[path] = "left out: the report is full"
            return
        self._bytes += len(data)
        self._found.files[path] = data

    def _read_descriptors(self, pid: int) -> None:
        """Read the descriptors of graphics devices. Other open files are not mentioned."""
        folder = self._folders["proc"] / str(pid)
        shown = f"proc/{self._names.redactor.pid(pid)}"
        try:
            numbers = os.listdir(folder / "fd")
        except FileNotFoundError:
            return
        except OSError as error:
            self._found.unread[f"{shown}/fd"] = describe_error(error)
            return
        if len(numbers) > MAX_DESCRIPTORS:
            self._found.unread[f"{shown}/fd"] = f"left out: descriptors after the first {MAX_DESCRIPTORS:,}"
        for number in sorted(numbers, key=lambda name: name.zfill(10))[:MAX_DESCRIPTORS]:
            if (target := device_of(folder / "fd" / number)) is not None:
                self._found.links[f"{shown}/fd/{number}"] = target
                source = Source("proc", "", Kind.FDINFO)
                self._read_file(folder / "fdinfo" / number, f"proc/{pid}/fdinfo/{number}", source)

    def _hierarchies(self) -> list[tuple[int, Path]]:
        """Return versions and folders, relative to sysfs, of the mounted cgroup hierarchies."""
        mounts = parse_mountinfo(read_once(self._roots.procfs / "self/mountinfo") or b"")
        found = [
            (2 if mount.kind == "cgroup2" else 1, Path(mount.point.removeprefix("/sys/")))
            for mount in mounts
            if mount.point.startswith("/sys/fs/cgroup")
            and (mount.kind == "cgroup2" or (mount.kind == "cgroup" and "memory" in mount.options.split(",")))
        ]
        return list(dict.fromkeys(found))

    def _cgroups(self, pids: Sequence[int]) -> list[str]:
        files = ("self/cgroup", *(f"{pid}/cgroup" for pid in pids))
        texts = (read_once(self._roots.procfs / file) or b"" for file in files)
        return list(dict.fromkeys(path for text in texts for path in parse_cgroup(text).values()))

    def _write_users(self, pids: Sequence[int]) -> None:
        """Write an /etc/passwd with placeholders for the users of the listed processes."""
        known = dict(read_users(self._roots.rootfs))
        rows = []
        for uid in sorted({uid for pid in pids for uid in self._uids(pid)}):
            if uid in known:
                number = self._names.uid(uid)
                rows.append(f"{self._names.redactor.word('user', known[uid])}:x:{number}:{number}::/:/bin/false\n")
        self._keep("root/etc/passwd", "".join(rows).encode())

    def _uids(self, pid: int) -> Iterator[int]:
        text = (read_once(self._roots.procfs / str(pid) / "status") or b"").decode("utf-8", "replace")
        found = re.search(r"^Uid:\t(\d{1,10})\t", text, re.MULTILINE)
        yield from [int(found[1])] if found else []


def read_limited(file: Path) -> bytes:
    """Return the content. Raises OSError, also for a file that is too large or not a regular one."""
    data = read_regular(file, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(0, f"larger than {MAX_FILE_BYTES} bytes")
    return data


def read_users(rootfs: Path) -> Iterator[tuple[int, str]]:
    """Yield the ids and names in /etc/passwd."""
    for line in (read_once(rootfs / "etc/passwd") or b"").decode("utf-8", "backslashreplace").splitlines():
        name, *fields = line.split(":")
        if len(fields) >= 2 and fields[1].isdecimal():
            yield int(fields[1]), name


def device_of(link: Path) -> str | None:
    """Return the device file that a descriptor is, None if it is another kind of file."""
    try:
        target = os.readlink(link)
    except OSError:
        return None
    found = _DEVICES.search(target)
    return found[0] if found and target.endswith(found[0]) else None


def _is_suspended(file: Path) -> bool:
    """Return True if the device that the file belongs to is suspended."""
    for folder in file.parents:
        if "power" in names_in(folder) and os.path.exists(folder / "vendor"):
            return not is_awake(folder)
    return False


READINGS = ("nvml", "tegrastats")
# The first reading takes up to 2 s; sensors are read in turns of some seconds.
FIRST_SECONDS, TURNS_SECONDS = 5.0, 4.0


def read_drivers(entries: Sequence[CollectorEntry], names: TextRedactor) -> dict[str, Json]:
    """Call the drivers for some seconds. Return each reading, or the state and error of its collector."""
    drivers = [entry for entry in entries if entry.name in READINGS]
    sampler = Sampler(drivers, SystemClock())
    sampler.start()
    try:
        sampler.wait_for_first(FIRST_SECONDS)
        findings, statuses = sampler.gather()
        until = time.monotonic() + TURNS_SECONDS
        while any(status.state == "ok" for status in statuses) and time.monotonic() < until:
            time.sleep(0.5)
            findings, statuses = sampler.gather()
    finally:
        sampler.stop()
    found: dict[str, Json] = {}
    for status in statuses:
        reading = getattr(findings, status.name)
        if reading is not None and status.state == "ok":
            found[status.name] = {"reading": redact_reading(to_builtins(reading), names)}
        else:
            found[status.name] = {"state": status.state, "error": names.text(status.error or "")}
    return found


def redact_reading(value: Json, names: TextRedactor) -> Json:
    """Return the reading with process ids, cgroups, UUIDs and names replaced."""
    if isinstance(value, dict):
        return {key: _field(str(key), part, names) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redact_reading(part, names) for part in value]
    return names.text(value) if isinstance(value, str) else value


def _field(key: str, value: Json, names: TextRedactor) -> Json:
    if key == "pid" and isinstance(value, int):
        return names.redactor.pid(value)
    if key == "cgroup" and isinstance(value, str):
        return cgroup_path(names, value)
    return redact_reading(value, names)


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
