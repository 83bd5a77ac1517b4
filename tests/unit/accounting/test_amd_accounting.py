"""Test how an AMD GPU is accounted, from readings of its driver and the kernel. No daemon, no files."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.accounting import amd
from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.amd.architecture import takes_gtt
from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading, AmdSensors, KfdNode, Region
from memwatch.core.drivers.drm.records import DrmClient, DrmReading
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, Quality, Vitals
from memwatch.core.pressure.inputs import build_targets
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import Machine

MIB, GIB = 1 << 20, 1 << 30
PCI = "0000:03:00.0"
RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 64 * GIB, 34 * GIB, 30 * GIB, "meminfo", Quality.MEASURED)
NODE = KfdNode(1, 77, PCI, "gfx1151", 0)
CARD = AmdCard(
    PCI, ("card1",), "renderD128", "744c", "c8", "Card", 24 * GIB, 24 * GIB, 32 * GIB, (6, 16), has_board_info=True
)
APU = replace(CARD, has_board_info=False, device_id="1586", vram_bytes=512 * MIB, visible_vram_bytes=512 * MIB)


def gpu_of(card: AmdCard, vram_used: Bytes = 0, gtt_used: Bytes = 0, **fields: Any) -> AmdGpu:
    vram, gtt = Region(card.vram_bytes, vram_used), Region(card.gtt_bytes, gtt_used)
    return AmdGpu(card, vram, vram, gtt, "active", **fields)


def findings_of(*gpus: AmdGpu, limit: Bytes = Absent.NOT_SUPPORTED, **fields: Any) -> Findings:
    return Findings(pools=(RAM,), amdgpu=AmdReading(gpus, Absent.NOT_SUPPORTED, limit), **fields)


def clients(*found: DrmClient, unreadable: int = 0) -> DrmReading:
    return DrmReading((), found, 10, unreadable)


def client(pid: int, vram: int = 0, gtt: int = 0, pdev: str | None = PCI, node: str = "renderD128") -> DrmClient:
    return DrmClient("amdgpu", pdev, node, pid, (pid,), "resident", {"vram": vram, "gtt": gtt})


def only(found: Findings) -> tuple[Findings, Device]:
    whole = Composer().compose([found])
    (device,) = whole.devices
    return whole, device


@pytest.mark.parametrize(
    ("release", "carve_out", "gtt", "bank", "limit", "expected"),
    [
        ((6, 9), GIB, 32 * GIB, 0, 32 * GIB, False),
        ((6, 10), GIB, 32 * GIB, 0, 32 * GIB, True),
        ((6, 14), 64 * GIB, 32 * GIB, 0, 32 * GIB, True),
        ((6, 15), 64 * GIB, 32 * GIB, 0, 32 * GIB, False),
        ((6, 15), GIB, 32 * GIB, 0, 32 * GIB, True),
        ((6, 15), 32 * GIB, 32 * GIB, 32 * GIB, 32 * GIB, False),
        ((6, 8), GIB, 32 * GIB, 32 * GIB, 32 * GIB, True),
        ((6, 16), GIB, 32 * GIB, GIB, 32 * GIB, False),
        ((6, 16), 64 * GIB, 32 * GIB, 16 * GIB, 16 * GIB, True),
        ((6, 16), 0, 32 * GIB, 0, 32 * GIB, True),
        ((6, 16), Absent.NOT_SUPPORTED, 32 * GIB, 0, 32 * GIB, True),
        ((), GIB, 32 * GIB, 0, Absent.NOT_SUPPORTED, False),
        ((7, 0), GIB, Absent.NOT_SUPPORTED, 0, Absent.NOT_SUPPORTED, False),
    ],
)
def test_rocm_allocates_from_gtt_on_an_apu_by_kernel_and_sizes(
    release: tuple[int, ...], carve_out: Bytes, gtt: Bytes, bank: Bytes, limit: Bytes, expected: bool
) -> None:
    """The compute driver's size of the GPU decides; without it, the kernel version does."""
    node = replace(NODE, bank_bytes=bank)
    gpu = gpu_of(replace(APU, release=release, vram_bytes=carve_out, gtt_bytes=gtt, nodes=(node,)))

    assert takes_gtt(gpu, True, limit) is expected
    assert takes_gtt(gpu, False, limit) is False


@pytest.mark.parametrize(
    ("gtt_used", "limit", "held", "free"),
    [
        (GIB, Absent.NOT_SUPPORTED, 0, 30 * GIB),
        (10 * GIB, Absent.NOT_SUPPORTED, 0, 22 * GIB),
        (GIB, 8 * GIB, 0, 7 * GIB),
        (GIB, GIB // 2, 0, 0),
        (GIB, Absent.NOT_SUPPORTED, 60 * GIB, 64 * GIB - GIB - (3 << 29) - 60 * GIB),
        (Absent.INCONSISTENT, Absent.NOT_SUPPORTED, 0, Absent.INCONSISTENT),
    ],
)
def test_free_memory_by_rocm_is_the_smallest_limit(gtt_used: Bytes, limit: Bytes, held: int, free: Bytes) -> None:
    """Smallest of available System RAM, the GPU's limit, the limit for all GPUs and the compute driver's budget."""
    gpu = gpu_of(replace(APU, nodes=(NODE,)), gtt_used=gtt_used, held={700: held})

    _, device = only(findings_of(gpu, limit=limit))

    assert device.api_free_bytes == {"rocm": free}


def test_gpu_without_a_compute_node_has_no_rocm_free_memory() -> None:
    """ROCm cannot use a GPU that the compute driver (KFD) does not list."""
    _, device = only(findings_of(gpu_of(APU)))

    assert device.api_free_bytes == {}


def test_an_undecided_gpu_keeps_its_pools_apart() -> None:
    """Neither known card nor known APU: VRAM is a pool, GTT is in System RAM, and only VRAM is allocated from."""
    card = replace(CARD, has_board_info=False, release=(6, 1), device_id="ffff")

    whole, device = only(findings_of(gpu_of(card, GIB, GIB)))

    assert device.architecture is Architecture.UNKNOWN
    assert device.allocates_from == ("gpu0",)
    assert [pool.kind for pool in whole.pools] == [PoolKind.SYSTEM_RAM, PoolKind.VRAM]
    assert whole.machine is not None
    assert "System RAM is unknown" in whole.machine.explanation


def test_unattributed_memory_is_unknown_before_clients_are_read() -> None:
    """Before the first scan of clients, unattributed memory is unknown and so is the state of the process list."""
    whole, device = only(findings_of(gpu_of(CARD, 5 * GIB)))
    late, stale = only(findings_of(gpu_of(CARD, 5 * GIB), drm=clients(), stale=frozenset({"drm"})))

    assert whole.pools[1].unattributed_bytes is Absent.NOT_AVAILABLE
    assert device.process_list is Absent.NOT_AVAILABLE
    assert late.pools[1].unattributed_bytes is Absent.STALE
    assert stale.process_list is Absent.STALE


def test_process_list_in_a_container_is_partial() -> None:
    """An incomplete list is reported as partial, even if every entry in it could be read."""
    hidden = Machine(in_container=True, sees_all_processes=False)

    _, device = only(findings_of(gpu_of(CARD), drm=clients(), machine=hidden))

    assert device.process_list == "partial"


def test_clients_of_other_drivers_and_gpus_are_ignored() -> None:
    """A client matches by PCI address; without one, a partition's client matches by its device file."""
    slice_node = replace(NODE, render_minor=131)
    card = replace(CARD, nodes=(slice_node,))
    found = clients(
        client(700, vram=GIB),
        client(701, vram=GIB, pdev="0000:0a:00.0"),
        client(702, vram=GIB, pdev=None, node="renderD131"),
        client(703, vram=GIB, pdev=None, node="renderD140"),
        replace(client(704, vram=GIB), driver="xe"),
    )

    (device_memory,) = amd.build_device_memories(findings_of(gpu_of(card, 5 * GIB), drm=found), 0)

    assert device_memory.held == {700: {"gpu0": GIB}, 702: {"gpu0": GIB}}
    assert device_memory.pools[0].unattributed_bytes == 3 * GIB


def test_kfd_and_fdinfo_of_one_process_are_not_added_up() -> None:
    """KFD and fdinfo: the larger value counts; a process that only one of them lists keeps that value."""
    gpu = gpu_of(replace(CARD, nodes=(NODE,)), 12 * GIB, held={700: 4 * GIB, 701: 2 * GIB, 702: GIB, 703: 0})
    found = clients(client(700, vram=5 * GIB), client(701, vram=GIB), client(704, gtt=GIB))

    (device_memory,) = amd.build_device_memories(findings_of(gpu, drm=found), 0)

    assert device_memory.held == {
        700: {"gpu0": 5 * GIB},
        701: {"gpu0": 2 * GIB},
        702: {"gpu0": GIB},
        704: {"gpu0.gtt": GIB},
    }
    assert device_memory.pools[0].unattributed_bytes == 4 * GIB


def test_stale_driver_keeps_sizes_and_drops_use() -> None:
    """The GPU stays listed, and its last values are not repeated."""
    sensors = {PCI: AmdSensors(0.5, 0.25, {"ecc_corrected": 3})}
    gpu = gpu_of(replace(CARD, nodes=(NODE,)), 5 * GIB, GIB)
    found = findings_of(gpu, drm=clients(), amdgpu_sensors=sensors, stale=frozenset({"amdgpu"}))

    whole, device = only(found)

    assert whole.pools[1].size_bytes == 24 * GIB
    assert whole.pools[1].used_bytes is Absent.STALE
    assert whole.shares[0].used_bytes is Absent.STALE
    assert device.headroom_after_reclaim_bytes is Absent.STALE
    assert device.api_free_bytes == {}


@pytest.mark.parametrize(
    ("pci", "stale", "expected"),
    [
        (PCI, (), Vitals(61.0, 287.0)),
        (PCI, ("hwmon",), Vitals.absent(Absent.STALE)),
        ("0000:ff:00.0", (), Vitals()),
    ],
)
def test_kernel_sensors_belong_to_the_gpu_at_their_address(
    pci: str, stale: tuple[str, ...], expected: Vitals
) -> None:
    found = findings_of(gpu_of(CARD, GIB), hwmon={pci: Vitals(61.0, 287.0)}, stale=frozenset(stale))

    assert only(found)[1].vitals == expected


def test_stale_sensors_make_only_utilization_stale() -> None:
    """Stale sensors make utilization stale; memory stays valid."""
    found = findings_of(gpu_of(CARD, GIB), amdgpu_sensors={}, stale=frozenset({"amdgpu_sensors"}))

    whole, device = only(found)

    assert device.busy_ratio is Absent.STALE
    assert device.memory_busy_ratio is Absent.STALE
    assert whole.pools[1].used_bytes == GIB


def test_inconsistent_use_keeps_the_size_of_the_pool() -> None:
    """The collector rejected the value: the pool keeps its size, and its use is inconsistent."""
    whole, device = only(findings_of(gpu_of(CARD, Absent.INCONSISTENT)))

    assert whole.pools[1].used_bytes is whole.pools[1].available_bytes is Absent.INCONSISTENT
    assert device.headroom_after_reclaim_bytes is Absent.INCONSISTENT


def test_small_bar_adds_a_note() -> None:
    """Visible VRAM is a part of VRAM: it adds a note, and no pool."""
    whole, device = only(findings_of(gpu_of(replace(CARD, visible_vram_bytes=256 * MIB))))

    assert any("no resizable BAR" in note for note in device.notes)
    assert len(whole.pools) == 2


def test_card_without_files_about_its_memory_says_so() -> None:
    """amdgpu of Linux 4.19: the VRAM is not shown, with its reason (ROCm/ROC-smi#90)."""
    gpu = replace(gpu_of(CARD), vram=Region(Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED))
    whole, device = only(findings_of(gpu))

    assert [pool.id for pool in whole.pools] == ["ram"]
    assert any("no files about its memory" in note for note in device.notes)


def test_card_and_apu_in_one_machine_are_mixed() -> None:
    """Each keeps its own architecture, the machine is mixed, and labels distinguish the two."""
    apu = replace(APU, pci="0000:c5:00.0", cards=("card2",))

    whole = Composer().compose([findings_of(gpu_of(CARD), gpu_of(apu, gtt_used=GIB), drm=clients())])

    assert [pool.label for pool in whole.pools] == ["System RAM", "VRAM 0", "GPU carve-out 1"]
    assert [share.label for share in whole.shares] == ["GTT 0", "GTT 1"]
    assert whole.machine is not None
    assert whole.machine.architecture == "mixed"


def test_numbering_continues_after_other_vendors() -> None:
    """A single AMD GPU next to another vendor's GPU is numbered in its labels as well."""
    (device_memory,) = amd.build_device_memories(findings_of(gpu_of(CARD)), 2)

    assert device_memory.device.id == "gpu2"
    assert device_memory.pools[0].label == "VRAM 2"
    assert device_memory.shares[0].id == "gpu2.gtt"


@pytest.mark.parametrize(
    ("carve_out", "gtt", "targets"),
    [
        (512 * MIB, 32 * GIB, {"ram", "gpu0.gtt"}),
        (512 * MIB, Absent.NOT_SUPPORTED, {"ram"}),
        (48 * GIB, 32 * GIB, {"ram", "gpu0", "gpu0.gtt"}),
    ],
)
def test_carve_out_is_judged_only_if_it_is_most_of_the_memory(
    carve_out: int, gtt: Bytes, targets: set[str]
) -> None:
    """A carve-out is skipped if the GPU has more elsewhere, and judged if it is most of what the GPU can use."""
    card = replace(APU, vram_bytes=carve_out, gtt_bytes=gtt, has_uma=True)
    whole = Composer().compose([findings_of(gpu_of(card, 400 * MIB))])

    found = build_targets(whole.pools, whole.shares, whole.devices, PressureRules())

    assert {one.id for one in found} == targets


@pytest.mark.parametrize(
    ("total", "used", "has_share"),
    [
        (32 * GIB, GIB, True),
        (32 * GIB, Absent.NOT_SUPPORTED, True),
        (Absent.NOT_SUPPORTED, GIB, True),
        (Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED, False),
        (Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, True),
    ],
)
def test_gtt_without_any_figure_is_no_share(total: Bytes, used: Bytes, has_share: bool) -> None:
    """A share exists if one of its two figures is supported, or cannot be read now."""
    whole, _ = only(findings_of(gpu_of(replace(CARD, gtt_bytes=total), gtt_used=used)))

    assert ("gpu0.gtt" in {share.id for share in whole.shares}) is has_share
