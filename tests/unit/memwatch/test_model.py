"""Test that impossible values cannot be constructed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.model import (
    Absent,
    Content,
    InvalidRecordError,
    Pool,
    PoolKind,
    Process,
    Quality,
    Share,
    ShareKind,
    name_accelerators,
)
from memwatch.core.snapshot import Machine, SelfUsage, Snapshot
from support.fakes import GIB, ram


def share(share_id: str = "cuda0", within: str = "ram", used: int | Absent = GIB) -> Share:
    return Share(share_id, ShareKind.CUDA_POOL, "CUDA Pool", within, used, "nvml:processes", Quality.MEASURED)


def snapshot(pools: tuple[Pool, ...], shares: tuple[Share, ...] = ()) -> Snapshot:
    own = SelfUsage(Absent.NOT_SUPPORTED, 0.0, 0.0, 0.0, False)
    return Snapshot(1, 0.0, 0.0, "boot", "host", 1.0, False, Machine(), own, pools, shares)


def test_pool_whose_parts_do_not_add_up_is_rejected() -> None:
    """used + available = size, always."""
    with pytest.raises(InvalidRecordError, match="used 1 \\+ available 2 is not size 4"):
        Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 4, 1, 2, "test", Quality.MEASURED)


@given(st.integers(max_value=-1))
def test_negative_sizes_are_rejected(figure: int) -> None:
    """Pools, shares, contents and processes reject negative sizes."""
    with pytest.raises(InvalidRecordError, match="negative"):
        replace(ram(GIB), free_bytes=figure)
    with pytest.raises(InvalidRecordError, match="negative"):
        share(used=figure)
    with pytest.raises(InvalidRecordError, match="negative"):
        Content("anonymous", figure)
    with pytest.raises(InvalidRecordError, match="negative"):
        Process(1, 0.0, "init", figure, 0, "rss")


def test_contents_that_do_not_add_up_to_the_pool_are_rejected() -> None:
    """The contents of a pool add up to its size."""
    with pytest.raises(InvalidRecordError, match="contents do not add up"):
        replace(ram(GIB), contents=(Content("anonymous", GIB),))


def test_used_and_available_are_absent_together() -> None:
    """With only one of the two known, a reader might compute the other."""
    stale = replace(ram(GIB), used_bytes=Absent.STALE, available_bytes=Absent.STALE)

    with pytest.raises(InvalidRecordError, match="known or absent together"):
        replace(stale, used_bytes=GIB)

    assert stale.judged_ratio is Absent.STALE


def test_share_without_its_pool_is_rejected() -> None:
    """A share is a part of an existing pool or share."""
    with pytest.raises(InvalidRecordError, match="share cuda0: is within vram0, which does not exist"):
        snapshot((ram(GIB),), (share(within="vram0"),))


def test_circular_shares_are_rejected() -> None:
    """Shares may nest, but not in a circle."""
    circle = (share("a", within="b"), share("b", within="a"))

    with pytest.raises(InvalidRecordError, match="within itself"):
        snapshot((ram(GIB),), circle)


def test_duplicate_ids_are_rejected() -> None:
    """An id names one thing."""
    with pytest.raises(InvalidRecordError, match="same id"):
        snapshot((ram(GIB), ram(2 * GIB)))


def test_relation_is_written_as_a_subset() -> None:
    """CUDA Pool ⊂ System RAM."""
    shot = snapshot((ram(GIB),), (share(),))

    assert shot.relation(shot.shares[0]) == "CUDA Pool ⊂ System RAM"


def test_total_sums_pools_and_is_unknown_if_one_is() -> None:
    """Shares are never added, and a sum with an unknown term is unknown."""
    vram = replace(ram(3 * GIB, 24 * GIB, "vram0"), kind=PoolKind.VRAM)
    stale = replace(vram, used_bytes=Absent.STALE, available_bytes=Absent.STALE)

    assert snapshot((ram(GIB), vram), (share(),)).total.used_bytes == 4 * GIB
    assert snapshot((ram(GIB), stale)).total.used_bytes is Absent.STALE
    assert snapshot((ram(GIB), stale)).total.size_bytes == 88 * GIB


def test_total_is_unknown_without_a_pool() -> None:
    """As before the first reading of meminfo: unknown, and not 0."""
    total = snapshot(()).total

    assert total.size_bytes is total.used_bytes is total.available_bytes is Absent.NOT_AVAILABLE


def test_memory_set_aside_is_left_out_of_the_judged_ratio() -> None:
    """62.5 GiB with 48 GiB of huge pages and 9.9 GiB available is calm, not 84 % full."""
    size, available = int(62.5 * GIB), int(9.9 * GIB)
    pool = replace(ram(size - available, size), set_aside_bytes=48 * GIB)

    ratio = pool.judged_ratio

    assert isinstance(ratio, float)
    assert ratio == pytest.approx(0.317, abs=0.002)


def test_snapshot_is_immutable() -> None:
    """The web app and other readers cannot change a snapshot."""
    shot = snapshot((ram(GIB),))

    with pytest.raises(AttributeError):
        shot.seq = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("places", "kinds"),
    [
        ((), "GPU"),
        (("gpu0.vram", "gpu0.gtt", "ram"), "GPU"),
        (("npu0.buffers",), "NPU"),
        (("npu1.buffers", "gpu0"), "GPU/NPU"),
    ],
)
def test_kind_of_a_device_is_that_of_its_places(places: tuple[str, ...], kinds: str) -> None:
    assert name_accelerators(places) == kinds
