"""The files of /proc/<pid>: stat, statm, status, cmdline, cgroup, smaps_rollup, mountinfo; and /etc/passwd."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_figures, are_said
from memwatch.collectors import cgroup
from memwatch.linux import process_files as files
from memwatch.linux.cgroup_mounts import home_of
from memwatch.linux.cgroups import folders_of, parse_cgroup, parse_mountinfo, place_of
from memwatch.linux.files import Roots, Unavailable, Unreadable
from memwatch.processes.pss import parse_rollup

MOST_COMMAND = 40


def check(data: bytes) -> None:
    figures(data)
    home(data)
    with suppress(Unreadable):
        rollup = parse_rollup(data, 1)
        are_said(rollup, data + b" 1")
    command = files.parse_command(data, MOST_COMMAND)
    assert len(command) <= MOST_COMMAND
    names = files.parse_passwd(data)
    are_said(list(names), data)
    assert all(names.values())


def figures(data: bytes) -> None:
    with suppress(Unreadable):
        stat = files.parse_stat(data)
        are_figures(stat)
        if stat:
            are_said((stat.rss_pages, stat.pid, stat.start_ticks), data)
            assert stat.name in data
    with suppress(Unreadable):
        are_said(files.parse_statm(data), data)
    with suppress(Unreadable):
        are_said(files.parse_boot_time(data), data)
    with suppress(Unreadable):
        are_said([one for one in (cgroup.parse_limit(data),) if one is not None], data)
    are_said(cgroup.parse_stat(data), data)
    are_said([one for one in (files.parse_uid(data), files.parse_swap(data)) if one is not None], data)


def home(data: bytes) -> None:
    """A process's owners are a part of its own path."""
    paths = parse_cgroup(data)
    place = place_of(paths)
    for path in paths.values():
        for folder in folders_of(place, path).values():
            assert path.startswith(folder)
    assert place.container is None or len(place.container) > 0
    mounts = parse_mountinfo(data)
    assert len(mounts) <= data.count(b" - ")
    front, _, back = data.partition(b"---\n")
    with suppress(Unavailable, Unreadable):
        found = home_of(front, back, Roots())
        assert found.folders
