"""Lines of tegrastats from JetPack 3 to 7, each with its expected values.

Shortened from lines in tests of Datadog's agent and of Beszel and in public logs; 12, 15 and 16 are invented in the
forms that such logs describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from memwatch.core.drivers.tegra.records import Area, Load
from memwatch.core.model import Absent

MIB, KIB = 1 << 20, 1 << 10
OFF = Load(is_on=False)
UNKNOWN = Absent.NOT_AVAILABLE


class Sample(Struct, frozen=True):
    """Line, and some fields of its reading."""

    name: str
    text: str
    expected: Mapping[str, Any]


def ram(used: int, total: int, blocks: int, block_bytes: int) -> dict[str, int]:
    return {
        "ram_used_bytes": used * MIB,
        "ram_total_bytes": total * MIB,
        "largest_free_blocks": blocks,
        "largest_free_block_bytes": block_bytes,
    }


def load(percent: int | None, *mhz: int) -> Load:
    return Load(True, UNKNOWN if percent is None else percent / 100, tuple(one * 1_000_000 for one in mhz))


def cores(*percents: int | None, mhz: int) -> tuple[Load, ...]:
    return tuple(OFF if percent is None else load(percent, mhz) for percent in percents)


def swap(used: int, total: int, cached: int) -> Area:
    return Area(used * MIB, total * MIB, cached_bytes=cached * MIB)


IRAM = {"IRAM": Area(0, 252 * KIB, 252 * KIB)}

LINES = (
    Sample(
        "1 TX1",
        "RAM 1179/3983MB (lfb 120x4MB) IRAM 0/252kB(lfb 252kB) CPU [1%@102,4%@102,0%@102,0%@102] EMC_FREQ 7%@408"
        " GR3D_FREQ 0%@76 APE 25 AO@42.5C CPU@37.5C GPU@39C PLL@37C Tdiode@42.75C PMIC@100C Tboard@42C"
        " thermal@38.5C VDD_IN 2532/2698 VDD_CPU 76/178 VDD_GPU 19/19",
        {
            **ram(1179, 3983, 120, 4 * MIB),
            "areas": IRAM,
            "cpus": cores(1, 4, 0, 0, mhz=102),
            "emc": load(7, 408),
            "gr3d": load(0, 76),
            "engines": {"APE": load(None, 25)},
            "rails_milliwatts": {"VDD_IN": (2532, 2698), "VDD_CPU": (76, 178), "VDD_GPU": (19, 19)},
        },
    ),
    Sample(
        "2 TX1, L4T 28",
        "RAM 3468/3983MB (lfb 48x4MB) SWAP 873/8192MB (cached 295MB) cpu [17%,13%,29%,5%]@408 EMC 1%@408 APE 25"
        " GR3D 3%@76",
        {
            **ram(3468, 3983, 48, 4 * MIB),
            "swap": swap(873, 8192, 295),
            "cpus": cores(17, 13, 29, 5, mhz=408),
            "emc": load(1, 408),
            "gr3d": load(3, 76),
            "rails_milliwatts": {},
            "temperatures_celsius": {},
        },
    ),
    Sample(
        "3 TX2",
        "RAM 2344/7852MB (lfb 1154x4MB) SWAP 0/3926MB (cached 0MB) CPU [1%@345,off,off,1%@345,0%@345,2%@345]"
        " EMC_FREQ 4%@1600 GR3D_FREQ 0%@624 APE 150 PLL@37.5C MCPU@37.5C PMIC@100C VDD_SYS_GPU 152/152"
        " VDD_4V0_WIFI 0/0 VDD_IN 3056/3056",
        {
            **ram(2344, 7852, 1154, 4 * MIB),
            "swap": swap(0, 3926, 0),
            "cpus": cores(1, None, None, 1, 0, 2, mhz=345),
            "emc": load(4, 1600),
            "gr3d": load(0, 624),
        },
    ),
    Sample(
        "4 TX2 with MTS",
        "RAM 3276/7859MB (lfb 5x4MB) SWAP 1626/12122MB (cached 181MB) CPU [44%@1421,49%@2031] EMC_FREQ 1%@1866"
        " GR3D_FREQ 0%@114 APE 150 MTS fg 1% bg 2% PLL@42.5C",
        {
            **ram(3276, 7859, 5, 4 * MIB),
            "swap": swap(1626, 12122, 181),
            "emc": load(1, 1866),
            "gr3d": load(0, 114),
            "mts": (0.01, 0.02),
            "temperatures_celsius": {"PLL": (42.5,)},
        },
    ),
    Sample(
        "5 Nano",
        "RAM 534/3964MB (lfb 98x4MB) SWAP 5/1982MB (cached 1MB) IRAM 0/252kB(lfb 252kB) CPU [16%@204,9%@204]"
        " EMC_FREQ 0%@204 GR3D_FREQ 0%@76 APE 25 PLL@34C POM_5V_IN 1022/1022 POM_5V_GPU 0/0 POM_5V_CPU 204/204",
        {
            **ram(534, 3964, 98, 4 * MIB),
            "swap": swap(5, 1982, 1),
            "areas": IRAM,
            "emc": load(0, 204),
            "gr3d": load(0, 76),
            "rails_milliwatts": {"POM_5V_IN": (1022, 1022), "POM_5V_GPU": (0, 0), "POM_5V_CPU": (204, 204)},
        },
    ),
    Sample(
        "6 AGX Xavier, rails named like sensors",
        "RAM 721/31927MB (lfb 7291x4MB) SWAP 0/15963MB (cached 0MB) CPU [2%@1190,0%@1190,off,off] EMC_FREQ 0%@665"
        " GR3D_FREQ 0%@318 APE 150 MTS fg 0% bg 0% AO@37.5C GPU@37.5C GPU 0/0 CPU 311/311 SOC 932/932 CV 0/0"
        " VDDRQ 621/621 SYS5V 1482/1482",
        {
            **ram(721, 31927, 7291, 4 * MIB),
            "swap": swap(0, 15963, 0),
            "cpus": cores(2, 0, None, None, mhz=1190),
            "emc": load(0, 665),
            "gr3d": load(0, 318),
            "mts": (0.0, 0.0),
            "temperatures_celsius": {"AO": (37.5,), "GPU": (37.5,)},
            "rails_milliwatts": {
                "GPU": (0, 0),
                "CPU": (311, 311),
                "SOC": (932, 932),
                "CV": (0, 0),
                "VDDRQ": (621, 621),
                "SYS5V": (1482, 1482),
            },
        },
    ),
    Sample(
        "7 Xavier NX",
        "RAM 4412/7772MB (lfb 237x4MB) SWAP 139/3886MB (cached 2MB) CPU [9%@1190] EMC_FREQ 10%@1600"
        " GR3D_FREQ 62%@306 APE 150 MTS fg 0% bg 0% AO@41.5C VDD_IN 4067/4067 VDD_CPU_GPU_CV 738/738",
        {
            **ram(4412, 7772, 237, 4 * MIB),
            "swap": swap(139, 3886, 2),
            "emc": load(10, 1600),
            "gr3d": load(62, 306),
            "mts": (0.0, 0.0),
        },
    ),
    Sample(
        "8 Orin NX, JetPack 5",
        "RAM 6334/15388MB (lfb 1770x4MB) SWAP 491/7694MB (cached 0MB) CPU [6%@729,9%@729,off,off] EMC_FREQ 0%@2133"
        " GR3D_FREQ 0%@611 VIC_FREQ 729 APE 174 CV0@45.812C VDD_IN 5299mW/5299mW VDD_SOC 1424mW/1424mW",
        {
            **ram(6334, 15388, 1770, 4 * MIB),
            "swap": swap(491, 7694, 0),
            "emc": load(0, 2133),
            "gr3d": load(0, 611),
            "engines": {"VIC": load(None, 729), "APE": load(None, 174)},
            "rails_milliwatts": {"VDD_IN": (5299, 5299), "VDD_SOC": (1424, 1424)},
        },
    ),
    Sample(
        "9 Orin, JetPack 6, runs of spaces and clocks in a list",
        "RAM 29114/30697MB (lfb 3x4MB)    SWAP 4915/15348MB (cached 1MB) CPU [3%@729,1%@729] EMC_FREQ 1%@2133"
        " GR3D_FREQ 0%@[305,305] NVENC      off  NVDEC    off NVJPG off NVJPG1   off VIC off OFA off NVDLA0 off"
        " PVA0_FREQ off APE 174 cpu@53.062C VDD_GPU_SOC 3205mW/3205mW",
        {
            **ram(29114, 30697, 3, 4 * MIB),
            "swap": swap(4915, 15348, 1),
            "emc": load(1, 2133),
            "gr3d": load(0, 305, 305),
            "engines": {
                **dict.fromkeys(("NVENC", "NVDEC", "NVJPG", "NVJPG1", "VIC", "OFA", "NVDLA0", "PVA0"), OFF),
                "APE": load(None, 174),
            },
        },
    ),
    Sample(
        "10 AGX Orin, JetPack 6, no EMC and a bare percentage",
        "RAM 2448/62840MB (lfb 2x4MB) SWAP 0/31420MB (cached 0MB) CPU [0%@2201,1%@2201] GR3D_FREQ 0% cpu@42C"
        " soc2@37.843C VDD_GPU_SOC 4940mW/4940mW",
        {**ram(2448, 62840, 2, 4 * MIB), "swap": swap(0, 31420, 0), "gr3d": load(0)},
    ),
    Sample(
        "11 Orin Nano, JetPack 6, with the time",
        "11-15-2024 08:38:09 RAM 6185/7620MB (lfb 8x2MB) SWAP 851/3810MB (cached 1MB) CPU [15%@729]"
        " EMC_FREQ 43%@2133 GR3D_FREQ 63%@[621] NVDEC off VDD_IN 12479mW/12479mW",
        {
            **ram(6185, 7620, 8, 2 * MIB),
            "time": "11-15-2024 08:38:09",
            "swap": swap(851, 3810, 1),
            "emc": load(43, 2133),
            "gr3d": load(63, 621),
        },
    ),
    Sample(
        "12 AGX Orin, JetPack 7.2, no SWAP and three values",
        "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,4%@2201] EMC_FREQ 3%@3199"
        " GR3D_FREQ 12%@[1300,1300] NVENC0 off NVDEC0 off cpu@52.968C/52.968C gpu@50.5C/51C"
        " VDD_GPU_SOC 5139mW/5140mW/5141mW",
        {
            **ram(20642, 62817, 1, 2 * MIB),
            "time": "07-25-2026 09:08:28",
            "emc": load(3, 3199),
            "gr3d": load(12, 1300, 1300),
            "temperatures_celsius": {"cpu": (52.968, 52.968), "gpu": (50.5, 51.0)},
            "rails_milliwatts": {"VDD_GPU_SOC": (5139, 5140, 5141)},
        },
    ),
    Sample(
        "13 Thor, no EMC and no GR3D",
        "07-31-2026 14:45:55 RAM 86905/125772MB (lfb 368x4MB) CPU [12%@972,10%@972,off,33%@1890] cpu@39.812C"
        " tj@39.906C soc012@38.812C gpu@39.906C VDD_GPU 3561mW/3561mW VIN 26686mW/26686mW",
        {
            **ram(86905, 125772, 368, 4 * MIB),
            "time": "07-31-2026 14:45:55",
            "cpus": (load(12, 972), load(10, 972), OFF, load(33, 1890)),
            "engines": {},
        },
    ),
    Sample(
        "14 Thor, its GPU switched off with negative power",
        "01-20-2026 22:46:22 RAM 17842/125772MB (lfb 79x4MB) CPU [0%@972] cpu@30.468C tj@31.218C"
        " VDD_GPU -392mW/-392mW VDD_CPU_SOC_MSS 5535mW/5535mW",
        {
            **ram(17842, 125772, 79, 4 * MIB),
            "time": "01-20-2026 22:46:22",
            "temperatures_celsius": {"cpu": (30.468,), "tj": (31.218,)},
            "rails_milliwatts": {"VDD_GPU": (-392, -392), "VDD_CPU_SOC_MSS": (5535, 5535)},
        },
    ),
    Sample(
        "15 clocks without loads, and a small block",
        "RAM 4722/7844MB (lfb 1x512kB) EMC_FREQ 2%@1866 GR3D_FREQ @[1000,1000,1000] APE 150",
        {**ram(4722, 7844, 1, 512 * KIB), "emc": load(2, 1866), "gr3d": load(None, 1000, 1000, 1000)},
    ),
    Sample(
        "15 Thor, JetPack 7.2",
        "RAM 4722/125772MB (lfb 9x4MB) CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ 87%@[1574,1574,1574]",
        {
            **ram(4722, 125772, 9, 4 * MIB),
            "cpus": cores(0, 5, None, mhz=2601),
            "emc": load(None, 4266),
            "gr3d": load(87, 1574, 1574, 1574),
        },
    ),
    Sample(
        "16 before Jetson",
        "RAM 250/490MB (lfb 17x1MB) Carveout 12/12MB (lfb 0kB) GART 28/32MB (lfb 4MB) IRAM 36/256kB (lfb 128kb)",
        {
            **ram(250, 490, 17, MIB),
            "areas": {
                "Carveout": Area(12 * MIB, 12 * MIB, 0),
                "GART": Area(28 * MIB, 32 * MIB, 4 * MIB),
                "IRAM": Area(36 * KIB, 256 * KIB, 128 * KIB),
            },
            "cpus": (),
        },
    ),
    Sample(
        "16 a missing sensor",
        "RAM 250/490MB (lfb 17x1MB) GPU@-256C NC 0mW/0mW",
        {
            **ram(250, 490, 17, MIB),
            "temperatures_celsius": {"GPU": (-256.0,)},
            "rails_milliwatts": {"NC": (0, 0)},
        },
    ),
    Sample(
        "17 Orin Nano, a busy engine",
        "06-18-2025 11:25:24 RAM 3452/7620MB (lfb 25x4MB) SWAP 1518/16384MB (cached 174MB) CPU [1%@1420,2%@729]"
        " GR3D_FREQ 0% NVENC 0%@115 cpu@50.031C",
        {
            **ram(3452, 7620, 25, 4 * MIB),
            "time": "06-18-2025 11:25:24",
            "swap": swap(1518, 16384, 174),
            "gr3d": load(0),
            "engines": {"NVENC": load(0, 115)},
        },
    ),
    Sample(
        "18 AGX Orin JP5, two rails of one name",
        "10-16-2023 10:59:22 RAM 1205/30623MB (lfb 6429x4MB) SWAP 0/15311MB (cached 0MB) CPU [0%@729,1%@729]"
        " EMC_FREQ 0%@204 GR3D_FREQ 0%@114 GR3D2_FREQ 0%@114 NVJPG1 729 VIC_FREQ 729 APE 233 CV0@-256C CPU@43.5C"
        " VDD_GPU_SOC 4788mW/4788mW NC 0mW/0mW VDDQ_VDD2_1V8AO 707mW/707mW NC 1mW/0mW",
        {
            **ram(1205, 30623, 6429, 4 * MIB),
            "time": "10-16-2023 10:59:22",
            "swap": swap(0, 15311, 0),
            "emc": load(0, 204),
            "gr3d": load(0, 114),
            "engines": {
                "GR3D2": load(0, 114),
                "NVJPG1": load(None, 729),
                "VIC": load(None, 729),
                "APE": load(None, 233),
            },
            "rails_milliwatts": {"VDD_GPU_SOC": (4788, 4788), "NC": (0, 0), "VDDQ_VDD2_1V8AO": (707, 707)},
        },
    ),
    Sample(
        "19 Thor JP7.1, engines by their clocks alone",
        "05-17-2026 10:00:32 RAM 4208/125773MB (lfb 31x4MB) SWAP 0/2048MB (cached 0MB) CPU [1%@972,0%@972]"
        " EMC_FREQ 0%@665 GR3D_FREQ @[0,0,0] NVENC0_FREQ @0 VIC off OFA_FREQ @0 PVA0_FREQ off APE 300 cpu@34.468C",
        {
            **ram(4208, 125773, 31, 4 * MIB),
            "time": "05-17-2026 10:00:32",
            "swap": swap(0, 2048, 0),
            "emc": load(0, 665),
            "gr3d": load(None, 0, 0, 0),
            "engines": {
                "NVENC0": load(None, 0),
                "VIC": OFF,
                "OFA": load(None, 0),
                "PVA0": OFF,
                "APE": load(None, 300),
            },
        },
    ),
)
