"""Test that the library reads System RAM as the daemon does, odd lines included."""

from __future__ import annotations

import pytest

from memwatch.core.collectors.meminfo import build_pool
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo import Meminfo, check
from memwatch.core.model import Absent, Quality
from memwatch.library.host import Ram, parse_meminfo
from support.answer_corruption import corrupt_lines
from support.paths import MACHINES


def by_daemon(text: bytes) -> Ram | Absent:
    """Return System RAM of the same text as the daemon has it."""
    try:
        pool = build_pool(check(Meminfo().parse(text)))
    except ParseError:
        return Absent.NOT_SUPPORTED
    assert isinstance(pool.available_bytes, int)
    return Ram(pool.size_bytes, pool.available_bytes, pool.free_bytes, pool.quality)


@pytest.mark.parametrize("name", ["gb10", "old-kernel", "workstation"])
def test_library_and_daemon_agree_on_corrupted_lines(name: str) -> None:
    """A wrapped counter of file pages made a full machine look empty to a training program."""
    text = (MACHINES / name / "proc/meminfo").read_bytes()
    for field, how, data in corrupt_lines(text):
        found, expected = parse_meminfo(data), by_daemon(data)
        if isinstance(expected, Absent):  # the daemon has no pool without MemFree, and an error that names the line
            known = None if isinstance(found, Absent) else found.free_bytes
            assert known in (None, Absent.NOT_SUPPORTED if field == "MemFree" else None), f"{field} {how}"
        else:
            assert found == expected, f"{field} {how}"


def test_leaked_file_pages_are_not_available() -> None:
    kib = {"MemTotal": 131_072_000, "MemFree": 2 << 20, "MemAvailable": 78 << 20, "Buffers": 0, "Cached": 6 << 20}
    kib |= {"SwapCached": 0, "Active(anon)": 60 << 20, "Inactive(anon)": 53 << 20, "Active(file)": 0}
    kib |= {"Inactive(file)": 78 << 20, "AnonPages": 112 << 20, "Shmem": 1 << 20, "SReclaimable": 1 << 20}
    found = parse_meminfo("".join(f"{key}: {value} kB\n" for key, value in kib.items()).encode())

    assert isinstance(found, Ram)
    assert (found.available_bytes, found.quality) == (8 << 30, Quality.ESTIMATED)
