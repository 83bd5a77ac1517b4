"""Kernel files rebuilt from public reports about wrong memory figures. Each row names its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.collectors.meminfo import Collector
from memwatch.linux.files import Roots
from memwatch.model import Absent, Bytes, Pool, Quality
from memwatch.snapshot import Swap

MEASURED, ESTIMATED = Quality.MEASURED, Quality.ESTIMATED
INCONSISTENT = Absent.INCONSISTENT


def lines(**kib: int | str) -> str:
    """Return lines of /proc/meminfo: `Active_file` is `Active(file)`."""
    names = {"_file": "(file)", "_anon": "(anon)"}
    text = ""
    for key, value in kib.items():
        for short, full in names.items():
            key = key.replace(short, full)
        text += f"{key + ':':<16}{value:>8} kB\n"
    return text


def read(folder: Path, meminfo: str) -> tuple[Pool, Swap | Absent | None, int]:
    (folder / "meminfo").write_text(meminfo)
    collector = Collector(Roots(procfs=folder), 4096)
    found = collector.collect()
    collector.close()
    return found.pools[0], found.swap, found.rejected


ROUTER = """\
        total:    used:    free:  shared: buffers:  cached:
Mem:  260579328 136073216 124506112        0  4915200 94064640
Swap:        0        0        0
""" + lines(MemTotal=254_472, MemFree=121_588, MemAvailable=190_000, MemShared=0, Buffers=4_800, Cached=91_860)
# A container of 975 MiB that uses 10.5. Its lists and slab are those of the host.
CONTAINER = lines(
    MemTotal=998_384, MemFree=987_608, MemAvailable=987_608, Buffers=0, Cached=7_480, SwapCached=0,
    Active_anon=30_280, Inactive_anon=47_908, Active_file=420_932, Inactive_file=249_648, AnonPages=58_616,
    Shmem=19_340, SReclaimable=65_580, SUnreclaim=46_528,
)  # fmt: skip
NOTHING_AVAILABLE = lines(
    MemTotal=1_940_272, MemFree=480_420, MemAvailable=0, Buffers=18_228, Cached=1_187_164, SwapCached=0,
    Active_anon=300_000, Inactive_anon=50_000, Active_file=400_000, Inactive_file=600_000, AnonPages=180_000,
    Shmem=150_000, SReclaimable=60_000, SUnreclaim=40_000,
)  # fmt: skip
PADDED = lines(MemTotal="03944876", MemFree="03484312", MemAvailable="03674800", AnonPages="00053140")
WSL1 = lines(MemTotal=33_394_604, MemFree=13_992_336, MemAvailable=14_000_000, SwapTotal=789_541_600)
IN_LXC = lines(
    MemTotal=104_857_600, MemFree=60_000_000, MemAvailable=124_857_600, Buffers=100, Cached=1_000_000,
    Shmem=100_100, SReclaimable=60_000,
)  # fmt: skip
OPENWRT = lines(
    MemTotal=125_128, MemFree=80_288, Buffers=7_652, Cached=21_700, SwapCached=0, Active_anon=6_764,
    Inactive_anon=16, Active_file=14_576, Inactive_file=9_360, AnonPages=1_388, Shmem=5_416, SReclaimable=6_144,
    SUnreclaim=4_292,
)  # fmt: skip


@pytest.mark.parametrize(
    ("meminfo", "available_kib", "quality", "unattributed", "rejected"),
    [
        pytest.param(NOTHING_AVAILABLE, 1_540_420, ESTIMATED, None, 1, id="giampaolo/psutil#2052"),
        pytest.param(CONTAINER, 987_608, MEASURED, INCONSISTENT, 2, id="lxc/lxcfs#84"),
        pytest.param(PADDED, 3_674_800, MEASURED, Absent.NOT_SUPPORTED, 0, id="koverstreet/bcachefs#447"),
        pytest.param(ROUTER, 190_000, MEASURED, Absent.NOT_SUPPORTED, 0, id="shirou/gopsutil#1002"),
        pytest.param(f"\n{PADDED}\n\n", 3_674_800, MEASURED, None, 0, id="prometheus/node_exporter#1671"),
        pytest.param(IN_LXC, 60_960_000, ESTIMATED, None, 1, id="aristocratos/btop#473"),
        pytest.param(OPENWRT, 110_368, ESTIMATED, None, 0, id="GuillaumeGomez/sysinfo#164"),
    ],
)
def test_reported_meminfo_gives_what_is_available(
    meminfo: str,
    available_kib: int,
    quality: Quality,
    unattributed: Bytes | None,
    rejected: int,
    tmp_path: Path,
) -> None:
    pool, _, count = read(tmp_path, meminfo)

    assert (pool.available_bytes, pool.quality, count) == (available_kib << 10, quality, rejected)
    assert unattributed is None or pool.unattributed_bytes == unattributed


def test_swap_line_without_a_blank_costs_the_swap_only(tmp_path: Path) -> None:
    """WSL 1 prints more free swap than it has, in twenty digits: microsoft/WSL#296."""
    pool, swap, _ = read(tmp_path, WSL1 + "SwapFree:18014393644749232 kB\n")

    assert (pool.available_bytes, swap) == (14_000_000 << 10, INCONSISTENT)
