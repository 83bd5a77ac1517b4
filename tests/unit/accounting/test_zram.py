"""Test that memory explained by zram is moved out of the remainder once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.accounting.compose import with_zram
from memwatch.core.model import Absent, Content, Pool
from memwatch.core.snapshot import Zram
from support.fakes import GIB, ram


def with_remainder(unattributed: int) -> Pool:
    used = 4 * GIB + unattributed
    contents = (Content("kernel", 4 * GIB), Content("unattributed", unattributed), Content("free", 64 * GIB - used))
    return replace(ram(used), unattributed_bytes=unattributed, contents=contents)


@given(st.integers(0, 20 * GIB), st.integers(0, 40 * GIB))
def test_compressed_pages_belong_to_the_kernel(unattributed: int, held: int) -> None:
    """Memory of zram moves from unattributed to kernel, and never more than was unattributed."""
    pool = with_zram(with_remainder(unattributed), Zram(2 * held, held))

    moved = min(held, unattributed)
    sizes = {part.kind: part.size_bytes for part in pool.contents}
    assert pool.unattributed_bytes == sizes["unattributed"] == unattributed - moved
    assert sizes["kernel"] == 4 * GIB + moved
    assert pool.used_bytes == 4 * GIB + unattributed


def test_pool_without_zram_or_remainder_is_unchanged() -> None:
    """A machine without zram keeps its values, and an unknown remainder stays unknown."""
    pool = with_remainder(GIB)
    unknown = replace(ram(GIB), unattributed_bytes=Absent.STALE)

    assert with_zram(pool, None) is pool
    assert with_zram(unknown, Zram(2, 1)) is unknown


@pytest.mark.parametrize("held", [Absent.INCONSISTENT, 99 * GIB])
def test_unattributed_memory_is_unknown_without_that_of_zram(held: int | Absent) -> None:
    """It would contain zram's. No figure of zram exceeds the machine."""
    pool = with_zram(with_remainder(4 * GIB), Zram(GIB, held))

    assert (pool.unattributed_bytes, pool.contents) == (Absent.INCONSISTENT, ())
