"""Whether an AMD GPU has memory of its own: an evidence ladder, strongest first, each step a sentence."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from memwatch.drivers.amd.records import AmdCard
from memwatch.model import Absent, Architecture
from memwatch.units import size

# GPUs that are part of a processor, by PCI device id.
APU_IDS = frozenset(
    {
        *("15dd", "15d8", "1636", "1638", "164c", "164d", "164e", "1681", "13c0", "1506"),  # Raven to Granite Ridge
        *("15bf", "15c8", "1900", "1901", "150e", "1114", "1586"),  # Phoenix, Hawk Point, Strix, Krackan
        *("163f", "1435", "74a0"),  # Steam Decks, MI300A
    }
)
# Since Linux 6.12 at the latest every GPU that is no APU has a file board_info.
BOARD_INFO_SINCE = (6, 12)
# Layouts of gpu_metrics: 1 is that of cards and of MI300A, 2 and 3 are those of other APUs.
_CARD_METRICS, _APU_METRICS = 1, (2, 3)
_MI300A_GFX = "gfx942"


class Finding(Struct, frozen=True):
    """One step of the ladder: an observation and what it says. `is_apu` None: it decides nothing."""

    is_apu: bool | None
    text: str


class Verdict(Struct, frozen=True):
    """The architecture of one GPU and the observations that decided it; `is_apu` None where they do not."""

    architecture: Architecture
    evidence: tuple[str, ...]
    is_apu: bool | None


def architecture_of(card: AmdCard) -> Verdict:
    """Go down the ladder to the first step that decides. What decides nothing is evidence all the same."""
    seen: list[str] = []
    for step in LADDER:
        finding = step(card)
        if finding is None:
            continue
        seen.append(finding.text)
        if finding.is_apu is not None:
            seen += _memory_of(card) if finding.is_apu else []
            architecture = Architecture.UNIFIED if finding.is_apu else Architecture.DISCRETE
            return Verdict(architecture, tuple(seen), finding.is_apu)
    return Verdict(Architecture.UNKNOWN, (*seen, "nothing that was observed tells an APU from a card"), None)


def _memory_of(card: AmdCard) -> list[str]:
    if isinstance(card.vram_bytes, int) and card.vram_bytes:
        return [f"firmware set {size(card.vram_bytes)} aside for it, which MemTotal does not contain"]
    return ["it has no VRAM: all it uses is System RAM"]


def _by_flag(card: AmdCard) -> Finding | None:
    if card.is_fused is True:
        return Finding(True, "the driver's flag FUSION is set: it is part of a processor")
    return Finding(False, "the driver's flag FUSION is not set: it is a card") if card.is_fused is False else None


def _by_uma(card: AmdCard) -> Finding | None:
    return Finding(True, "the folder uma is there, which only APUs have") if card.has_uma else None


def _by_board_info(card: AmdCard) -> Finding | None:
    if card.has_board_info:
        return Finding(False, "the file board_info is there, which no APU has")
    if card.release >= BOARD_INFO_SINCE and isinstance(card.gtt_bytes, int):
        since = ".".join(map(str, BOARD_INFO_SINCE))
        return Finding(True, f"the file board_info is missing, which Linux {since} has for every card")
    return None


def _by_metrics(card: AmdCard) -> Finding | None:
    revision = card.metrics_format
    if isinstance(revision, Absent):
        return None
    text = f"gpu_metrics has format {revision}"
    if revision in _APU_METRICS:
        return Finding(True, f"{text}, a layout of APUs")
    if revision != _CARD_METRICS:
        return Finding(None, f"{text}, which is not known")
    maybe_mi300a = any(node.gfx == _MI300A_GFX for node in card.nodes)
    return Finding(None if maybe_mi300a else False, f"{text}, a layout of cards and of MI300A")


def _by_missing_vram(card: AmdCard) -> Finding | None:
    if card.nodes and (card.vram_bytes == 0 or card.vram_bytes is Absent.NOT_SUPPORTED):
        return Finding(True, f"the compute driver has node {card.nodes[0].number} for it and there is no VRAM")
    return None


def _by_bank(card: AmdCard) -> Finding | None:
    """A partition of a card is never larger than the card."""
    if not isinstance(card.vram_bytes, int) or not card.nodes:
        return None
    bank = card.nodes[0].bank_bytes
    if isinstance(bank, int) and bank > card.vram_bytes:
        return Finding(True, f"the compute driver gives it {bank} bytes, which is more than its VRAM")
    return None


def _by_id(card: AmdCard) -> Finding | None:
    return Finding(True, f"its PCI id is 1002:{card.device_id}, an APU's") if card.device_id in APU_IDS else None


def _by_size(card: AmdCard) -> Finding | None:
    """A guess, and said as one: cards in hosts with much RAM look the same, large carve-outs do not."""
    if (
        isinstance(card.vram_bytes, int)
        and isinstance(card.gtt_bytes, int)
        and card.gtt_bytes >= 8 * card.vram_bytes
    ):
        return Finding(None, "its limit on System RAM is 8 times its VRAM or more, as is common on APUs")
    return None


LADDER: tuple[Callable[[AmdCard], Finding | None], ...] = (
    _by_flag,
    _by_uma,
    _by_board_info,
    _by_metrics,
    _by_missing_vram,
    _by_bank,
    _by_id,
    _by_size,
)
