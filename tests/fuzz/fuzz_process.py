"""Files of /proc/<pid>: stat, statm, status, cmdline, cgroup, smaps_rollup, mountinfo, net/tcp; passwd, subuid."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address

from fuzz.oracle import are_in_input, are_valid
from memwatch.core.collectors import cgroup
from memwatch.core.linux import cgroup_mounts
from memwatch.core.linux import process_files as files
from memwatch.core.linux.accounts import MAX_ID, parse_subuid
from memwatch.core.linux.cgroup_mounts import find_own_cgroup
from memwatch.core.linux.cgroups import owner_folders, parse_cgroup, parse_mountinfo, parse_owners
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.listeners import parse_listeners
from memwatch.core.linux.tcp_peer import parse_rows
from memwatch.core.processes.process_folder import parse_rollup

MAX_COMMAND = 40


def check(data: bytes) -> None:
    figures(data)
    home(data)
    with suppress(ParseError):
        rollup = parse_rollup(data, 1)
        are_in_input(rollup, data + b" 1")
    command = files.parse_command(data, MAX_COMMAND)
    assert len(command) <= MAX_COMMAND
    names = files.parse_passwd(data)
    are_in_input(list(names), data)
    assert all(names.values())
    accounts(data)
    sockets(data)


def accounts(data: bytes) -> None:
    ranges = parse_subuid(data, {b"ana": 1000})
    assert ranges == sorted(ranges)
    for one in ranges:
        assert one.size > 0
        assert one.first + one.size <= MAX_ID
        are_in_input((one.first, one.size), data)


def sockets(data: bytes) -> None:
    lines = data.splitlines(keepends=True)
    for one in parse_listeners(lines):
        assert 0 <= one.port <= 0xFFFF
        assert one.loopback is None or ip_address(one.loopback).is_loopback
        are_in_input((one.uid, one.inode), data)
    are_in_input(list(parse_rows(lines, b"0100007F:DA2C", b"0100007F:9A33")), data)


def figures(data: bytes) -> None:
    with suppress(ParseError):
        stat = files.parse_stat(data)
        are_valid(stat)
        if stat:
            are_in_input((stat.rss_pages, stat.pid, stat.start_ticks), data)
            assert stat.name in data
    with suppress(ParseError):
        are_in_input(files.parse_statm(data), data)
    with suppress(ParseError):
        are_in_input(files.parse_boot_time(data), data)
    with suppress(ParseError):
        are_in_input([one for one in (cgroup_mounts.parse_limit(data),) if one is not None], data)
    are_in_input(cgroup.parse_stat(data), data)
    are_in_input([one for one in (files.parse_uid(data), files.parse_swap(data)) if one is not None], data)


def home(data: bytes) -> None:
    """Check that the owners of a process are a part of its path."""
    paths = parse_cgroup(data)
    place = parse_owners(paths)
    for path in paths.values():
        for folder in owner_folders(place, path).values():
            assert path.startswith(folder)
    assert place.container is None or len(place.container) > 0
    mounts = parse_mountinfo(data)
    assert len(mounts) <= data.count(b" - ")
    front, _, back = data.partition(b"---\n")
    with suppress(SourceUnavailable, ParseError):
        found = find_own_cgroup(front, back, Roots())
        assert found.folders
