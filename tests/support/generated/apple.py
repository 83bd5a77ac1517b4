"""Generated readings of an Apple machine."""

from __future__ import annotations

from memwatch.core.drivers.apple import MAX_BYTES, Accelerator, AppleReading, Metal
from memwatch.core.model import Absent, Bytes, Words
from support.generated.figures import Figures
from support.generated.host import Host


def draw_apple(figures: Figures, host: Host) -> AppleReading:
    choose, size = figures.choose, host.size_bytes
    accelerators = choose.many(
        2,
        lambda _: Accelerator(
            "AGXAccelerator",
            figures.absence() or "Apple M3",
            bounded(figures.known(figures.part(size) >> 1)),
            bounded(figures.known(2 * size)),
        ),
    )
    metal = Metal(choose.chance(80), figures.known(size * 3 // 4)) if choose.chance(60) else Absent.NOT_AVAILABLE
    chips: tuple[Words, ...] = ("Apple M3", "Intel", Absent.NOT_SUPPORTED)
    return AppleReading(
        chip=choose.pick(chips),
        model="Mac15,3",
        memory_bytes=size,
        accelerators=tuple(accelerators),
        pressure="normal",
        wired_limit_bytes=figures.known(size >> 1),
        metal=metal,
    )


def bounded(figure: Bytes) -> Bytes:
    """Reject a figure as the parser does."""
    return Absent.INCONSISTENT if isinstance(figure, int) and figure > MAX_BYTES else figure
