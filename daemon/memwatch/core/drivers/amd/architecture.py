"""Classify an AMD GPU as APU or discrete, and its ROCm allocations as VRAM or System RAM (GTT). Pure functions.

The checks are a list, strongest evidence first, each with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading
from memwatch.core.model import Absent, Architecture, Bytes, sum_figures
from memwatch.core.units import size

# GPUs that are part of a processor, by PCI device id.
APU_IDS = frozenset(
    {
        *("15dd", "15d8", "1636", "1638", "164c", "164d", "164e", "1681", "13c0", "1506"),  # Raven to Granite Ridge
        *("15bf", "15c8", "1900", "1901", "150e", "1114", "1586"),  # Phoenix, Hawk Point, Strix, Krackan
        *("163f", "1435", "74a0"),  # Steam Decks, MI300A
        *("9870", "9874", "9875", "9876", "9877", "98e4", "15e7", "13fe"),  # Carrizo, Stoney, Barcelo, BC-250
    }
)
# Chips of discrete GPUs: first and last PCI device id. Each chip has a block of ids (amdgpu_drv.c of Linux 6.1);
# since Navi 31 the driver has no list, and the ids are those that libdrm's amdgpu.ids names.
CARD_IDS: tuple[tuple[int, int, str], ...] = (
    (0x6600, 0x66AF, "Oland, Hainan, Bonaire, Vega 20"),
    (0x6780, 0x67FF, "Tahiti, Hawaii, Polaris 10 and 11"),
    (0x6800, 0x683F, "Pitcairn, Cape Verde"),
    (0x6860, 0x687F, "Vega 10"),
    (0x6900, 0x6939, "Topaz, Tonga"),
    (0x694C, 0x694F, "Vega M"),
    (0x6980, 0x69AF, "Polaris 12, Vega 12"),
    (0x6FDF, 0x6FDF, "Polaris 20"),
    (0x7300, 0x731F, "Fiji, Navi 10"),
    (0x7340, 0x7362, "Navi 14, Navi 12"),
    (0x7388, 0x7390, "MI100"),
    (0x73A0, 0x73FF, "Navi 21, 22 and 23"),
    (0x7408, 0x7410, "MI200"),
    (0x7420, 0x743F, "Navi 24"),
    (0x7440, 0x749F, "Navi 31, 32 and 33"),
    (0x74A1, 0x74BD, "MI300X, MI308X, MI325X"),
    (0x7550, 0x7551, "Navi 48"),
    (0x7590, 0x7590, "Navi 44"),
    (0x75A0, 0x75A3, "MI350X, MI355X"),
)
# Since Linux 6.12 at the latest every discrete GPU has a file board_info.
BOARD_INFO_SINCE = (6, 12)
# Formats of gpu_metrics: 1 is used by discrete GPUs and MI300A, 2 and 3 by other APUs.
_CARD_METRICS, _APU_METRICS = 1, (2, 3)
_MI300A_GFX = "gfx942"


class Observation(Struct, frozen=True):
    """Result of one check: an observation and its conclusion. `is_apu` None: inconclusive."""

    is_apu: bool | None
    text: str


class ArchitectureDecision(Struct, frozen=True):
    """Architecture of one GPU and the observations behind it. `is_apu` None: inconclusive."""

    architecture: Architecture
    evidence: tuple[str, ...]
    is_apu: bool | None


def decide_architecture(card: AmdCard) -> ArchitectureDecision:
    """Run the checks until one is conclusive. Inconclusive observations are part of the evidence as well."""
    seen: list[str] = []
    for step in LADDER:
        finding = step(card)
        if finding is None:
            continue
        seen.append(finding.text)
        if finding.is_apu is not None:
            seen += _memory_evidence(card) if finding.is_apu else []
            architecture = Architecture.UNIFIED if finding.is_apu else Architecture.DISCRETE
            return ArchitectureDecision(architecture, tuple(seen), finding.is_apu)
    return ArchitectureDecision(
        Architecture.UNKNOWN, (*seen, "no observation distinguishes an APU from a discrete GPU"), None
    )


def is_unread(figure: Bytes) -> bool:
    """Return True for a figure that the driver has, and that could not be read."""
    return isinstance(figure, Absent) and figure is not Absent.NOT_SUPPORTED


def _memory_evidence(card: AmdCard) -> list[str]:
    if isinstance(card.vram_bytes, int) and card.vram_bytes:
        return [f"firmware reserves {size(card.vram_bytes)} for it, which MemTotal does not include"]
    if is_unread(card.vram_bytes):
        return ["the size of the memory that firmware reserves for it cannot be read"]
    return ["it has no VRAM and uses only System RAM"]


def _by_flag(card: AmdCard) -> Observation | None:
    if card.is_fused is True:
        return Observation(True, "the driver's FUSION flag is set: an APU")
    return (
        Observation(False, "the driver's FUSION flag is not set: a discrete GPU")
        if card.is_fused is False
        else None
    )


def _by_uma(card: AmdCard) -> Observation | None:
    return Observation(True, "the folder uma exists, which only APUs have") if card.has_uma else None


def _by_board_info(card: AmdCard) -> Observation | None:
    if card.has_board_info:
        return Observation(False, "the file board_info exists, which no APU has")
    if card.release >= BOARD_INFO_SINCE and isinstance(card.gtt_bytes, int):
        since = ".".join(map(str, BOARD_INFO_SINCE))
        return Observation(
            True, f"the file board_info is missing, which Linux {since} creates for every discrete GPU"
        )
    return None


def _by_metrics(card: AmdCard) -> Observation | None:
    revision = card.metrics_format
    if isinstance(revision, Absent):
        return None
    text = f"gpu_metrics has format {revision}"
    if revision in _APU_METRICS:
        return Observation(True, f"{text}, which APUs use")
    if revision != _CARD_METRICS:
        return Observation(None, f"{text}, which is unknown")
    maybe_mi300a = any(node.gfx == _MI300A_GFX for node in card.nodes)
    return Observation(None if maybe_mi300a else False, f"{text}, which discrete GPUs and MI300A use")


def _by_missing_vram(card: AmdCard) -> Observation | None:
    if card.nodes and (card.vram_bytes == 0 or card.vram_bytes is Absent.NOT_SUPPORTED):
        return Observation(True, f"the compute driver lists it as node {card.nodes[0].number}, and it has no VRAM")
    return None


def _by_bank(card: AmdCard) -> Observation | None:
    # A partition of a discrete GPU is never larger than its VRAM.
    if not isinstance(card.vram_bytes, int) or not card.nodes:
        return None
    bank = card.nodes[0].bank_bytes
    if isinstance(bank, int) and bank > card.vram_bytes:
        return Observation(True, f"the compute driver reports {bank} bytes for it, which is more than its VRAM")
    return None


def _by_id(card: AmdCard) -> Observation | None:
    text = f"its PCI id is 1002:{card.device_id}"
    if card.device_id in APU_IDS:
        return Observation(True, f"{text}, an APU's")
    chips = find_chips(card.device_id)
    return Observation(False, f"{text}, a discrete GPU's ({chips})") if chips else None


def find_chips(device_id: str) -> str | None:
    """Return the chips of discrete GPUs to which a PCI device id belongs."""
    number = int(device_id, 16) if device_id else -1
    return next((chips for first, last, chips in CARD_IDS if first <= number <= last), None)


def _by_size(card: AmdCard) -> Observation | None:
    # Inconclusive: discrete GPUs in hosts with much RAM match as well, and APUs with a large carve-out do not.
    if (
        isinstance(card.vram_bytes, int)
        and isinstance(card.gtt_bytes, int)
        and card.gtt_bytes >= 8 * card.vram_bytes
    ):
        return Observation(None, "its limit on System RAM is at least 8 times its VRAM, as is common for APUs")
    return None


LADDER: tuple[Callable[[AmdCard], Observation | None], ...] = (
    _by_flag,
    _by_uma,
    _by_board_info,
    _by_metrics,
    _by_missing_vram,
    _by_bank,
    _by_id,
    _by_size,
)


# Linux 6.10 puts all of an APU's allocations into System RAM (GTT). Linux 6.15 (commit 759e764f7d58) does so only
# if the GTT limit is larger than the carve-out. Before 6.10 they could only go into the carve-out.
GTT_ALWAYS_SINCE = (6, 10)
GTT_IF_LARGER_SINCE = (6, 15)


def takes_gtt(gpu: AmdGpu, is_apu: bool | None, pages_limit_bytes: Bytes) -> bool:
    """Return True if ROCm's VRAM allocations use System RAM: by the compute driver's size, else by version."""
    vram, gtt = gpu.card.vram_bytes, gpu.card.gtt_bytes
    if not is_apu:
        return False
    if not isinstance(vram, int) or not vram:
        return True
    by_bank = _takes_gtt_by_bank(gpu.card.nodes[0].bank_bytes if gpu.card.nodes else None, vram, pages_limit_bytes)
    if by_bank is not None:
        return by_bank
    if gpu.card.release < GTT_IF_LARGER_SINCE:
        return gpu.card.release >= GTT_ALWAYS_SINCE
    return isinstance(gtt, int) and vram < gtt


def _takes_gtt_by_bank(bank: Bytes | None, vram: int, pages_limit: Bytes) -> bool | None:
    # The compute driver reports the limit on System RAM as its memory size if it uses GTT, else the carve-out.
    if not isinstance(bank, int) or bank == vram == pages_limit:
        return None
    if bank > vram or bank == pages_limit:
        return True
    return False if bank == vram else None


def free_bytes(gpu: AmdGpu, in_gtt: bool, reading: AmdReading, ram_bytes: int, available_bytes: Bytes) -> Bytes:
    """Return the bytes that ROCm can allocate now. It uses either VRAM or GTT, never both."""
    if not in_gtt:
        return _left(gpu.vram.total_bytes, gpu.vram.used_bytes)
    limit = reading.pages_limit_bytes
    bounds = [available_bytes, _left(gpu.gtt.total_bytes, gpu.gtt.used_bytes), _kfd_left(reading, ram_bytes)]
    if isinstance(limit, int):
        bounds.append(_left(limit, sum_figures([one.gtt.used_bytes for one in reading.gpus])))
    return least(bounds)


def least(bounds: Iterable[Bytes]) -> Bytes:
    """Return the smallest bound, or the reason if one is unknown."""
    known = []
    for bound in bounds:
        if isinstance(bound, Absent):
            return bound
        known.append(bound)
    return min(known)


def _left(total: Bytes, used: Bytes) -> Bytes:
    if isinstance(total, Absent) or isinstance(used, Absent):
        return used if isinstance(used, Absent) else total
    return max(0, total - used)


def _kfd_left(reading: AmdReading, ram_bytes: int) -> int:
    # The compute driver never uses the last 1/64 of System RAM plus 1.5 GiB (kfd_mem_limit, Linux 7.2).
    most = ram_bytes - (ram_bytes >> 6) - (3 << 29)
    return max(0, most - sum(sum(gpu.held.values()) for gpu in reading.gpus))
