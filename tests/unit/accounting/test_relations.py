"""Figures of drivers beside the size of the pool that contains them: as large as the pool, and above it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.accounting.relations import clamp, with_devices
from memwatch.model import Absent, Content, Quality, Share, ShareKind
from support.fakes import GIB, ram

SIZE = 64 * GIB
SHARE = Share("cuda", ShareKind.CUDA_POOL, "CUDA Pool", "ram", 8 * GIB, "test", Quality.MEASURED, limit_bytes=SIZE)


@pytest.mark.parametrize("limit", [SIZE - 1, SIZE])
def test_limit_up_to_the_size_of_the_pool_is_kept_without_a_note(limit: int) -> None:
    share = replace(SHARE, limit_bytes=limit)

    assert clamp(share, {"ram": SIZE}) == share


def test_limit_above_the_size_of_the_pool_is_reduced_with_a_note() -> None:
    found = clamp(replace(SHARE, limit_bytes=SIZE + 1, note="as reported"), {"ram": SIZE})

    assert (found.limit_bytes, found.used_bytes) == (SIZE, 8 * GIB)
    assert "as reported; the driver's limit of 64.0 GiB exceeds its parent" in (found.note or "")


@pytest.mark.parametrize("used", [SIZE - 1, SIZE])
def test_use_up_to_the_size_of_the_pool_is_kept(used: int) -> None:
    assert clamp(replace(SHARE, used_bytes=used), {"ram": SIZE}).used_bytes == used


def test_use_above_the_size_of_the_pool_rejects_both_figures() -> None:
    found = clamp(replace(SHARE, used_bytes=SIZE + 1), {"ram": SIZE})

    assert (found.used_bytes, found.limit_bytes) == (Absent.INCONSISTENT, Absent.INCONSISTENT)


@pytest.mark.parametrize(("figure", "explained"), [(SIZE - 1, 5 * GIB), (SIZE, 5 * GIB), (SIZE + 1, 0)])
def test_device_memory_is_attributed_unless_it_is_larger_than_system_ram(figure: int, explained: int) -> None:
    """A larger figure cannot be memory of this machine, so nothing is explained by it."""
    parts = (Content("anonymous", 35 * GIB), Content("unattributed", 5 * GIB), Content("free", 24 * GIB))
    host = replace(ram(40 * GIB), unattributed_bytes=5 * GIB, contents=parts)

    found = with_devices(host, [figure])

    assert found.unattributed_bytes == 5 * GIB - explained
    assert found.overlap is (explained > 0)
    assert {part.kind: part.size_bytes for part in found.contents}.get("devices", 0) == explained
