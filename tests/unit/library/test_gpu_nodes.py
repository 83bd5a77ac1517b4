"""System RAM without NUMA nodes that are a GPU's memory, and other nodes without CPUs left in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Pool, PoolKind, Quality
from memwatch.library.gpu_nodes import RETRY_SECONDS, GpuNodes
from memwatch.library.host import Host, Ram, without_nodes
from support.fakes import GIB, FakeClock
from support.paths import MACHINES

RAM = Ram(600 * GIB, 400 * GIB, 300 * GIB)
MEASURED = Quality.MEASURED
SYSTEM_RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 600 * GIB, 200 * GIB, 400 * GIB, "meminfo", MEASURED)
HBM = Pool("gpu0", PoolKind.HBM, "HBM0", 96 * GIB, 0, 96 * GIB, "sysfs:node1/meminfo", MEASURED)


def write_node(folder: Path, *, size: int, free: int, cache: int = 0) -> None:
    lines = {"MemTotal": size, "MemFree": free, "Active(file)": cache, "Inactive(file)": 0, "SReclaimable": 0}
    text = "".join(f"Node 1 {name}: {figure >> 10} kB\n" for name, figure in lines.items())
    (folder / "node1").mkdir(exist_ok=True)
    (folder / "node1/meminfo").write_text(text)


def nodes(folder: Path, *pools: Pool, clock: FakeClock | None = None) -> GpuNodes:
    return GpuNodes(folder, [1, 2], lambda: pools, (clock or FakeClock()).monotonic)


def of(found: GpuNodes) -> Ram | Absent | None:
    seen = found.read()
    return None if seen is None else without_nodes(RAM, seen, found.is_decided)


def test_memory_of_a_gpu_is_subtracted_and_follows_its_node(tmp_path: Path) -> None:
    """Its page cache counts as available there as well."""
    write_node(tmp_path, size=96 * GIB, free=90 * GIB, cache=2 * GIB)
    found = nodes(tmp_path, SYSTEM_RAM, HBM)

    before = of(found)
    write_node(tmp_path, size=96 * GIB, free=10 * GIB)
    after = of(found)

    assert before == Ram(504 * GIB, 308 * GIB, 210 * GIB)
    assert after == Ram(504 * GIB, 390 * GIB, 290 * GIB)


@pytest.mark.parametrize(
    "pools",
    [
        (SYSTEM_RAM,),
        (SYSTEM_RAM, replace(HBM, source="nvml:memory_info_v2")),
        (SYSTEM_RAM, replace(HBM, source="sysfs:node7/meminfo")),
    ],
    ids=["CXL", "VRAM", "a node with CPUs"],
)
def test_other_memory_without_cpus_stays_in_system_ram(tmp_path: Path, pools: Sequence[Pool]) -> None:
    write_node(tmp_path, size=96 * GIB, free=90 * GIB)

    assert of(nodes(tmp_path, *pools)) == RAM


@pytest.mark.parametrize("by_other_call", [False, True], ids=["later", "another call of the program"])
def test_memory_that_was_not_told_from_system_ram_is_looked_for_again(tmp_path: Path, by_other_call: bool) -> None:
    """The first reading did not get the driver's answer. A driver that answers is asked no more."""
    write_node(tmp_path, size=96 * GIB, free=90 * GIB)
    answers, clock = [(replace(SYSTEM_RAM, quality=Quality.ESTIMATED),), (SYSTEM_RAM, HBM)], FakeClock()
    found = GpuNodes(tmp_path, [1], lambda: answers.pop(0), clock.monotonic)

    early = [of(found) for _ in range(2)]
    if by_other_call:
        found.learn(answers.pop())
    else:
        clock.now += RETRY_SECONDS
    late = of(found)
    clock.now += 100 * RETRY_SECONDS
    found.learn((SYSTEM_RAM,))

    assert early == [RAM._replace(quality=Quality.ESTIMATED)] * 2
    assert late == of(found) == Ram(504 * GIB, 310 * GIB, 210 * GIB)
    assert answers == []


def test_system_ram_is_unknown_while_the_nodes_cannot_be_told_or_read(tmp_path: Path) -> None:
    write_node(tmp_path, size=96 * GIB, free=90 * GIB)
    clock = FakeClock()

    def fail() -> Sequence[Pool]:
        raise OSError("gone")

    unknown = GpuNodes(tmp_path, [1], fail, clock.monotonic)
    odd = nodes(tmp_path, SYSTEM_RAM, HBM)
    (tmp_path / "node1/meminfo").write_text("rubbish")

    assert [of(unknown), of(unknown), of(odd)] == [None, None, None]


def test_machine_whose_nodes_have_cpus_is_not_read() -> None:
    folders = MACHINES / "numa-server-2tib"

    host = Host(folders / "proc", folders / "sys")

    assert host.ram() == Host(folders / "proc").ram()
    assert host._nodes is None
    assert host.ram() is not Absent.NOT_AVAILABLE
