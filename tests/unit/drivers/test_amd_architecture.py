"""Test how APUs are told from cards: the strongest observation decides; without one it stays unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.drivers.amd.architecture import decide_architecture, find_chips
from memwatch.core.drivers.amd.records import AmdCard, KfdNode
from memwatch.core.model import Absent, Architecture

GIB = 1 << 30
# A GPU with known memory only, on a kernel where a missing file proves nothing.
BARE = AmdCard("0000:03:00.0", ("card1",), "renderD128", "ffff", "00", "x", 24 * GIB, 24 * GIB, 32 * GIB, (6, 1))
NODE = KfdNode(1, 77, BARE.pci, "gfx1100", 24 * GIB)
MI300A = KfdNode(4, 78, BARE.pci, "gfx942", 118 * GIB)
UNIFIED, DISCRETE, UNKNOWN = Architecture.UNIFIED, Architecture.DISCRETE, Architecture.UNKNOWN


@pytest.mark.parametrize(
    ("card", "architecture", "sentence"),
    [
        (replace(BARE, is_fused=True), UNIFIED, "FUSION flag is set"),
        (replace(BARE, is_fused=False), DISCRETE, "FUSION flag is not set"),
        (replace(BARE, has_uma=True), UNIFIED, "folder uma"),
        (replace(BARE, has_board_info=True), DISCRETE, "board_info exists"),
        (replace(BARE, release=(6, 12)), UNIFIED, "board_info is missing"),
        (replace(BARE, release=(6, 11)), UNKNOWN, "no observation distinguishes"),
        (replace(BARE, release=(6, 12), gtt_bytes=Absent.NOT_SUPPORTED), UNKNOWN, "no observation distinguishes"),
        (replace(BARE, metrics_format=2), UNIFIED, "format 2, which APUs use"),
        (replace(BARE, metrics_format=3), UNIFIED, "format 3, which APUs use"),
        (replace(BARE, metrics_format=1), DISCRETE, "format 1, which discrete GPUs"),
        (replace(BARE, metrics_format=1, vram_bytes=0, nodes=(MI300A,)), UNIFIED, "it has no VRAM"),
        (replace(BARE, metrics_format=9), UNKNOWN, "format 9, which is unknown"),
        (replace(BARE, vram_bytes=Absent.NOT_SUPPORTED, nodes=(MI300A,)), UNIFIED, "as node 4"),
        (replace(BARE, vram_bytes=Absent.NOT_SUPPORTED), UNKNOWN, "no observation distinguishes"),
        (replace(BARE, vram_bytes=GIB, nodes=(NODE,)), UNIFIED, "more than its VRAM"),
        (replace(BARE, nodes=(NODE,)), UNKNOWN, "no observation distinguishes"),
        (replace(BARE, device_id="163f"), UNIFIED, "1002:163f, an APU's"),
        (replace(BARE, device_id="67df"), DISCRETE, "1002:67df, a discrete GPU's (Tahiti, Hawaii, Polaris"),
        (replace(BARE, vram_bytes=GIB), UNKNOWN, "as is common for APUs"),
        (BARE, UNKNOWN, "no observation distinguishes"),
    ],
)
def test_each_observation_decides_and_is_recorded(card: AmdCard, architecture: Architecture, sentence: str) -> None:
    """Each observation has its verdict and one line of evidence."""
    verdict = decide_architecture(card)

    assert verdict.architecture is architecture
    assert any(sentence in text for text in verdict.evidence)


def test_strongest_observation_decides() -> None:
    """The driver's own flag beats every hint, and later hints are not listed."""
    card = replace(BARE, is_fused=False, has_uma=True, metrics_format=2, device_id="163f")

    verdict = decide_architecture(card)

    assert verdict.architecture is DISCRETE
    assert verdict.evidence == ("the driver's FUSION flag is not set: a discrete GPU",)


def test_large_carve_out_is_an_apu() -> None:
    """96 GiB set aside by firmware and no more GTT than that: sizes suggest a card, the kernel reports an APU."""
    card = replace(BARE, vram_bytes=96 * GIB, gtt_bytes=96 * GIB, release=(6, 16))

    verdict = decide_architecture(card)

    assert verdict.is_apu
    assert "firmware reserves 96.0 GiB" in verdict.evidence[-1]


# One id of each family that libdrm's amdgpu.ids names, Radeon RX 400 to 9000, Radeon Pro and Instinct.
CARDS = (
    *("67df", "67ef", "699f", "6860", "687f", "66af", "731f", "7340", "73bf", "73df", "73ff", "743f"),
    *("744c", "747e", "7480", "7550", "7551", "7590"),
    *("67c4", "6868", "7312", "73a3", "7448", "7470", "7489"),
    *("66a1", "738c", "7408", "740c", "740f", "74a1", "74a2", "74a5", "74b5", "75a0", "75a3"),
)
APUS = ("1309", "13fe", "15dd", "15e7", "1586", "163f", "164e", "1681", "74a0", "9874", "98e4", "")


@pytest.mark.parametrize("device_id", CARDS)
def test_pci_id_of_a_card_decides_where_nothing_else_is_known(device_id: str) -> None:
    assert decide_architecture(replace(BARE, device_id=device_id)).architecture is DISCRETE


@pytest.mark.parametrize("device_id", APUS)
def test_no_range_of_cards_contains_the_id_of_an_apu(device_id: str) -> None:
    assert find_chips(device_id) is None


def test_sizes_alone_do_not_make_an_apu() -> None:
    """8 GiB of VRAM beside a GTT limit of 256 GiB is a hint, and hints do not decide."""
    verdict = decide_architecture(replace(BARE, vram_bytes=8 * GIB, gtt_bytes=256 * GIB))

    assert verdict.architecture is UNKNOWN
    assert verdict.is_apu is None
