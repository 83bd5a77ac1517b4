"""The processes that could end: as the daemon reports them, with what /proc says about each now."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.http import GetError
from memwatch.core.linux.cgroups import parse_cgroup, parse_owners
from memwatch.core.linux.daemon_connection import build_headers, connect_daemon
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.process_files import STAT_BYTES, parse_boot_time, parse_stat, read_at
from memwatch.core.linux.tcp_peer import UCRED
from memwatch.core.model import RAM, Absent, PoolKind, Process, Words
from memwatch.core.printable import describe_error
from memwatch.core.snapshot import Pressure, Snapshot
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatchd.guardian.records import Adjustment, Candidate, ProcessKey
from memwatchd.guardian.requests import NoAnswerError, exchange, find_requests

# The daemon has this long to answer: during that time the guardian reads nothing.
ASK_SECONDS = 0.2
MAX_ANSWER_BYTES = 8 << 20
# The clock of the daemon's figures is the wall clock: one that is ahead by more than this was set.
MAX_AHEAD_SECONDS = 0.5
# Collectors of which the memory of processes is made.
COLLECTORS = frozenset({"processes", "nvml", "tegra", "nvmap", "amdgpu", "amdsmi", "amd_cli", "drm", "dmem"})
# btime of /proc/stat is in whole seconds and varies by one.
SAME_START_SECONDS = 3.0
# A clock that moved by this against that of the boot was set, or slewed for long.
CLOCK_SET_SECONDS = 1.0
# Times of the boot that a process in an answer of the daemon may have: NTP sets a clock twice within a minute.
MAX_BOOT_TIMES = 3


class DaemonAnswer(NamedTuple):
    """A snapshot, when it was received (monotonic), and how old it and its device figures were then, in seconds.

    `pid`: the process that listens at the socket file, 0 over TCP.
    """

    snapshot: Snapshot
    at: float
    age: float
    device_age: float
    pid: int = 0


class AskError(Exception):
    """The daemon did not answer with a snapshot in time. The message is a clause."""


def ask_daemon(url: str, boot_id: str, seconds: float = ASK_SECONDS) -> DaemonAnswer:
    """Ask a daemon of this machine, `unix:PATH` or `http://127.0.0.1:PORT`, for its snapshot. Raises AskError.

    `boot_id`: that of this machine. A simulated machine, or another one, has no processes that could end here.
    """
    scheme, host, port = split_url(url)
    deadline = time.monotonic() + seconds
    try:
        with connect_daemon(scheme, host, port, seconds) as connected:
            pid = listening_pid(connected)
            name = build_headers(scheme, host, port)["Host"]
            status, body = exchange(connected, "GET", "/api/v1/snapshot", name, deadline, MAX_ANSWER_BYTES)
        if status != 200:
            raise AskError(f"it answered {status}")
        snapshot = snapshot_from(body)
    except (GetError, NoAnswerError, SnapshotDecodeError) as error:
        raise AskError(str(error)) from None
    except TimeoutError:
        raise AskError("no answer in time") from None
    except OSError as error:
        raise AskError(describe_error(error)) from None
    if snapshot.simulated:
        raise AskError("it shows a simulated machine")
    if snapshot.boot_id != boot_id:
        raise AskError("it shows another machine")
    age = time.time() - snapshot.unix
    if age < -MAX_AHEAD_SECONDS:
        age = inf
    return DaemonAnswer(snapshot, time.monotonic(), max(0.0, age), max(0.0, age) + oldest_reading(snapshot), pid)


def listening_pid(connected: socket.socket) -> int:
    """Return the process at the other end of a socket file, 0 for others (unix(7), SO_PEERCRED)."""
    if connected.family is not socket.AF_UNIX:
        return 0
    pid: int = UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))[0]
    return pid


def split_url(url: str) -> tuple[str, str, int]:
    """Return scheme, host or socket file, and port of `unix:PATH` or `http://HOST:PORT`."""
    if url.startswith("unix:"):
        return "unix", url.removeprefix("unix:"), 0
    host, _, port = url.removeprefix("http://").rpartition(":")
    return "http", host.strip("[]"), int(port)


def oldest_reading(snapshot: Snapshot) -> float:
    """Return the age in seconds of the oldest reading of the memory of processes; infinite if one fails."""
    used = [one for one in snapshot.collectors if one.name in COLLECTORS and one.state != "unavailable"]
    ages = [inf if isinstance(one.age_seconds, Absent) or one.state != "ok" else one.age_seconds for one in used]
    return max(ages, default=inf)


def adjust(before: Adjustment, snapshot: Snapshot) -> Adjustment:
    """Return what only the daemon knows about System RAM."""
    ram: Pressure | None = next((one for one in snapshot.pressure if one.target == RAM), None)
    cache = snapshot.zfs_cache
    more = 0 if isinstance(cache, Absent) else max(0, cache.size_bytes - cache.minimum_bytes)
    return Adjustment(before.critical_ratio, ram.resident_bytes if ram else before.resident_bytes, more)


class Known(NamedTuple):
    """A listed process in /proc: when it started, its pages of files and of shared memory, and its name."""

    start_ticks: int
    start_time: float
    shared_bytes: int
    cgroup: Words
    comm: str = ""


def clock_offset() -> float:
    """Return the time of the boot by the clock of now, from the boot's own clock: no file is read."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class BootTimes:
    """The time of the boot by the machine's clock, and those before the clock was set.

    Boards without a battery boot in 1970 and set their clock later, as most machines do by some seconds. All start
    times of processes move with it, those in the daemon's answers within a minute.
    """

    def __init__(self, procfs: Path, offset: Callable[[], float] = clock_offset) -> None:
        self._file, self._offset = procfs / "stat", offset
        self._offset_then, self._times = -inf, tuple[float, ...]()
        self.read()

    def read(self) -> tuple[float, ...]:
        """Return them, the current one first. The file is read only after the clock was set."""
        offset = self._offset()
        if abs(offset - self._offset_then) >= CLOCK_SET_SECONDS:
            self._times = (parse_boot_time(self._file.read_bytes()), *self._times)[:MAX_BOOT_TIMES]
            self._offset_then = offset
        return self._times


class Machine:
    """The candidates. Opening raises OSError and ParseError."""

    def __init__(self, procfs: Path, offset: Callable[[], float] = clock_offset) -> None:
        self._folder = os.open(procfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._boot_times = BootTimes(procfs, offset)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.start_ticks: Mapping[ProcessKey, int] = {}

    def close(self) -> None:
        os.close(self._folder)

    def candidates(self, answer: DaemonAnswer, now: float) -> tuple[Candidate, ...]:
        """Return the listed processes that still run. `now`: monotonic seconds."""
        snapshot = answer.snapshot
        in_ram = ram_places(snapshot)
        device_age = answer.device_age + (now - answer.at)
        askable = {pid for pid, engine in by_pid(snapshot.engines).items() if find_requests(engine)}
        found, ticks = [], {}
        for process in snapshot.processes:
            known = self.read(process)
            if known is None:
                continue
            one = build_candidate(process, known, in_ram, device_age, process.pid in askable)
            one = with_container_name(one, snapshot)
            found.append(one)
            ticks[one.key] = known.start_ticks
        self.start_ticks = ticks
        return tuple(found)

    def read(self, process: Process) -> Known | None:
        """Read a process. None if it has ended, or if its number belongs to another one now."""
        if not process.visible:
            return Known(0, 0.0, 0, Absent.NOT_AVAILABLE)
        prefix = f"{process.pid}/"
        data = read_at(self._folder, f"{prefix}stat", STAT_BYTES)
        try:
            stat = parse_stat(data) if data else None
        except ParseError:
            return None
        if stat is None or isinstance(process.start_time, Absent):
            return None
        starts = [boot_time + stat.start_ticks / self._ticks for boot_time in self._boot_times.read()]
        began = min(starts, key=partial(_distance, process.start_time))
        if abs(began - process.start_time) > SAME_START_SECONDS:
            return None
        columns = (read_at(self._folder, f"{prefix}statm", 160) or b"").split()
        shared = int(columns[2]) * self._page if len(columns) > 2 and columns[2].isdigit() else 0
        paths = parse_cgroup(read_at(self._folder, f"{prefix}cgroup", 4096) or b"")
        cgroup = paths.get("", paths.get("name=systemd", Absent.NOT_AVAILABLE))
        return Known(stat.start_ticks, began, shared, cgroup, stat.name.decode("utf-8", "replace"))


def _distance(one: float, other: float) -> float:
    return abs(one - other)


def build_candidate(
    process: Process, known: Known, in_ram: frozenset[str], device_age: float, is_engine: bool
) -> Candidate:
    """Return a process that could end. `in_ram`: ids of System RAM and of the shares in it."""
    held = {place: size for place, size in process.device_bytes.items() if isinstance(size, int)}
    device = sum(size for place, size in held.items() if place in in_ram)
    whole = process.footprint_low_bytes
    if isinstance(whole, Absent):
        whole = device + (0 if isinstance(process.rss_bytes, Absent) else process.rss_bytes)
    else:
        whole -= sum(held.values()) - device
    # Pages of files and shared memory stay when one process ends, or are available already.
    shared = min(known.shared_bytes, 0 if isinstance(process.rss_bytes, Absent) else process.rss_bytes)
    return Candidate(
        pid=process.pid,
        start_time=known.start_time,
        name=process.title if isinstance(process.name, Absent) else process.name,
        footprint_bytes=max(0, whole - shared),
        device_bytes=device,
        device_age_seconds=device_age,
        commands=tuple(filter(None, dict.fromkeys((process.script, known.comm)))),
        user=process.user,
        unit=process.unit,
        container=process.container,
        cgroup=known.cgroup,
        kernel_unit=None if isinstance(known.cgroup, Absent) else parse_owners({"": known.cgroup}).unit,
        slice=slice_of(known.cgroup),
        visible=process.visible,
        engine=is_engine,
    )


def with_container_name(one: Candidate, snapshot: Snapshot) -> Candidate:
    name = snapshot.container_names.get(one.container) if isinstance(one.container, str) else None
    return replace(one, container_name=name) if name else one


def ram_places(snapshot: Snapshot) -> frozenset[str]:
    """Return the ids of System RAM and of all shares inside it."""
    places = {pool.id for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM}
    for _ in snapshot.shares:
        places |= {share.id for share in snapshot.shares if share.within in places}
    return frozenset(places)


def by_pid(engines: Iterable[Engine]) -> dict[int, Engine]:
    """Return the model server of each of its processes."""
    return {pid: engine for engine in engines for pid in engine.pids}


def slice_of(cgroup: Words) -> Words:
    """Return the slices at the front of a cgroup path, or its first part if it is in none."""
    if isinstance(cgroup, Absent):
        return cgroup
    parts = cgroup.strip("/").split("/")
    slices = []
    for part in parts:
        if not part.endswith(".slice"):
            break
        slices.append(part)
    return "/".join(slices) or parts[0] or "/"
