"""What an AMD GPU adds to a machine's memory, from what its driver and the kernel said. No daemon, no files."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.accounting import amd
from memwatch.accounting.compose import Composer
from memwatch.drivers.amd.records import AmdCard, AmdGpu, AmdReading, AmdSensors, KfdNode, Region
from memwatch.drivers.amd.rocm import takes_gtt
from memwatch.drivers.drm.records import DrmClient, DrmReading
from memwatch.findings import Findings
from memwatch.model import Absent, Architecture, Bytes, Device, Pool, PoolKind, Quality
from memwatch.pressure.inputs import targets_of
from memwatch.pressure.rules import PressureRules
from memwatch.snapshot import Machine

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
    whole = Composer().composed([found])
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
def test_where_rocm_allocates_on_an_apu(
    release: tuple[int, ...], carve_out: Bytes, gtt: Bytes, bank: Bytes, limit: Bytes, expected: bool
) -> None:
    """As the compute driver's size of the GPU tells; where that says nothing, as its version did."""
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
def test_what_rocm_calls_free(gtt_used: Bytes, limit: Bytes, held: int, free: Bytes) -> None:
    """The least of System RAM, the GPU's limit, the limit for all GPUs, and what the compute driver keeps back."""
    gpu = gpu_of(replace(APU, nodes=(NODE,)), gtt_used=gtt_used, held={700: held})

    _, device = only(findings_of(gpu, limit=limit))

    assert device.api_free_bytes == {"rocm": free}


def test_without_rocm_there_is_no_such_figure() -> None:
    """A GPU that the compute driver does not know cannot be used by ROCm."""
    _, device = only(findings_of(gpu_of(APU)))

    assert device.api_free_bytes == {}


def test_an_undecided_gpu_keeps_its_pools_apart() -> None:
    """Neither card nor APU: VRAM is a pool, GTT is inside System RAM, and only the first is counted on."""
    card = replace(CARD, has_board_info=False, release=(6, 1), device_id="ffff")

    whole, device = only(findings_of(gpu_of(card, GIB, GIB)))

    assert device.architecture is Architecture.UNKNOWN
    assert device.allocates_from == ("gpu0",)
    assert [pool.kind for pool in whole.pools] == [PoolKind.SYSTEM_RAM, PoolKind.VRAM]
    assert whole.machine is not None
    assert "could not be established" in whole.machine.explanation


def test_clients_that_have_not_been_looked_for_yet_explain_nothing() -> None:
    """Until they are, what nobody holds is not known, and neither is whether the list is complete."""
    whole, device = only(findings_of(gpu_of(CARD, 5 * GIB)))
    late, stale = only(findings_of(gpu_of(CARD, 5 * GIB), drm=clients(), stale=frozenset({"drm"})))

    assert whole.pools[1].unattributed_bytes is Absent.NOT_AVAILABLE
    assert device.process_list is Absent.NOT_AVAILABLE
    assert late.pools[1].unattributed_bytes is Absent.STALE
    assert stale.process_list is Absent.STALE


def test_processes_outside_a_container_are_not_seen() -> None:
    """A list that cannot be complete says so, though everything in it could be read."""
    hidden = Machine(in_container=True, sees_all_processes=False)

    _, device = only(findings_of(gpu_of(CARD), drm=clients(), machine=hidden))

    assert device.process_list == "partial"


def test_clients_of_other_drivers_and_gpus_are_not_ours() -> None:
    """The same descriptor number elsewhere is somebody else's; a partition's client is known by its device file."""
    slice_node = replace(NODE, render_minor=131)
    card = replace(CARD, nodes=(slice_node,))
    found = clients(
        client(700, vram=GIB),
        client(701, vram=GIB, pdev="0000:0a:00.0"),
        client(702, vram=GIB, pdev=None, node="renderD131"),
        client(703, vram=GIB, pdev=None, node="renderD140"),
        replace(client(704, vram=GIB), driver="xe"),
    )

    (holding,) = amd.holdings_of(findings_of(gpu_of(card, 5 * GIB), drm=found), 0)

    assert holding.held == {700: {"gpu0": GIB}, 702: {"gpu0": GIB}}
    assert holding.pools[0].unattributed_bytes == 3 * GIB


def test_two_witnesses_of_one_process_are_not_added_up() -> None:
    """The larger figure is its figure; a process that only one of them knows has that one's."""
    gpu = gpu_of(replace(CARD, nodes=(NODE,)), 12 * GIB, held={700: 4 * GIB, 701: 2 * GIB, 702: GIB, 703: 0})
    found = clients(client(700, vram=5 * GIB), client(701, vram=GIB), client(704, gtt=GIB))

    (holding,) = amd.holdings_of(findings_of(gpu, drm=found), 0)

    assert holding.held == {
        700: {"gpu0": 5 * GIB},
        701: {"gpu0": 2 * GIB},
        702: {"gpu0": GIB},
        704: {"gpu0.gtt": GIB},
    }
    assert holding.pools[0].unattributed_bytes == 4 * GIB


def test_a_silent_driver_leaves_sizes_and_no_figures() -> None:
    """The GPU is still there, and what it last said is not repeated."""
    sensors = {PCI: AmdSensors(0.5, 0.25, {"ecc_corrected": 3})}
    gpu = gpu_of(replace(CARD, nodes=(NODE,)), 5 * GIB, GIB)
    found = findings_of(gpu, drm=clients(), amdgpu_sensors=sensors, stale=frozenset({"amdgpu"}))

    whole, device = only(found)

    assert whole.pools[1].size_bytes == 24 * GIB
    assert whole.pools[1].used_bytes is Absent.STALE
    assert whole.shares[0].used_bytes is Absent.STALE
    assert device.headroom_bytes is Absent.STALE
    assert device.api_free_bytes == {}


def test_silent_sensors_cost_their_own_figures() -> None:
    """Memory goes on; how busy it is does not."""
    found = findings_of(gpu_of(CARD, GIB), amdgpu_sensors={}, stale=frozenset({"amdgpu_sensors"}))

    whole, device = only(found)

    assert device.busy_ratio is Absent.STALE
    assert device.memory_busy_ratio is Absent.STALE
    assert whole.pools[1].used_bytes == GIB


def test_contradictory_use_has_a_size_and_no_figure() -> None:
    """Rejected by the collector: the pool is as large as it was, and how full is not known."""
    whole, device = only(findings_of(gpu_of(CARD, Absent.INCONSISTENT)))

    assert whole.pools[1].used_bytes is whole.pools[1].available_bytes is Absent.INCONSISTENT
    assert device.headroom_bytes is Absent.INCONSISTENT


def test_a_bar_that_is_too_small_is_told() -> None:
    """Visible VRAM is a part of VRAM: a sentence, and no pool."""
    whole, device = only(findings_of(gpu_of(replace(CARD, visible_vram_bytes=256 * MIB))))

    assert any("no resizable BAR" in note for note in device.notes)
    assert len(whole.pools) == 2


def test_a_card_and_an_apu_in_one_machine() -> None:
    """Each is what it is, the machine is both, and labels tell them apart."""
    apu = replace(APU, pci="0000:c5:00.0", cards=("card2",))

    whole = Composer().composed([findings_of(gpu_of(CARD), gpu_of(apu, gtt_used=GIB), drm=clients())])

    assert [pool.label for pool in whole.pools] == ["System RAM", "VRAM 0", "GPU carve-out 1"]
    assert [share.label for share in whole.shares] == ["GTT 0", "GTT 1"]
    assert whole.machine is not None
    assert whole.machine.architecture == "mixed"


def test_numbers_go_on_after_other_makers() -> None:
    """A lone AMD GPU beside somebody else's has a number in its labels too."""
    (holding,) = amd.holdings_of(findings_of(gpu_of(CARD)), 2)

    assert holding.device.id == "gpu2"
    assert holding.pools[0].label == "VRAM 2"
    assert holding.shares[0].id == "gpu2.gtt"


@pytest.mark.parametrize(
    ("carve_out", "gtt", "targets"),
    [
        (512 * MIB, 32 * GIB, {"ram", "gpu0.gtt"}),
        (512 * MIB, Absent.NOT_SUPPORTED, {"ram"}),
        (48 * GIB, 32 * GIB, {"ram", "gpu0", "gpu0.gtt"}),
    ],
)
def test_a_small_carve_out_is_not_judged(carve_out: int, gtt: Bytes, targets: set[str]) -> None:
    """Where the GPU has more from elsewhere; a carve-out that is most of what it can have is judged."""
    card = replace(APU, vram_bytes=carve_out, gtt_bytes=gtt, has_uma=True)
    whole = Composer().composed([findings_of(gpu_of(card, 400 * MIB))])

    found = targets_of(whole.pools, whole.shares, whole.devices, PressureRules())

    assert {one.id for one in found} == targets
