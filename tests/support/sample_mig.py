"""A machine with eight GPUs of seven MIG instances each: the largest that a page must show on one screen."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.model import Architecture, Device, Pool, Process, Share, Thresholds
from memwatch.core.pressure.judge import base_level
from memwatch.core.snapshot import Level, Machine, Pressure, Snapshot
from support.sample_parts import MIB, mig, pressure, process, ratio_of, vram
from support.sample_snapshots import calm_workstation


def eight_by_seven() -> Snapshot:
    """Eight GPUs with seven MIG instances each, at every level. Not in SAMPLES: its pages are large."""
    base = calm_workstation()
    size, limit, parts = 85_520_809_984, 10_200_547_328, (0.0, 0.12, 0.5, 0.8, 0.95, 0.99)
    pools: list[Pool] = []
    shares: list[Share] = []
    devices: list[Device] = []
    verdicts: list[Pressure] = []
    processes: list[Process] = []
    for gpu in range(8):
        used = [round(limit * parts[(3 * gpu + 5 * place + gpu * place) % len(parts)]) for place in range(7)]
        card = vram(f"gpu{gpu}", f"VRAM {gpu}", size, sum(used) + 500_000_000, 500_000_000)
        card = replace(card, unattributed_bytes=0)
        pools.append(card)
        verdicts.append(replace(pressure(card.id, level_at(ratio_of(card)), ratio_of(card)), kind="vram"))
        places = tuple(f"gpu{gpu}.mig{7 + place}" for place in range(7))
        for number, (place, held) in enumerate(zip(places, used, strict=True)):
            share = mig(place, f"GPU {gpu} · MIG {7 + number}", held, limit)
            shares.append(replace(share, within=card.id, device=f"gpu{gpu}"))
            verdicts.append(replace(pressure(place, level_at(held / limit), held / limit), kind="mig_instance"))
            name = f"tenant-{gpu}{number}"
            processes.append(process(10_000 + 7 * gpu + number, name, "ada", 400 * MIB, **{place: held}))
        devices.append(
            Device(
                card.id,
                "NVIDIA",
                "NVIDIA H100 80GB HBM3",
                Architecture.DISCRETE,
                allocates_from=places,
                headroom_after_reclaim_bytes=limit - min(used),
                headroom_bytes=limit - min(used),
                busy_ratio=0.97,
            )
        )
    return replace(
        base,
        host="dgx-h100-03",
        machine=Machine("NVIDIA DGXH100", "discrete", "Dedicated GPU memory, separate from System RAM."),
        pools=(*base.pools, *pools),
        shares=tuple(shares),
        devices=tuple(devices),
        pressure=(*base.pressure, *verdicts),
        processes=tuple(processes),
    )


def level_at(ratio: float) -> Level:
    """Return the level of use alone."""
    return base_level(ratio, Thresholds())
