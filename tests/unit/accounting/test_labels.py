"""Unique labels of pools and shares."""

from __future__ import annotations

import pytest

from memwatch.core.accounting.compose import with_unique_labels
from memwatch.core.model import Pool, PoolKind, Quality, Share, ShareKind


def pool(its_id: str, label: str) -> Pool:
    return Pool(its_id, PoolKind.VRAM, label, 10, 4, 6, "", Quality.MEASURED)


def share(its_id: str, label: str, device: str | None = None) -> Share:
    return Share(its_id, ShareKind.GPU_LIMIT, label, "gpu0", 1, "", Quality.MEASURED, device=device)


RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 10, 4, 6, "", Quality.MEASURED)


def test_unique_labels_are_unchanged() -> None:
    pools, shares = (RAM, pool("gpu0", "VRAM")), (share("gpu0.limit.a", "a limit"),)

    found = with_unique_labels(pools, shares)

    assert found.pools is pools
    assert found.shares is shares


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Each maker reports one GPU; one of them has its number already.
        (["VRAM", "VRAM 1", "VRAM"], ["VRAM 0", "VRAM 1", "VRAM 2"]),
        (["VRAM", "VRAM 1", "GPU carve-out", "VRAM"], ["VRAM 0", "VRAM 1", "GPU carve-out", "VRAM 3"]),
    ],
)
def test_pools_of_one_label_get_the_number_of_their_gpu(before: list[str], after: list[str]) -> None:
    pools = (RAM, *(pool(f"gpu{number}", label) for number, label in enumerate(before)))

    assert [one.label for one in with_unique_labels(pools, ()).pools] == ["System RAM", *after]


def test_limits_of_one_container_name_their_gpu() -> None:
    shares = (share("gpu0.limit.c", "c limit", "gpu0"), share("gpu1.limit.c", "c limit", "gpu1"), share("x", "y"))

    assert [one.label for one in with_unique_labels((), shares).shares] == ["c limit (gpu0)", "c limit (gpu1)", "y"]


def test_units_with_one_name_show_their_id() -> None:
    """The same unit of two users, and cgroups without a device."""
    shares = (
        share("gpu0.limit.user-1/a", "a limit", "gpu0"),
        share("gpu0.limit.user-2/a", "a limit", "gpu0"),
        share("one", "limit"),
        share("two", "limit"),
    )

    labels = [one.label for one in with_unique_labels((), shares).shares]

    assert labels == [
        "a limit (gpu0.limit.user-1/a)",
        "a limit (gpu0.limit.user-2/a)",
        "limit (one)",
        "limit (two)",
    ]
