"""Child process that reads the files of a model with the rights of the server that serves it. One request.

Where memwatchd is root, the child becomes the user of the server, for good. Where it is not, it refuses what the
server itself might not read (see memwatch.core.linux.user_files).
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from msgspec import json

from memwatch.core.engines.options_file import MAX_BYTES, parse_options
from memwatch.core.engines.records import ModelQuery, ServedBy
from memwatch.core.helper.bootstrap import bootstrap, die_with_parent, offer_to_oom_killer, write_all
from memwatch.core.linux.capabilities import parse_effective
from memwatch.core.linux.cgroups import parse_mountinfo
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.model_files import find_home, find_model
from memwatch.core.linux.process_files import (
    STAT_BYTES,
    STATUS_BYTES,
    Credentials,
    parse_credentials,
    parse_stat,
    read_at,
)
from memwatch.core.linux.user_files import UserFiles
from memwatch.planning.served import ServedModel, read_served

# An index of 90,000 tensors and a header of 50,000 take 150 MiB to parse.
MAX_MEMORY_BYTES = 512 << 20
MAX_CPU_SECONDS = 5
NOT_READABLE = "The files of its model ({name}) are not readable here."


def main() -> int:
    answers = bootstrap()
    offer_to_oom_killer()
    query = json.decode(sys.stdin.buffer.readline(), type=ModelQuery)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    write_all(answers, json.encode(read_model(query)) + b"\n")
    return 0


def read_model(query: ModelQuery) -> ServedModel:
    """Return the model. One that may not be read has the failure of one that does not exist."""
    missing = ServedModel(failure=NOT_READABLE.format(name=query.name[:120]))
    try:
        return _read(query, missing)
    except (OSError, ParseError, MemoryError):
        return missing


def _read(query: ModelQuery, missing: ServedModel) -> ServedModel:
    """Raises OSError and ParseError if the process has ended, or hides what it is."""
    by = query.by
    if by is None:
        return missing
    process = os.open(Path(by.procfs, str(by.pid)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = open_root(process, by)
    rights = parse_credentials(read_at(process, "status", STATUS_BYTES) or b"")
    cwd = find_cwd(process)
    stat = parse_stat(read_at(process, "stat", STAT_BYTES) or b"")
    if stat is None or stat.start_ticks != by.start_ticks:
        return missing
    files = UserFiles(root, take_rights(rights))
    if query.is_options:
        return read_options(files, query.name, cwd) or missing
    found = find_model(query.name, files, find_home(files, rights.uid), cwd)
    return read_served(found) if found else missing


def read_options(files: UserFiles, name: str, cwd: str) -> ServedModel | None:
    """Return the options in a file that the command line of a server names, None if the server may not read it."""
    if not name or "\0" in name or not (cwd or name.startswith("/")):
        return None
    data = files.path(os.path.join(cwd, name)).read(MAX_BYTES)
    return None if data is None else ServedModel(options=parse_options(data))


def open_root(process: int, by: ServedBy) -> int:
    """Return the root folder of a process. Raises FileNotFoundError if it cannot be entered.

    A folder that may not be entered is ours if both processes have the same file system there.
    """
    try:
        return os.open("root/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    except OSError:
        pass
    theirs = find_root(read_once(Path(by.procfs, str(by.pid), "mountinfo")))
    if theirs is None or theirs != find_root(read_once(Path(by.procfs, "self/mountinfo"))):
        raise FileNotFoundError
    return os.open(by.rootfs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def find_root(mountinfo: bytes | None) -> tuple[str, str] | None:
    """Return the device and the folder that are mounted at `/`, None if the kernel does not tell."""
    mounts = reversed(parse_mountinfo(mountinfo or b""))
    return next(((one.device, one.root) for one in mounts if one.point == "/"), None)


def find_cwd(process: int) -> str:
    try:
        return os.readlink("cwd", dir_fd=process)
    except OSError:
        return ""


def take_rights(rights: Credentials) -> int | None:
    """Become the user of the server, if this process is root.

    Return the user whose rights are to be checked file by file, None if this process has no more rights than the
    server.
    """
    if os.geteuid() == 0:
        os.setgroups(rights.groups)
        os.setresgid(rights.gid, rights.gid, rights.gid)
        os.setresuid(rights.uid, rights.uid, rights.uid)
        die_with_parent()  # a change of the user ends that (prctl(2))
    same = set(os.getresuid()) == {rights.uid} and set(os.getresgid()) == {rights.gid}
    if os.geteuid() == rights.uid and same and not _exceeds(rights):
        return None
    return rights.uid


def _exceeds(rights: Credentials) -> bool:
    """Return True if this process has a capability or a group that the server has not."""
    capabilities = parse_effective(read_once(Path("/proc/self/status")) or b"")
    return bool(capabilities & ~rights.capabilities) or not set(os.getgroups()) <= {rights.gid, *rights.groups}
