"""Figures of drivers beside the size of the pool that contains them: as large as the pool, and above it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.relations import clamp, with_devices, without_nodes
from memwatch.core.model import Absent, Content, Quality, Share, ShareKind
from memwatch.core.snapshot import Node
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


PARTS = (Content("anonymous", 35 * GIB), Content("unattributed", 5 * GIB), Content("free", 24 * GIB))
HOST = replace(ram(40 * GIB), unattributed_bytes=5 * GIB, contents=PARTS)


@pytest.mark.parametrize("figure", [SIZE - 1, SIZE])
def test_device_memory_is_attributed_up_to_all_that_is_unattributed(figure: int) -> None:
    found = with_devices(HOST, [figure])

    assert (found.unattributed_bytes, found.overlap) == (0, True)
    assert {part.kind: part.size_bytes for part in found.contents}["devices"] == 5 * GIB


@pytest.mark.parametrize("figure", [SIZE + 1, Absent.INCONSISTENT])
def test_unattributed_memory_is_unknown_without_that_of_a_device(figure: int | Absent) -> None:
    """A figure larger than System RAM cannot be true either, and the rest contains the memory of the device."""
    found = with_devices(HOST, [figure])

    assert (found.unattributed_bytes, found.contents) == (Absent.INCONSISTENT, ())


def test_system_ram_without_gpu_nodes_stays_an_estimate() -> None:
    host = replace(ram(40 * GIB), quality=Quality.ESTIMATED)
    node = Node(1, 8 * GIB, 4 * GIB, 4 * GIB, has_cpus=False)

    assert without_nodes(host, [node]).quality is Quality.ESTIMATED
    assert without_nodes(ram(40 * GIB), [replace(node, quality=Quality.ESTIMATED)]).quality is Quality.ESTIMATED
    assert without_nodes(ram(40 * GIB), [node]).quality is Quality.DERIVED
