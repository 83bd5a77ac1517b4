"""Judgement of a step: the change that was asked for, the one that the daemon shows, and the vendor's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from hardware.figures import CERTAIN, HEADROOM, MEMORY, PROCESS, RAM, Figure, Figures, GpuPlace

MIB = 1 << 20
GRANULE_BYTES = 2 * MIB
# Page tables: 8 bytes for each page of 4 KiB, and once more for their upper levels.
PAGE_TABLE_PART = 256
OTHERS_BYTES = 16 * MIB
ROUNDING_BYTES = 4 * MIB
RAM_BYTES, RAM_PART = 64 * MIB, 64

TOLERANCES = (
    ("process, against asked", "2 MiB for each allocation + 0.4 %", "the driver allocates in granules of 2 MiB"),
    (
        "GPU memory and headroom, against asked",
        "16 MiB + 2 MiB for each allocation + 0.4 %",
        "page tables (8 bytes for 4 KiB), and other programs, such as a desktop",
    ),
    (
        "against the vendor's tool",
        "process and sizes 4 MiB, GPU memory and headroom 20 MiB",
        "it rounds to MiB, and reads up to 1 s later",
    ),
    (
        "System RAM, against /proc/meminfo",
        "64 MiB + 1.6 %",
        "it moves with every program; what was asked is not judged, as drivers keep freed pages for reuse",
    ),
    (
        "context",
        "0",
        "each step is compared with the figures after the context was created, so its size cancels out",
    ),
)

# Reasons that say why no figure can exist for this user on this machine.
EXPECTED_ABSENCE = ("not_supported", "not_permitted")
# Processes alone: WSL lists none of Windows, and a container without the host's PIDs none of the host.
EXPECTED_OF_PROCESSES = (*EXPECTED_ABSENCE, "not_available", "process list: partial", "process list: not_")


class Verdict(Enum):
    """Result of one row."""

    OK = "ok"
    WRONG = "WRONG"
    UNJUDGED = "not judged"


class Held(Struct, frozen=True):
    """Bytes that the process holds by kind, and the number of its allocations."""

    device: int = 0
    managed: int = 0
    pinned: int = 0
    allocations: int = 0

    def plus(self, kind: str, size_bytes: int) -> Held:
        parts = {"device": self.device, "managed": self.managed, "pinned": self.pinned}
        parts[kind] += size_bytes
        return Held(**parts, allocations=self.allocations + 1)

    @property
    def total(self) -> int:
        return self.device + self.managed + self.pinned


class Sample(Struct, frozen=True):
    """Figures of the daemon, and those of the vendor's tool and of the kernel, of the same moment."""

    shown: Figures
    vendor: Figures


class Row(Struct, frozen=True):
    """One figure of one step. `unit` is `change` for changes in bytes, `bytes`, or the unit of a sensor."""

    step: str
    figure: str
    asked: Figure
    shown: Figure
    vendor: Figure
    difference: int | None
    verdict: Verdict
    note: str = ""
    unit: str = "change"


class Expectation(Struct, frozen=True):
    """Change that must be shown. `asked` None: it is compared with the vendor's only."""

    figure: str
    label: str
    asked: int | None
    tolerance: int
    vendor_tolerance: int


def expectations(place: GpuPlace, held: Held) -> Iterator[Expectation]:
    """Return the expected changes since the process held nothing."""
    exact = GRANULE_BYTES * held.allocations + held.total // PAGE_TABLE_PART
    loose, rounding = exact + OTHERS_BYTES, OTHERS_BYTES + ROUNDING_BYTES
    ram = RAM_BYTES + held.total // RAM_PART
    on_card = held.device + (0 if place.is_unified else held.managed)
    is_known = place.is_bounded and not (held.pinned and place.counts_host_memory)
    yield Expectation(MEMORY, place.title, on_card if is_known else None, loose, rounding)
    yield Expectation(PROCESS, "process", held.device if is_known else None, exact, ROUNDING_BYTES)
    for figure, label in ((HEADROOM, "headroom"), (CERTAIN, "headroom, certain")):
        if place.is_partitioned:  # it is that of the emptiest instance, and a program uses one of them
            continue
        if not place.is_unified:
            yield Expectation(figure, label, -on_card if place.is_bounded else None, loose, rounding)
        else:
            # An APU may take it from its carve-out or from System RAM: the sum is known, not the part.
            yield Expectation(figure, label, -held.total if place.has_pool else None, ram, ram)
    yield Expectation(RAM, "System RAM", None, ram, ram)


def compare(step: str, place: GpuPlace, base: Sample, now: Sample, held: Held) -> list[Row]:
    """Judge the changes of all figures since `base`."""
    rows = []
    for wanted in expectations(place, held):
        shown = change(base.shown.get(wanted.figure), now.shown.get(wanted.figure))
        vendor = change(base.vendor.get(wanted.figure), now.vendor.get(wanted.figure))
        rows.append(judge(step, wanted, shown, vendor))
    return rows


def change(before: Figure | None, after: Figure | None) -> Figure:
    """Return the change of a figure, or the reason why it is not known."""
    for figure in (after, before):
        if not isinstance(figure, int):
            return figure or ""
    assert isinstance(before, int)
    assert isinstance(after, int)
    return after - before


def judge(step: str, wanted: Expectation, shown: Figure, vendor: Figure) -> Row:
    """Judge one figure by what was asked and by the vendor's tool, as far as both are known."""
    asked: Figure = "" if wanted.asked is None else wanted.asked
    if isinstance(shown, str):
        return _absent(step, wanted, asked, shown, vendor)
    against = [(asked, wanted.tolerance, "asked"), (vendor, wanted.vendor_tolerance, "the vendor's")]
    known = [(shown - other, limit, name) for other, limit, name in against if isinstance(other, int)]
    if not known:
        return Row(step, wanted.label, asked, shown, vendor, None, Verdict.UNJUDGED, "no figure to compare with")
    wrong = [(difference, name) for difference, limit, name in known if abs(difference) > limit]
    if not wrong:
        return Row(step, wanted.label, asked, shown, vendor, known[0][0], Verdict.OK)
    return Row(step, wanted.label, asked, shown, vendor, wrong[0][0], Verdict.WRONG, f"differs from {wrong[0][1]}")


def _absent(step: str, wanted: Expectation, asked: Figure, reason: str, vendor: Figure) -> Row:
    """Judge an absent figure: wrong if the vendor's tool has one, or if it should exist."""
    reasons = EXPECTED_OF_PROCESSES if wanted.figure == PROCESS else EXPECTED_ABSENCE
    expected = reason.startswith(reasons) and not (isinstance(vendor, int) and vendor)
    return Row(
        step, wanted.label, asked, reason, vendor, None, Verdict.UNJUDGED if expected else Verdict.WRONG, "absent"
    )


def has_wrong(rows: Sequence[Row]) -> bool:
    return any(row.verdict is Verdict.WRONG for row in rows)


def compare_whole(
    step: str, label: str, shown: Figure, vendor: Figure, tolerance: float, unit: str = "bytes"
) -> Row:
    """Judge a whole figure, not a change."""
    row = judge(step, Expectation("", label, None, int(tolerance), int(tolerance)), shown, vendor)
    return replace(row, unit=unit)
