"""Owners of all processes, with the memory of each owner's, and processes that are hidden from memwatchd.

Not a collector.

Older versions of NVML, and KFD, list PIDs of the host, some of which exist here too, as other processes. A list is
of this namespace if every PID exists here and its process has a GPU open, as far as its descriptors can be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import INTERPRETER, Command, base_name
from memwatch.core.linux.cgroup_mounts import CgroupUsage
from memwatch.core.linux.cgroups import Mount, parse_mountinfo, sees_all_processes
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.linux.process_files import (
    STATUS_BYTES,
    ProcessOwners,
    ProcessOwnersCache,
    open_folder,
    parse_name,
    parse_uid,
    read_at,
)
from memwatch.core.linux.process_table import ProcessEntry
from memwatch.core.model import Absent, Words
from memwatch.core.owners import OWNER_KINDS, Owner, OwnerKind
from memwatch.core.printable import decode, printable

# Device files of GPUs. All that use one keep a descriptor: CUDA, ROCm, OpenGL.
_DEVICES = re.compile(r"(?:^|/)dev/(?:nvidia|nvgpu|nvhost|nvmap|dxg|kfd|dri/)")
# Reading a descriptor's link takes 3 µs.
MAX_DESCRIPTORS = 4096

HoldsGpu = Callable[[int], "bool | None"]


def holds_gpu(procfs: int, pid: int) -> bool | None:
    """Check if a process under the open folder `procfs` has a GPU open. None if that cannot be read."""
    try:
        with open_folder(procfs, f"{pid}/fd") as folder:
            names = os.listdir(folder)
            for name in names[:MAX_DESCRIPTORS]:
                with suppress(FileNotFoundError):
                    if _DEVICES.search(os.readlink(name, dir_fd=folder)):
                        return True
    except OSError:
        return None
    # None are listed of a process whose first thread has ended.
    return None if not names or len(names) > MAX_DESCRIPTORS else False


class PidLists:
    """Judges the lists of drivers at each scan of the processes.

    A process that was found with a GPU open and is missing later has ended. It says nothing about the list. A list
    in doubt is foreign if the next scan finds the same; until then, verified processes keep their memory.
    """

    def __init__(self) -> None:
        self._verified: dict[int, int] = {}
        self._without: frozenset[int] = frozenset()

    @property
    def are_unconfirmed(self) -> bool:
        """Check if a scan soon is needed, because a process without an open GPU is listed."""
        return bool(self._without)

    def judge(
        self,
        lists: Mapping[str, frozenset[int]],
        starts: Mapping[int, int],
        missing: Collection[int],
        confirmed: frozenset[int],
        holds: HoldsGpu,
    ) -> frozenset[int]:
        """Return the listed PIDs that are not visible here.

        `starts`: of the visible processes with a listed PID; `missing`: those that /proc does not have in this
        scan, `confirmed` ones also before.
        """
        listed = frozenset().union(*lists.values())
        self._verified = {pid: start for pid, start in self._verified.items() if pid in listed}
        states = {
            pid: True if self._verified.get(pid) == start else holds(pid)
            for pid, start in starts.items()
            if pid in listed
        }
        without = frozenset(pid for pid, state in states.items() if state is False)
        gone = listed.intersection(missing) - self._verified.keys()
        foreign = (without & self._without) | (confirmed & gone)
        found = confirmed | without
        for pids in lists.values():
            if pids & foreign:
                found |= pids
            elif pids & (without | gone):  # in doubt: only processes that an earlier scan has verified
                found |= {pid for pid in pids & starts.keys() if self._verified.get(pid) != starts[pid]}
            else:
                self._verified |= {pid: starts[pid] for pid in pids if states.get(pid)}
        self._without = without
        return found


OUTSIDE_HIDDEN = (
    "Processes outside this container and their memory are not visible: start it with the host's PID namespace "
    "(docker run --pid=host) to see them."
)
# Names since Linux 5.8, numbers before (fs/proc/root.c). `noaccess` lists the processes, but their files cannot be
# read. systemd's ProtectProc= mounts /proc with the same options.
_MODES = {"1": "noaccess", "2": "invisible", "4": "ptraceable"}
_HIDEPID = re.compile(r"(?:^|,)hidepid=(\w{1,20})")
_GID = re.compile(r"(?:^|,)gid=(\d{1,10})(?:,|$)")
_PTRACE = "CAP_SYS_PTRACE (systemd: drop-in processes-in-full.conf)"


class HidePid(Struct, frozen=True):
    """The mount option hidepid of a procfs. Members of group `gid` see all processes, unless it is `ptraceable`."""

    mode: str
    gid: int = 0

    @property
    def note(self) -> str:
        """Return a sentence: what is hidden: why; what to do."""
        return (
            "Processes of other users are hidden, and their memory has no known holder: /proc is mounted with "
            f"hidepid={self.mode}; run memwatchd {self._remedy}, or without ProtectProc= if its unit sets that."
        )

    @property
    def _remedy(self) -> str:
        if self.mode == "ptraceable" or not self.gid:
            return f"with {_PTRACE}"
        return f"in group {self.gid}, named by gid= (systemd: SupplementaryGroups={self.gid}), with {_PTRACE}"


def describe_hidden(roots: Roots, contained: bool) -> str | None:
    """Return a sentence that explains why some processes are hidden, or None if all are visible."""
    if not sees_all_processes(read_once(roots.procfs / "2/stat"), contained):
        return OUTSIDE_HIDDEN
    found = find_hidepid(read_once(roots.procfs / "self/mountinfo") or b"", str(roots.procfs))
    # Process 1 belongs to root: a daemon that can read it sees the others as well.
    return found.note if found and read_once(roots.procfs / "1/stat") is None else None


def find_hidepid(mountinfo: bytes, procfs: str) -> HidePid | None:
    """Return the option of the procfs at the path `procfs`, else of /proc. None if it hides nothing.

    Of several mounts at one point the last counts: it covers the others.
    """
    mounts = [mount for mount in parse_mountinfo(mountinfo) if mount.kind == "proc"]
    here = [mount for point in ("/proc", procfs) for mount in mounts if mount.point == point]
    return _parse_options(here[-1]) if here else None


def _parse_options(mount: Mount) -> HidePid | None:
    hidden, group = _HIDEPID.search(mount.options), _GID.search(mount.options)
    if hidden is None or hidden[1] in ("0", "off"):
        return None
    return HidePid(_MODES.get(hidden[1], hidden[1]), int(group[1]) if group else 0)


# A process often gets its cgroup and its user shortly after it starts.
SOON_TURNS, LATER_TURNS = 1, 128
# A listed process whose pages did not change is read in every 12th scan: reading it every time was half of a scan.
SHOWN_TURNS = 12
# The cgroup's own usage is read for this many owners of each kind, the largest first.
MAX_FIGURES = 100

Name = Words | None
User = Callable[[int | None], Words]


class OwnerReader:
    """Reads the owners of processes: of new processes twice, of others occasionally, because they can change."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._homes = ProcessOwnersCache()
        self._turn = 0

    def refresh(self, entries: Iterable[ProcessEntry]) -> None:
        """Read the entries that are due, and drop cached homes that no process has anymore. Call once per scan."""
        self._turn += 1
        kept = set()
        for entry in entries:
            if entry.owners_due <= self._turn:
                self._read(entry)
            kept.add(entry.owners)
        self._homes.keep_only(kept)

    def read(self, entry: ProcessEntry, folder: int) -> bytes:
        """Read an entry's owners from the open folder of its process, and return the content of its status file.

        Listed processes are read this way regularly, so `refresh` reads them only once they are no longer listed.
        """
        first = entry.owners_due == 0
        status = read_at(folder, "status", STATUS_BYTES) or b""
        entry.owners, entry.uid = self._homes.read(folder, "cgroup"), parse_uid(status)
        entry.name = parse_name(status)
        entry.owners_due = self._turn + 1 + (SOON_TURNS if first else SHOWN_TURNS)
        return status

    def _read(self, entry: ProcessEntry) -> None:
        first, before = entry.owners_due == 0, (entry.owners, entry.uid)
        folder = entry.thread or str(entry.pid)
        entry.owners = self._homes.read(self._folder, folder + "/cgroup")
        status = read_at(self._folder, folder + "/status", STATUS_BYTES) or b""
        entry.uid, entry.name = parse_uid(status), parse_name(status)
        if is_generic(entry.name):
            data = read_at(self._folder, folder + "/cmdline", ARGUMENT_BYTES) or b""
            entry.script = find_script(split_arguments(data))
        else:
            entry.script = None
        if (entry.owners, entry.uid) != before:
            entry.shown = None
        # Spread by process id, so that the processes found at startup are not all due at once.
        later = LATER_TURNS // 2 + entry.pid % LATER_TURNS
        entry.owners_due = self._turn + (SOON_TURNS if first else later)


def sum_owners(
    entries: Iterable[ProcessEntry], user: User, page_size: int, usage: CgroupUsage
) -> tuple[Owner, ...]:
    """Return the memory of each unit, container, pod, job and user, the largest of each kind first."""
    found = sum_by_owners(entries)
    owners: list[Owner] = []
    for kind in OWNER_KINDS:
        merged = merge_by(found, kind, user)
        if set(merged) - {None}:
            owners += _with_figures(merged, kind, page_size, usage)
    return tuple(owners)


Sums = Mapping[tuple[ProcessOwners, int | None], tuple[int, int]]


def sum_by_owners(entries: Iterable[ProcessEntry]) -> Sums:
    """Return the number of processes and pages by (home, user). There are few of these, however many processes."""
    sums: dict[tuple[ProcessOwners, int | None], tuple[int, int]] = {}
    for entry in entries:
        key = (entry.owners, entry.uid)
        count, pages = sums.get(key, (0, 0))
        sums[key] = (count + 1, pages + entry.pages)
    return sums


def merge_by(sums: Sums, kind: OwnerKind, user: User) -> dict[Name, tuple[int, int, str | None]]:
    """Return (number of processes, pages, cgroup) of each owner of a kind."""
    merged: dict[Name, tuple[int, int, str | None]] = {}
    for (home, uid), (count, pages) in sums.items():
        name: Name = user(uid) if kind == "user" else home.owner(kind)
        before = merged.get(name, (0, 0, None))
        merged[name] = (before[0] + count, before[1] + pages, before[2] or home.folders.get(kind))
    return merged


def _with_figures(
    merged: Mapping[Name, tuple[int, int, str | None]], kind: OwnerKind, page_size: int, usage: CgroupUsage
) -> Iterable[Owner]:
    owners = [Owner(kind, name, count, pages * page_size) for name, (count, pages, _) in merged.items()]
    owners.sort(key=lambda owner: -owner.rss_bytes)
    for at, owner in enumerate(owners):
        folder = merged[owner.name][2]
        if folder is None:
            yield owner
        else:
            yield replace(owner, cgroup_bytes=usage.read(folder) if at < MAX_FIGURES else Absent.NOT_AVAILABLE)


# Name of the script that an interpreter runs, and the rank of its process in a distributed run. Of a command line
# only the name is kept, of an environment only the rank: both may contain secrets.

# PyTorch names the main thread of its processes so, and with it the process (torch/multiprocessing, since 2.4).
TORCH_MAIN = b"pt_main_thread"
MAX_SCRIPT_CHARACTERS = 64
# Enough for the script and its first options, and for the variables of a job.
ARGUMENT_BYTES, ENVIRONMENT_BYTES = 4096, 32768
# Options of CPython that take the next argument as their value.
_WITH_VALUE = frozenset("WX")
_LONG_WITH_VALUE = "--check-hash-based-pycs"
# torchrun, DeepSpeed and Accelerate set the first, Open MPI and Slurm's srun the others.
RANK_VARIABLES = (b"RANK", b"LOCAL_RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID")
RANK_OPTIONS = ("--local-rank", "--node-rank")
MAX_RANK_DIGITS = 7


def is_generic(name: bytes) -> bool:
    """Return True if a process name says only which interpreter runs, not what."""
    return name == TORCH_MAIN or INTERPRETER.fullmatch(decode(name)) is not None


def split_arguments(data: bytes) -> tuple[str, ...]:
    """Return the arguments in the content of /proc/<pid>/cmdline."""
    return tuple(part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0"))


def find_script(argv: Sequence[str]) -> str | None:
    """Return the script or module of a Python command line, None for code on the command line or from stdin.

    A program that is no interpreter runs one inside, or wrote its own title: then it is the first word.
    """
    program = base_name(argv[0]) if argv else ""
    if not INTERPRETER.fullmatch(program):
        return _shorten(base_name(argv[0].partition(" ")[0])) if argv else None
    rest = iter(argv[1:])
    for argument in rest:
        if argument == "-" or not argument.startswith("-"):
            return None if argument == "-" else _shorten(base_name(argument))
        if argument == _LONG_WITH_VALUE:
            next(rest, "")
        for at, letter in enumerate(argument[1:] if not argument.startswith("--") else ""):
            if letter == "c":
                return None
            if letter == "m":
                return _shorten(argument[at + 2 :] or next(rest, ""))
            if letter in _WITH_VALUE:
                if not argument[at + 2 :]:
                    next(rest, "")
                break
    return None


def find_rank(argv: Sequence[str], environment: Iterable[bytes] = ()) -> int | None:
    """Return the rank in a distributed run. A rank of all machines comes before one of this machine."""
    variables = dict(one.partition(b"=")[::2] for one in environment)
    found = [variables.get(name, b"").decode("ascii", "replace") for name in RANK_VARIABLES]
    command = Command(tuple(argv))
    for text in (*found, *(command.option(name) for name in RANK_OPTIONS)):
        if text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS:
            return int(text)
    return None


def _shorten(name: str) -> str | None:
    text = printable(name)
    return (text if len(text) <= MAX_SCRIPT_CHARACTERS else text[: MAX_SCRIPT_CHARACTERS - 1] + "…") or None
