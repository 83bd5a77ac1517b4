"""Generated readings of the kernel's graphics drivers: Intel GPUs, GPUs of systems on a chip, NPUs and clients."""

from __future__ import annotations

from memwatch.core.drivers.drm.cards import build_region
from memwatch.core.drivers.drm.records import Basis, DrmCard, DrmClient, DrmReading, DrmRegion
from memwatch.core.model import MAX_BYTES, Absent
from support.generated.figures import GIB, Figures
from support.generated.host import Host

# The parser of fdinfo rejects more.
MAX_CLIENT_BYTES = (1 << 63) - 1
PLACES = {
    "i915": ("0000:00:02.0", ("system0", "stolen-system0")),
    "xe": ("0000:40:00.0", ("system", "gtt", "vram0")),
    "msm": (None, ("memory",)),
    "panthor": (None, ("memory",)),
    "nouveau": ("0000:41:00.0", ()),
    "intel_vpu": ("0000:00:0b.0", ("memory",)),
    "amdgpu": ("0000:20:00.0", ("vram", "gtt", "cpu")),
}


def draw_drm(figures: Figures, host: Host) -> DrmReading:
    choose = figures.choose
    cards = choose.many(2, lambda at: draw_drm_card(figures, at))
    npus = choose.many(1, lambda at: draw_npu(at))
    names = [str(card.driver) for card in (*cards, *npus)] + ["amdgpu"]
    clients = choose.many(5, lambda at: draw_client(figures, host, names, at))
    mute = {"accel0": (choose.pick(host.pids),)} if choose.chance(10) else {}
    return DrmReading(
        cards=tuple(cards),
        clients=tuple(clients),
        seen=len(host.pids),
        unreadable=choose.pick((0, 0, 0, 2)),
        gpu_active_bytes=figures.known(figures.part(host.cpu_bytes) >> 2)
        if choose.chance(30)
        else Absent.NOT_SUPPORTED,
        npus=tuple(npus),
        mute=mute,
    )


def draw_drm_card(figures: Figures, at: int) -> DrmCard:
    choose = figures.choose
    driver = choose.pick(("i915", "xe", "msm", "panthor", "nouveau"))
    pdev, _ = PLACES[driver]
    pdev = None if pdev is None else f"{pdev[:-4]}{at}{pdev[-3:]}" if at else pdev
    regions = [draw_region(figures, name) for name in ("vram0", "vram1")[: choose.integer(0, 2)]]
    return DrmCard(
        name=f"card{at}",
        driver=driver,
        place=pdev or f"platform{at}",
        pdev=pdev,
        nodes=(f"card{at}", f"renderD{128 + at}"),
        vendor_id="8086" if driver in ("i915", "xe") else Absent.NOT_SUPPORTED,
        device_id="56a0" if driver in ("i915", "xe") else Absent.NOT_SUPPORTED,
        regions=tuple(regions) if driver == "xe" else (),
    )


def draw_region(figures: Figures, name: str) -> DrmRegion:
    size = figures.size()
    reported = min(MAX_BYTES, max(1, figures.reported(size)))
    return build_region(name, reported, figures.known(figures.part(size)), "cgroup:dmem.current")


def draw_npu(at: int) -> DrmCard:
    return DrmCard(f"accel{at}", "intel_vpu", "0000:00:0b.0", "0000:00:0b.0", (f"accel{at}",))


def draw_client(figures: Figures, host: Host, names: list[str], at: int) -> DrmClient:
    """Draw a client with one or more processes. Without a basis, its driver reports no sizes."""
    choose = figures.choose
    driver = choose.pick(names)
    pdev, regions = PLACES[driver]
    basis: Basis | None = choose.pick(("resident", "resident", "memory", "total"))
    if choose.chance(figures.gaps) or not regions:
        basis = None
    resident = {name: min(MAX_CLIENT_BYTES, figures.reported(figures.part(4 * GIB) >> 2)) for name in regions}
    pids = tuple(sorted({choose.pick(host.pids) for _ in range(choose.integer(1, 2))}))
    return DrmClient(
        driver=driver,
        pdev=pdev,
        node="accel0" if driver == "intel_vpu" else choose.pick(("renderD128", "renderD129")),
        client_id=at,
        pids=pids,
        basis=basis,
        resident=resident if basis else {},
        shared=resident if basis and choose.chance(20) else {},
    )
