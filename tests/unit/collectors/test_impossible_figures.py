"""Figures of the kernel and of drivers that no machine can have, found by `make machines`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memwatch.core.collectors.meminfo import ArcStats, build_pool
from memwatch.core.collectors.numa import parse_node
from memwatch.core.drivers.drm.cards import build_regions, parse_lmem, parse_vram_mm
from memwatch.core.drivers.nvml.records import GpuMemory
from memwatch.core.drivers.nvml.validation import ImplausibleAnswerError, Limits, merge_rows, plausible_memory
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo import check
from memwatch.core.model import Absent
from support.fakes import GIB


@pytest.mark.parametrize(
    "read",
    [
        lambda: build_pool(check({"MemTotal": 1 << 60, "MemFree": 1, "MemAvailable": 1})),
        lambda: plausible_memory(GpuMemory(2, (1 << 64) - 2, 0, 0, 0)),
        lambda: merge_rows([(7, (1 << 64) - 2, 0)], Limits(1 << 22), None),
    ],
)
def test_figure_beyond_any_machine_is_rejected(read: Callable[[], object]) -> None:
    """An exbibyte. Recordings and the history have 64 bits, so one such figure ended every tick."""
    with pytest.raises((ParseError, ImplausibleAnswerError)):
        read()


def test_node_beyond_any_machine_has_no_size() -> None:
    node = parse_node(0, b"Node 0 MemTotal: 9999999999999999 kB\nNode 0 MemFree: 1 kB\n", b"")

    assert node.size_bytes is Absent.INCONSISTENT


def test_region_beyond_any_card_is_left_out() -> None:
    key, size = ("0000:03:00.0", "vram0"), (1 << 60) + 1

    assert list(build_regions(key[0], {key: size}, {})) == []
    assert parse_lmem(str(size).encode()) is parse_vram_mm("vram0", f" size: {size}\n usage: 1\n".encode()) is None


def test_arc_larger_than_system_ram_does_not_count() -> None:
    """60 GiB of ARC are the host's where meminfo shows a container's 8 GiB: nothing was left in use."""
    kib = {"MemTotal": 8 << 20, "MemFree": 1 << 20, "MemAvailable": 2 << 20}

    assert build_pool(check(kib), arc=ArcStats(60 * GIB, GIB)) == build_pool(check(kib))


def test_free_huge_pages_are_not_more_than_all() -> None:
    kib = {"MemTotal": 8 << 20, "MemFree": 1 << 20, "MemAvailable": 2 << 20}
    pages = {"HugePages_Total": 512, "HugePages_Free": 4096, "HugePages_Rsvd": 0, "Hugepagesize": 2048}
    pool = build_pool(check(kib | pages))

    assert (pool.set_aside_bytes, pool.set_aside_free_bytes) == (GIB, GIB)
