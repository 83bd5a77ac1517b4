"""Files and drivers of a machine for a report: read as collectors do, redacted, each failure noted."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from memwatch.core.clock import SystemClock
from memwatch.core.collectors.base import CollectorEntry
from memwatch.core.linux.cgroups import parse_cgroup, parse_mountinfo
from memwatch.core.linux.files import Roots, names_in, read_once
from memwatch.core.linux.listeners import MAX_DESCRIPTORS
from memwatch.core.linux.pci import is_awake
from memwatch.core.reading.sampler import Sampler
from memwatch.core.runtime.regular_file import read_regular
from memwatch.reporting.report.redaction import TextRedactor, cgroup_path, redact_file, redact_path
from memwatch.reporting.report.sources import (
    FOLDERS,
    Kind,
    Source,
    Walk,
    cgroup_sources,
    list_sources,
    process_sources,
    reason_of,
)

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
            self._found.unread[shown] = reason_of(error)
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
            self._found.unread[f"{shown}/fd"] = reason_of(error)
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


Json = Any

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
