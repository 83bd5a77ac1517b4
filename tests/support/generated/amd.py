"""Generated readings of AMD's driver, of its compute driver (KFD) and of AMD's tools."""

from __future__ import annotations

from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading, KfdNode, Region
from memwatch.core.drivers.amd.smi import SmiGpu, SmiProcess, SmiReading
from memwatch.core.drivers.amd.sysfs import build_region
from memwatch.core.findings import Findings
from memwatch.core.model import MAX_BYTES, Absent, Bytes
from support.generated.figures import GIB, Figures
from support.generated.host import Host

DEVICES = ("744c", "15bf", "1586", "74a0", "0000", "")


def draw_amd(figures: Figures, host: Host) -> Findings:
    choose = figures.choose
    gpus = choose.many(2, lambda at: draw_amd_gpu(figures, host, at))
    source = choose.pick(("sysfs", "sysfs", "amd-smi"))
    reading = AmdReading(
        tuple(gpus), Absent.NOT_AVAILABLE, bounded(figures.known(host.size_bytes >> 1)), source=source
    )
    listed = [SmiGpu(gpu.card.pci, processes=draw_smi_processes(figures, host)) for gpu in gpus]
    return Findings(amdgpu=reading, amd_smi=SmiReading(tuple(listed)) if choose.chance(40) else None)


def draw_smi_processes(figures: Figures, host: Host) -> tuple[SmiProcess, ...]:
    choose = figures.choose
    return tuple(
        choose.many(
            3,
            lambda _: SmiProcess(
                choose.pick(host.pids),
                min(MAX_BYTES, figures.reported(figures.part(8 * GIB) >> 2)),
                min(MAX_BYTES, figures.reported(figures.part(8 * GIB) >> 2)),
            ),
        )
    )


def draw_amd_gpu(figures: Figures, host: Host, at: int) -> AmdGpu:
    """Draw a card, an APU with a carve-out, or an APU without dedicated memory (MI300A)."""
    choose = figures.choose
    own = choose.pick((figures.size(), GIB >> 1, 0))
    none: tuple[Bytes, ...] = (0, Absent.NOT_SUPPORTED)
    vram_bytes = bounded(figures.known(own)) if own else choose.pick(none)
    gtt_bytes = bounded(figures.known(host.cpu_bytes >> 1))
    missing = choose.chance(5)
    nodes = (KfdNode(1, 100 + at, pci(at), "gfx1100", bounded(figures.known(own)), 128 + at),)
    card = AmdCard(
        pci=pci(at),
        cards=(f"card{at}",),
        render_node=f"renderD{128 + at}",
        device_id=choose.pick(DEVICES),
        revision="00",
        name="AMD Radeon",
        vram_bytes=vram_bytes,
        visible_vram_bytes=vram_bytes,
        gtt_bytes=gtt_bytes,
        release=choose.pick(((6, 1), (6, 10), (6, 16))),
        has_uma=choose.chance(20),
        has_board_info=choose.chance(40),
        nodes=nodes if choose.chance(60) else (),
    )
    gone = Region(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    vram = gone if missing else build_region(vram_bytes, bounded(figures.known(figures.part(own))))
    gtt = gone if missing else build_region(gtt_bytes, bounded(figures.known(figures.part(host.cpu_bytes) >> 2)))
    held = {
        choose.pick(host.pids): min(MAX_BYTES, figures.reported(figures.part(own or GIB) >> 1)) for _ in range(2)
    }
    return AmdGpu(
        card,
        vram,
        Region(),
        gtt,
        "active",
        held if choose.chance(50) else {},
        state="missing" if missing else "ok",
    )


def pci(at: int) -> str:
    return f"0000:2{at}:00.0"


def bounded(figure: Bytes) -> Bytes:
    """Reject a figure as the parser does."""
    return Absent.INCONSISTENT if isinstance(figure, int) and figure > MAX_BYTES else figure
