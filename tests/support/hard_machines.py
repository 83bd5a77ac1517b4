"""Machines that are hard to draw: far more of one thing than usual, hostile names, sizes of zero, no figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from memwatch.core.model import (
    Absent,
    Architecture,
    Content,
    Device,
    Pool,
    PoolKind,
    Process,
    Quality,
    Share,
    ShareKind,
)
from memwatch.core.printable import printable
from memwatch.core.snapshot import Kernel, Level, MemoryPsi, Node, PsiLine, Snapshot, Swap
from support.sample_mig import level_at
from support.sample_parts import GIB, MIB, pressure, process, ratio_of, vram
from support.sample_snapshots import calm_workstation, critical_gb10, unknown_figures

TIB = 1 << 40
# Markup, templates, control characters, directions, wide and combining letters, emoji, and words without a pause.
HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    "\" onmouseover='x' ",
    "</script><b>",
    "{{ 7*7 }}",
    "{% raw %}",
    "${jndi:ldap://x}",
    "%s%s%n%d",
    "'; DROP TABLE x; --",
    "../../../../etc/passwd",
    "javascript:alert(2)",
    "<!--part-->",
    "]]><svg/onload=x>",
    "&lt;&#x3c;&amp;",
    "\u202ered\u2066 left",
    "\x1b[31m\x9b2J\x07",
    "a\r\nb\tc\x00d",
    "e\u0301\u0300\u0302\u0303\u0304" * 4,
    "漢字の名前を持つ長いプロセス",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪",
    "\u200b\u200b\u200b",
    "عملية طويلة الاسم",
    "\ufffe\udcff",
    "NaN",
    "None",
    "x" * 200,
    "one-two.three_four/five " * 8,
)


def hostile_everywhere() -> Snapshot:
    """26 processes of users, units and containers with the same names, on a machine and GPUs with such names."""
    base = sixteen_gpus()
    names = [printable(name) for name in HOSTILE_NAMES]
    processes = tuple(
        replace(
            process(100 + at, name, name, (60 - at) * GIB // 2, **{f"gpu{at % 16}": (60 - at) * GIB // 2}),
            unit=names[at - 1],
            container=names[at - 2],
            script=name if at % 2 else "",
        )
        for at, name in enumerate(names)
    )
    devices = tuple(replace(one, name=names[at]) for at, one in enumerate(base.devices))
    machine = replace(base.machine, name=names[-1])
    return replace(base, host=names[-2], machine=machine, processes=processes, devices=devices)


def sixteen_gpus(size: int = 191 * GIB) -> Snapshot:
    """Sixteen GPUs at every level, with a process each."""
    base = calm_workstation()
    used = [size * (number + 1) // 16 - GIB for number in range(16)]
    cards = [
        replace(vram(f"gpu{n}", f"VRAM {n}", size, held, GIB), unattributed_bytes=0) for n, held in enumerate(used)
    ]
    devices = tuple(
        Device(
            f"gpu{n}",
            "AMD",
            "AMD Instinct MI300X",
            Architecture.DISCRETE,
            allocates_from=(f"gpu{n}",),
            headroom_bytes=size - held,
            headroom_after_reclaim_bytes=size - held,
        )
        for n, held in enumerate(used)
    )
    processes = tuple(
        process(5000 + n, f"rank-{n}", "ada", 2 * GIB, **{f"gpu{n}": held - GIB})
        for n, held in enumerate(used)
        if held > GIB
    )
    verdicts = tuple(
        replace(pressure(one.id, level_at(ratio_of(one)), ratio_of(one)), kind="vram") for one in cards
    )
    return replace(
        base,
        host="mi300x-16",
        pools=(*base.pools, *cards),
        devices=devices,
        processes=processes,
        pressure=(*base.pressure, *verdicts),
    )


def sixty_four_instances() -> Snapshot:
    """Eight GPUs with eight instances each, at every level."""
    base = sixteen_gpus()
    size, limit = 191 * GIB, 23 * GIB
    pools, shares, processes, verdicts = list(base.pools[:1]), list[Share](), list[Process](), [*base.pressure[:1]]
    for gpu in range(8):
        held = [limit * ((3 * gpu + place) % 8 + 1) // 8 for place in range(8)]
        card = replace(vram(f"gpu{gpu}", f"VRAM {gpu}", size, sum(held) + GIB, GIB), unattributed_bytes=0)
        pools.append(card)
        verdicts.append(replace(pressure(card.id, level_at(ratio_of(card)), ratio_of(card)), kind="vram"))
        for place, used in enumerate(held):
            name = f"gpu{gpu}.mig{place}"
            share = Share(
                name,
                ShareKind.MIG_INSTANCE,
                f"GPU {gpu} · MIG {place}",
                card.id,
                used,
                "nvml",
                Quality.MEASURED,
                limit_bytes=limit,
                device=card.id,
            )
            shares.append(share)
            verdicts.append(replace(pressure(name, level_at(used / limit), used / limit), kind="mig_instance"))
            processes.append(process(20_000 + 8 * gpu + place, f"tenant-{gpu}{place}", "ada", MIB, **{name: used}))
    devices = tuple(
        replace(one, allocates_from=tuple(share.id for share in shares if share.device == one.id))
        for one in base.devices[:8]
    )
    return replace(
        base,
        pools=tuple(pools),
        shares=tuple(shares),
        devices=devices,
        processes=tuple(processes),
        pressure=tuple(verdicts),
    )


def nine_nodes() -> Snapshot:
    """Nine NUMA nodes: eight with CPUs, one with the memory of a GPU, of which one says nothing."""
    base = calm_workstation()
    size = base.pools[0].size_bytes // 9
    nodes = tuple(Node(n, size, size // 3, size // 4, n < 8, 4 * MIB, GIB) for n in range(8))
    return replace(base, nodes=(*nodes, Node(8, has_cpus=False)))


def no_figures() -> Snapshot:
    """Nothing is known of sixteen GPUs, System RAM and processes; each reason of absence is somewhere."""
    base, reasons = sixteen_gpus(), tuple(Absent)
    pools = tuple(
        replace(
            one,
            used_bytes=reasons[at % len(reasons)],
            available_bytes=reasons[at % len(reasons)],
            free_bytes=Absent.STALE,
            unattributed_bytes=Absent.STALE,
            contents=(),
        )
        for at, one in enumerate(base.pools)
    )
    processes = tuple(
        Process(one.pid, one.start_time, one.name, Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "rss")
        for one in base.processes
    )
    devices = tuple(
        replace(one, headroom_bytes=Absent.STALE, headroom_after_reclaim_bytes=Absent.STALE) for one in base.devices
    )
    unknown = unknown_figures()
    return replace(
        unknown,
        pools=pools,
        devices=devices,
        shares=(),
        processes=processes,
        pressure=(),
        self_usage=replace(unknown.self_usage, rss_bytes=Absent.NOT_SUPPORTED),
    )


def one_pool(size: int, used: int | None = None, name: str = "ram") -> Pool:
    held = size // 2 if used is None else used
    contents = Content("anonymous", held), Content("free", size - held)
    return Pool(
        name, PoolKind.SYSTEM_RAM, "System RAM", size, held, size - held, "", Quality.MEASURED, contents=contents
    )


def one_byte() -> Snapshot:
    return replace(critical_gb10(), pools=(one_pool(1),), shares=())


def terabyte() -> Snapshot:
    """1 TiB, all but a page of it used by one process."""
    pool = one_pool(TIB, TIB - 4096)
    verdict = pressure(pool.id, Level.CRITICAL, ratio_of(pool))
    return replace(
        calm_workstation(), pools=(pool,), pressure=(verdict,), processes=(process(9, "llama-server", "ada", TIB),)
    )


def terabyte_beside_a_megabyte() -> Snapshot:
    return replace(terabyte(), pools=(one_pool(TIB), replace(one_pool(MIB, name="x"), kind=PoolKind.CARVEOUT)))


def zero_sizes() -> Snapshot:
    """Pools, shares, swap, processes and instances of zero bytes, as drivers that are starting report them."""
    base = critical_gb10()
    card = vram("gpu0", "VRAM", 0, 0, 0)
    shares = tuple(replace(one, used_bytes=0, limit_bytes=0) for one in base.shares)
    processes = tuple(
        replace(
            one,
            rss_bytes=0,
            footprint_bytes=0,
            footprint_range=None,
            device_bytes=dict.fromkeys(one.device_bytes, 0),
        )
        for one in base.processes
    )
    return replace(
        base,
        pools=(one_pool(0), card),
        shares=shares,
        processes=processes,
        swap=Swap(0, 0),
        engines=(),
        nodes=(Node(0, 0, 0, 0, True, 0, 0),),
        psi=MemoryPsi(PsiLine(0.0, 0.0, 0.0, 0), PsiLine(0.0, 0.0, 0.0, 0)),
        kernel=Kernel(),
    )


def no_pools() -> Snapshot:
    return replace(calm_workstation(), pools=(), shares=(), devices=(), pressure=(), processes=())


HARD_MACHINES: Mapping[str, Callable[[], Snapshot]] = {
    make.__name__: make
    for make in (
        sixty_four_instances,
        sixteen_gpus,
        nine_nodes,
        no_figures,
        hostile_everywhere,
        one_byte,
        terabyte,
        terabyte_beside_a_megabyte,
        zero_sizes,
        no_pools,
    )
}
