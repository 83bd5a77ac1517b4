"""Unique labels of pools and shares: makers number only their own GPUs, and a cgroup may have a limit on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from memwatch.core.model import Pool, Share


class Labeled(NamedTuple):
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]


def with_unique_labels(pools: tuple[Pool, ...], shares: tuple[Share, ...]) -> Labeled:
    """Number the pools that have one name, then add the device, or at last the id, to each label that repeats.

    Without a repeated label both are returned unchanged.
    """
    found = Labeled(pools, shares)
    if _is_unique(found):
        return found
    numbered = Labeled(_numbered(pools), shares)
    with_device = _with_suffix(numbered, lambda share: share.device)
    return with_device if _is_unique(with_device) else _with_suffix(numbered, lambda share: share.id)


def _is_unique(found: Labeled) -> bool:
    labels = {place.label for place in found.pools}
    labels.update(share.label for share in found.shares)
    return len(labels) == len(found.pools) + len(found.shares)


def _numbered(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Give pools with one name the number of their GPU, as their maker does if it has several: `VRAM 2`."""
    count = Counter(map(_name, pools))
    return tuple(
        replace(pool, label=f"{_name(pool)}{_number(pool)}") if count[_name(pool)] > 1 else pool for pool in pools
    )


def _name(pool: Pool) -> str:
    return pool.label.removesuffix(_number(pool))


def _number(pool: Pool) -> str:
    return f" {pool.id.removeprefix('gpu')}"


def _with_suffix(found: Labeled, suffix: Callable[[Share], str | None]) -> Labeled:
    count = Counter(pool.label for pool in found.pools)
    count.update(share.label for share in found.shares)
    shares = [
        replace(share, label=f"{share.label} ({suffix(share)})")
        if count[share.label] > 1 and suffix(share)
        else share
        for share in found.shares
    ]
    return Labeled(found.pools, tuple(shares))
