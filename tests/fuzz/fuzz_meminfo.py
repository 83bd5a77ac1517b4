"""/proc/meminfo and its derived values: each value is in the line of its name, and parts add up."""

from __future__ import annotations

import re
from contextlib import suppress

from fuzz.oracle import are_in_input, are_valid, at_most_sum_of_input, numbers_of
from memwatch.core.collectors import cgroup, cgroup_pressure, drm, meminfo, numa
from memwatch.core.drivers.tegra import nvmap
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.files import ParseError
from memwatch.core.linux.meminfo import UNREAD, Meminfo, parse_low_watermark
from memwatch.core.linux.meminfo import check as check_lines
from memwatch.core.model import Absent, Pool, Quality
from memwatch.core.snapshot import Swap
from memwatch.library import host
from memwatch.library.host import Ram


def check(data: bytes) -> None:
    """Check both parts around `---`: the second must be parsed as if it were the first."""
    front, _, back = data.partition(b"---\n")
    whole(front)
    parts(front)
    with suppress(ParseError):
        reader = Meminfo()
        with suppress(ParseError):
            reader.parse(front)
        assert reader.parse(back) == Meminfo().parse(back)


def whole(data: bytes) -> None:
    with suppress(ParseError):
        kib = Meminfo().parse(data)
        of_its_line(kib, data)
        with suppress(ParseError):
            swap = meminfo.build_swap(check_lines(kib))
            if isinstance(swap, Swap):
                are_valid(swap)
                are_in_input(swap.size_bytes, data + b" 0")
        adds_up(meminfo.build_pool(check_lines(kib), parse_low_watermark(data, 4096)), data)


def of_its_line(kib: dict[str, int], data: bytes) -> None:
    """Check each figure but those of lines without a number, which are refuted."""
    for key, figure in kib.items():
        if figure == UNREAD:
            continue
        line = rb"^" + re.escape(key.encode()) + rb": *0*" + str(figure).encode() + rb" ?(?:kB)?$"
        assert re.search(line, data, re.MULTILINE), f"{key} is {figure} in {data!r:.300}"


def adds_up(pool: Pool, data: bytes) -> None:
    are_valid(pool)
    are_in_input(pool.size_bytes, data)
    assert isinstance(pool.used_bytes, int)
    assert isinstance(pool.available_bytes, int)
    assert pool.used_bytes + pool.available_bytes == pool.size_bytes
    assert pool.free_bytes is Absent.INCONSISTENT or (
        isinstance(pool.free_bytes, int) and pool.free_bytes <= pool.size_bytes
    )
    assert not pool.contents or sum(part.size_bytes for part in pool.contents) == pool.size_bytes
    assert pool.contents or pool.overlap or isinstance(pool.unattributed_bytes, Absent)


def parts(data: bytes) -> None:
    """Check readers of single lines."""
    with suppress(ParseError):
        are_in_input(cgroup.parse_size(data), data)
    with suppress(ParseError):
        node = numa.parse_node(0, data, None)
        are_valid(node)
        at_most_sum_of_input(node, data)
    with suppress(DecodeError):
        are_in_input(nvmap.parse_meminfo(data), data)
    are_in_input(drm.parse_gpu_active(data), data)
    ram = host.parse_meminfo(data)
    if isinstance(ram, Ram):
        are_in_input((ram.total_bytes, ram.free_bytes), data)
        assert ram.quality is Quality.ESTIMATED or ram.available_bytes in {one << 10 for one in numbers_of(data)}
        assert ram.available_bytes <= ram.total_bytes
    assert 0 <= cgroup_pressure.parse_used(data) <= 1
