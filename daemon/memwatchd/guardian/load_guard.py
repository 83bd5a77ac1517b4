"""Load guard: freeze a program for seconds while it loads a model faster than memory is reclaimed.

A driver takes free pages faster than kswapd frees file cache, and the machine stalls although there is room. While
the loader is frozen, reclaim catches up. `decide_load` is pure. `Freezer` writes `cgroup.freeze` of cgroup v2.

A frozen cgroup is always thawed: after its time, at the end of the guardian, by its next start or by the unit's
ExecStopPost= after a crash, and, where the guardian itself is stopped, by a shell that was started before.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from memwatch.core import units
from memwatch.core.linux.files import read_once
from memwatch.core.model import Absent, PoolKind
from memwatch.core.printable import describe_error
from memwatch.core.processes.protected import INIT, is_protected_name
from memwatch.core.runtime.own_files import open_own
from memwatchd.guardian.records import Candidate, Limits, LoadLimits, State
from memwatchd.guardian.rules import (
    MAX_DEVICE_SECONDS,
    MAX_READING_SECONDS,
    find_causes,
    matches,
    why_never,
    why_protected,
)

FROZEN_NAME = "frozen.json"
# It is thawed early once this much more than the floor is free or reclaimable.
ENOUGH_RATIO = 1.25
# The shell thaws this long after the guardian should have.
GRACE_SECONDS = 1.0
# A container makes any number of cgroups below its own.
MAX_GROUPS = 256
MAX_NOTE_BYTES = 64 << 10


class LoadDecision(Struct, frozen=True):
    """Freeze the cgroup of a process, or nothing. `reason` is a clause."""

    reason: str
    loader: Candidate | None = None


def decide_load(state: State, load: LoadLimits, limits: Limits, is_falling: bool, spent: float) -> LoadDecision:
    """Return whose cgroup to freeze. `spent`: seconds for which it was frozen in this load."""
    pool = next((one for one in state.pools if one.kind is PoolKind.SYSTEM_RAM), None)
    if pool is None or pool.ready_bytes is None or not 0 <= state.now - state.read_at <= MAX_READING_SECONDS:
        return LoadDecision("free and reclaimable memory is not known")
    left = f"{units.size(max(0, pool.ready_bytes))} are free or reclaimable"
    if pool.ready_bytes >= load.floor_bytes:
        return LoadDecision(left)
    if not is_falling:
        return LoadDecision(f"{left}, and they do not fall fast")
    causes, unknown = find_causes(state)
    if not causes:
        return LoadDecision(f"{left}; {unknown}")
    loader = causes[0]
    why = why_not_frozen(loader, state, load, limits, spent)
    if why:
        return LoadDecision(f"{left}; {loader.title} is not frozen: {why}")
    return LoadDecision(f"{left}, and {loader.title} loads into a GPU", loader)


def why_not_frozen(one: Candidate, state: State, load: LoadLimits, limits: Limits, spent: float) -> str:
    """Return why a process is not frozen, as a clause; empty if it may be."""
    if one.device_bytes <= 0:
        return "it holds no memory of a GPU"
    if one.device_age_seconds > MAX_DEVICE_SECONDS:
        return "its memory of GPUs was read too long ago"
    if why := why_protected(one, state) or why_never(one, limits):
        return why
    if not any(matches(one, match) for match in load.units):
        return "freeze does not list it"
    if own_cgroup(one) is None:
        return "its cgroup has other processes as well, or is not known"
    if spent >= load.total_seconds:
        return f"it was frozen for {units.duration(spent)} in this load, and more than that is not allowed"
    return ""


def own_cgroup(one: Candidate) -> str | None:
    """Return the path of a cgroup below its mount that is that of a unit, None for slices and unknown ones."""
    if isinstance(one.cgroup, Absent):
        return None
    path = one.cgroup.strip("/")
    return None if not path or path.endswith(".slice") or ".." in path.split("/") else path


class FreezeError(Exception):
    """Nothing is frozen. The message is a clause."""


class Frozen(Struct, frozen=True):
    """A frozen cgroup. `file`: the control file; `until`: monotonic seconds, of this boot."""

    file: str
    title: str
    since: float
    until: float


class Freezer:
    """At most one frozen cgroup, with a note of it on the disk and a shell that thaws it if the guardian cannot."""

    def __init__(self, cgroups: Path, procfs: Path, folder: Path) -> None:
        self._cgroups, self._procfs = cgroups, procfs
        self._note = folder / FROZEN_NAME
        self._shell: subprocess.Popen[bytes] | None = None
        self.frozen: Frozen | None = None

    def freeze(self, loader: Candidate, now: float, seconds: float, own_pids: frozenset[int]) -> Frozen:
        """Freeze the cgroup of a process. Raises FreezeError."""
        path = own_cgroup(loader)
        if path is None:
            raise FreezeError("its cgroup is not known")
        folder = find_hierarchy(self._cgroups) / path
        file = folder / "cgroup.freeze"
        refuse_members(folder, self._procfs, own_pids)
        if (read_once(file) or b"").strip() != b"0":
            raise FreezeError("it is frozen already, or its cgroup.freeze is not readable")
        frozen = Frozen(str(file), loader.title, now, now + seconds)
        try:
            self._write_note(frozen)
            self.frozen = frozen
            self._shell = start_shell(file, seconds + GRACE_SECONDS)
            write_freeze(file, b"1")
        except OSError as error:
            self.thaw()
            raise FreezeError(describe_error(error)) from None
        return frozen

    def thaw(self) -> str:
        """Thaw what is frozen, and return the result as a clause. It stays noted if that failed."""
        if self.frozen is None:
            return "nothing was frozen"
        result = thaw_file(Path(self.frozen.file))
        if result == "thawed":
            self.frozen = None
            with suppress(OSError):
                self._note.unlink()
            self._end_shell()
        return result

    def thaw_last_run(self) -> str | None:
        """Thaw what a guardian froze that ended before it thawed it. Return the result as a clause, if any."""
        return thaw_noted(self._note)

    def _write_note(self, frozen: Frozen) -> None:
        with open(open_own(self._note, os.O_RDWR), "r+b") as file:
            file.truncate()
            file.write(msgspec.json.encode(frozen))

    def _end_shell(self) -> None:
        if self._shell is not None:
            self._shell.kill()
            self._shell.wait()
            self._shell = None


def find_hierarchy(cgroups: Path) -> Path:
    """Return the mount of cgroup v2, also of a hybrid layout. Raises FreezeError."""
    for folder in (cgroups, cgroups / "unified"):
        if (folder / "cgroup.controllers").exists():
            return folder
    raise FreezeError(f"{cgroups} is cgroup v1, and freezing needs cgroup v2 (Linux 5.2)")


def refuse_members(folder: Path, procfs: Path, own_pids: frozenset[int]) -> None:
    """Raise FreezeError if the cgroup, or one below it, has a process that must go on, or if that is not known."""
    for number, (one, _, _) in enumerate(os.walk(folder)):
        if number >= MAX_GROUPS:
            raise FreezeError(f"it has {MAX_GROUPS} cgroups or more, whose processes are not looked at")
        data = read_once(Path(one) / "cgroup.procs")
        if data is None:
            raise FreezeError("its processes are not readable")
        for pid in map(int, data.split()):
            name = (read_once(procfs / f"{pid}/comm") or b"").decode("utf-8", "replace").strip()
            if pid <= INIT or pid in own_pids or is_protected_name(name):
                raise FreezeError(f"{name or 'a process'} ({pid}) is in the same cgroup, and is never frozen")


def start_shell(file: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Start a shell that thaws the cgroup after a time, also while the guardian is stopped. Raises OSError."""
    script = 'sleep "$1"; echo 0 > "$2"'
    return subprocess.Popen(  # noqa: S603  no word of another program
        ["/bin/sh", "-c", script, "sh", f"{seconds:.1f}", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def write_freeze(file: Path, value: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)


def thaw_file(file: Path) -> str:
    """Thaw a cgroup and return the result as a clause. One that is gone needs no thawing."""
    try:
        write_freeze(file, b"0")
    except FileNotFoundError:
        return "thawed"
    except OSError as error:
        return f"not thawed: {describe_error(error)}"
    return "thawed"


def thaw_noted(note: Path) -> str | None:
    """Thaw what a note says. Return the result as a clause, None without a note."""
    if not note.exists():
        return None
    try:
        with open(open_own(note, os.O_RDONLY), "rb") as file:
            data = file.read(MAX_NOTE_BYTES)
    except OSError as error:
        return f"{note} is not read, so that a frozen cgroup is not known: {describe_error(error)}"
    try:
        frozen = msgspec.json.decode(data, type=Frozen)
    except msgspec.DecodeError:
        return f"{note} is not readable, so that a frozen cgroup is not known" if data else None
    result = thaw_file(Path(frozen.file))
    if result == "thawed":
        with suppress(OSError):
            note.unlink()
    return f"{frozen.title}, which was frozen by the last guardian: {result}"


def is_enough(ready: int | None, load: LoadLimits) -> bool:
    """Return True if a frozen loader may go on before its time."""
    return ready is not None and ready >= load.floor_bytes * ENOUGH_RATIO


def describe_freeze(frozen: Frozen, now: float, before: int, ready: int | None) -> str:
    """Return what a freeze did, as a clause."""
    gained = (
        "" if ready is None else f"; {units.size(before)} were free or reclaimable, {units.size(ready)} are now"
    )
    return f"frozen for {now - frozen.since:.1f} s{gained}"
