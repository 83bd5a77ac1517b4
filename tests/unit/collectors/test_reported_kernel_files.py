"""Kernel files rebuilt from public reports about wrong memory figures. Each row names its report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memwatch.core.collectors import cgroup, psi
from memwatch.core.collectors.meminfo import Collector
from memwatch.core.collectors.numa import parse_node
from memwatch.core.collectors.zram import parse_mm_stat
from memwatch.core.drivers.amd.sysfs import build_region, parse_figure
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.model import Absent, Bytes, Pool, Quality
from memwatch.core.snapshot import Swap
from memwatch.library.host import Host, Ram, parse_meminfo
from support.paths import MACHINES

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


def psi_of(folder: Path, text: str) -> Findings:
    (folder / "pressure/memory").write_text(text)
    collector = psi.Collector(Roots(procfs=folder))
    found = collector.collect()
    collector.close()
    return found


ROUTER = """\
        total:    used:    free:  shared: buffers:  cached:
Mem:  260579328 136073216 124506112        0  4915200 94064640
Swap:        0        0        0
""" + lines(MemTotal=254_472, MemFree=121_588, MemAvailable=190_000, MemShared=0, Buffers=4_800, Cached=91_860)
# Containers of 4, 1.9 and 5.9 GiB. The first has lists and slab of its host, the second the programs.
OF_HOST = lines(
    MemTotal=4_194_304, MemFree=2_716_972, MemAvailable=2_716_972, Buffers=0, Cached=1_009_692, SwapCached=0,
    Active_anon=8_803_716, Inactive_anon=4_290_860, Active_file=18_831_708, Inactive_file=2_030_096,
    AnonPages=12_719_924, Shmem=249_032, SReclaimable=1_658_088, SUnreclaim=12_660_380,
)  # fmt: skip
PROGRAMS_OF_HOST = lines(
    MemTotal=1_953_124, MemFree=1_549_084, MemAvailable=1_633_564, Buffers=0, Cached=84_480, SwapCached=0,
    Active_anon=139_984, Inactive_anon=131_192, Active_file=57_868, Inactive_file=18_752, AnonPages=8_275_716,
    Shmem=7_860, SReclaimable=0, SUnreclaim=0,
)  # fmt: skip
CACHE_AS_USED = lines(
    MemTotal=6_144_000, MemFree=11_956, MemAvailable=11_956, Buffers=0, Cached=4_823_450, SwapCached=0,
    Active_anon=900_000, Inactive_anon=1_100_000, Active_file=2_100_000, Inactive_file=2_019_962,
    AnonPages=1_200_000, Shmem=703_488,
)  # fmt: skip
# Lines of lxcfs: reclaimable slab of 3.3 and 10 GiB of 16 counts as used; shared memory is the host's.
SLAB_AS_USED = lines(
    MemTotal=16_777_216, MemFree=6_048_576, MemAvailable=7_097_152, Buffers=0, Cached=1_048_576, SwapCached=0,
    Active_anon=3_000_000, Inactive_anon=1_000_000, Active_file=500_000, Inactive_file=548_576, AnonPages=4_000_000,
    Shmem=0, SReclaimable=3_485_760, SUnreclaim=100_000,
)  # fmt: skip
MUCH_SLAB_AS_USED = lines(
    MemTotal=16_777_216, MemFree=1_048_576, MemAvailable=2_097_152, Buffers=0, Cached=1_048_576, SwapCached=0,
    Active_file=500_000, Inactive_file=548_576, Shmem=0, SReclaimable=10_485_760, SUnreclaim=100_000,
)  # fmt: skip
SHARED_OF_HOST = lines(
    MemTotal=524_288, MemFree=299_008, MemAvailable=299_008, Buffers=0, Cached=14_336, SwapCached=0,
    Active_anon=100_000, Inactive_anon=50_000, Active_file=9_000, Inactive_file=5_000, AnonPages=150_000,
    Shmem=978_944,
)  # fmt: skip
# Containers of 20 and 2 GiB: available memory is free memory, and the lists are the host's.
WITHOUT_CACHE = lines(
    MemTotal=20_971_520, MemFree=8_615_216, MemAvailable=8_615_216, Buffers=0, Cached=9_258_920, SwapCached=0,
    Active_anon=3_338_232, Inactive_anon=127_944, Active_file=12_674_952, Inactive_file=38_848,
    AnonPages=3_143_312, Shmem=322_176, Slab=0, SReclaimable=383_268, SUnreclaim=1_822_392,
)  # fmt: skip
SECOND_OF_HOST = lines(
    MemTotal=2_097_152, MemFree=1_981_836, MemAvailable=1_981_836, Buffers=0, Cached=75_824, SwapCached=0,
    Active_anon=4_455_404, Inactive_anon=80_596, Active_file=1_074_200, Inactive_file=507_724,
    AnonPages=4_418_608, Shmem=117_488, Slab=0, SReclaimable=207_316, SUnreclaim=2_799_256,
)  # fmt: skip
WITHOUT_NUMBERS = lines(MemTotal=8_000_000, MemFree=4_000_000, MemAvailable=6_000_000) + "SwapCached\nActive:\n"
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
# 23 GiB in the pool of amdgpu, which the kernel gives back: 27 % in use, and not 65.
AMDGPU = lines(
    MemTotal=63_411_580, MemFree=9_000_000, MemAvailable=21_930_336, Buffers=100_000, Cached=14_000_000,
    Active_file=6_000_000, Inactive_file=7_000_000, Shmem=200_000, SReclaimable=900_000, GPUActive=81_108,
)  # fmt: skip
POOLED, POOLED_TOO_MUCH = AMDGPU + lines(GPUReclaim=24_407_784), AMDGPU + lines(GPUReclaim=44_407_784)
OPENWRT = lines(
    MemTotal=125_128, MemFree=80_288, Buffers=7_652, Cached=21_700, SwapCached=0, Active_anon=6_764,
    Inactive_anon=16, Active_file=14_576, Inactive_file=9_360, AnonPages=1_388, Shmem=5_416, SReclaimable=6_144,
    SUnreclaim=4_292,
)  # fmt: skip


def test_pool_without_lists_and_shared_memory_is_estimated(tmp_path: Path) -> None:
    """TritonDataCenter/smartos-live#623: Solaris prints no more for programs of Linux. Here with sane values."""
    sane = lines(MemTotal=8_388_608, MemFree=3_000_000, Buffers=0, Cached=100, SwapTotal=8_388_608, SwapFree=8)
    ram, swap, _ = read(tmp_path, sane)
    assert (ram.available_bytes, ram.quality) == (3_000_100 << 10, ESTIMATED)
    assert ram.source == "meminfo:MemFree+Cached+Buffers"
    assert isinstance(swap, Swap)


def test_refuted_free_memory_is_the_reason_of_an_unknown_pool(tmp_path: Path) -> None:
    text = lines(MemTotal=8_388_608, MemFree=18_446_744_073_709_099_244, Buffers=0, Cached=0)
    with pytest.raises(ParseError, match="MemFree has no number that can be read"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "padding",
    [pytest.param(3, id="lxc/lxcfs#485"), pytest.param(1900, id="giampaolo/psutil#2319")],
)
def test_padding_of_lxcfs_takes_no_pool_away(tmp_path: Path, padding: int) -> None:
    text = AMDGPU + "\0" * padding
    assert read(tmp_path, text) == read(tmp_path, AMDGPU)
    (tmp_path / "meminfo").write_text(text)
    ram = Host(tmp_path).ram()
    assert isinstance(ram, Ram)
    assert ram == parse_meminfo(AMDGPU.encode())


def test_padding_of_lxcfs_takes_no_stall_time_away(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    text = "some avg10=1.00 avg60=2.00 avg300=3.00 total=4\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    (tmp_path / "pressure/memory").write_text(text + "\0" * 40)
    collector = psi.Collector(Roots(procfs=tmp_path))
    assert collector.collect() == psi_of(tmp_path, text)
    collector.close()


def test_refuted_shared_memory_takes_no_pool_away(tmp_path: Path) -> None:
    """A kernel without lists of file pages, before 2.6.28, or an imitation of one."""
    ram, _, rejected = read(tmp_path, lines(MemTotal=1000, MemFree=200, Buffers=10, Cached=300, Shmem=5000))
    assert (ram.available_bytes, ram.quality, rejected) == (510 << 10, ESTIMATED, 1)


@pytest.mark.parametrize(
    ("meminfo", "available_kib", "quality", "unattributed", "rejected"),
    [
        pytest.param(NOTHING_AVAILABLE, 1_540_420, ESTIMATED, None, 1, id="giampaolo/psutil#2052"),
        pytest.param(CONTAINER, 987_608, MEASURED, INCONSISTENT, 2, id="lxc/lxcfs#84"),
        pytest.param(OF_HOST, 3_477_632, ESTIMATED, INCONSISTENT, 8, id="lxc/lxcfs#120"),
        pytest.param(SECOND_OF_HOST, 1_981_836, MEASURED, INCONSISTENT, 6, id="another one of its host"),
        pytest.param(WITHOUT_CACHE, 17_551_960, ESTIMATED, INCONSISTENT, 4, id="lxc/lxcfs#115"),
        pytest.param(
            OF_HOST.replace("MemAvailable", "MemNone"),
            3_477_632,
            ESTIMATED,
            INCONSISTENT,
            6,
            id="the same before 3.14",
        ),
        pytest.param(PROGRAMS_OF_HOST, 1_633_564, MEASURED, INCONSISTENT, 1, id="canonical/lxd#5905"),
        pytest.param(CACHE_AS_USED, 4_131_918, ESTIMATED, None, 1, id="lxc/lxcfs#175"),
        pytest.param(SLAB_AS_USED, 10_582_912, ESTIMATED, None, 1, id="lxc/lxcfs#670"),
        pytest.param(MUCH_SLAB_AS_USED, 12_582_912, ESTIMATED, None, 1, id="the same of much slab"),
        pytest.param(SHARED_OF_HOST, 299_008, MEASURED, INCONSISTENT, 1, id="lxc/lxcfs#222"),
        pytest.param(WITHOUT_NUMBERS, 6_000_000, MEASURED, None, 1, id="prometheus/node_exporter#2751"),
        pytest.param(PADDED, 3_674_800, MEASURED, Absent.NOT_SUPPORTED, 0, id="koverstreet/bcachefs#447"),
        pytest.param(ROUTER, 190_000, MEASURED, Absent.NOT_SUPPORTED, 0, id="shirou/gopsutil#1002"),
        pytest.param(f"\n{PADDED}\n\n", 3_674_800, MEASURED, None, 0, id="prometheus/node_exporter#1671"),
        pytest.param(IN_LXC, 60_960_000, ESTIMATED, None, 1, id="aristocratos/btop#473"),
        pytest.param(OPENWRT, 110_368, ESTIMATED, None, 0, id="GuillaumeGomez/sysinfo#164"),
        pytest.param(POOLED, 46_338_120, ESTIMATED, None, 0, id="AvengeMedia/dgop#38"),
        pytest.param(POOLED_TOO_MUCH, 21_930_336, ESTIMATED, None, 0, id="the same, of more than there is"),
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
    library = parse_meminfo(meminfo.encode())
    assert isinstance(library, Ram)
    assert (library.available_bytes, library.quality) == (available_kib << 10, quality)


def test_empty_meminfo_is_named_as_empty(tmp_path: Path) -> None:
    """lxcfs without a memory controller on its host: no memory of 0 bytes (lxc/lxcfs#30)."""
    with pytest.raises(ParseError, match="meminfo is empty"):
        read(tmp_path, "")


def test_swap_line_without_a_blank_costs_the_swap_only(tmp_path: Path) -> None:
    """WSL 1 prints more free swap than it has, in twenty digits: microsoft/WSL#296."""
    pool, swap, _ = read(tmp_path, WSL1 + "SwapFree:18014393644749232 kB\n")

    assert (pool.available_bytes, swap) == (14_000_000 << 10, INCONSISTENT)


V1, V2 = "cgroup /cgroup rw,memory", "cgroup2 /cgroup rw"
UNLIMITED = {"memory.max": "max\n", "memory.current": "1000\n", "memory.stat": "active_file 0\ninactive_file 0\n"}
TASK = "ecstasks.slice/ecstasks-bf0c.slice"
LISTS = "total_inactive_file 0\ntotal_active_file 0\n"


def folder(name: str, **changed: str) -> dict[str, str]:
    """Return files of a cgroup of version 2. `memory_max` is `memory.max`."""
    files = UNLIMITED | {key.replace("_", ".", 1): text for key, text in changed.items()}
    return {f"{name}/{key}": text for key, text in files.items()}


def of_v1(limit: str, stat: str) -> dict[str, str]:
    return {
        "docker/08bd/memory.limit_in_bytes": f"{limit}\n",
        "docker/08bd/memory.usage_in_bytes": "734003200\n",
        "docker/08bd/memory.stat": stat,
    }


@pytest.mark.parametrize(
    ("kind", "own", "files", "limit", "used"),
    [
        pytest.param(
            V2,
            f"0::/{TASK}/docker-5218.scope",
            {**folder(f"{TASK}/docker-5218.scope"), **folder(TASK, memory_max="1073741824\n")},
            1 << 30,
            1000,
            id="google/cadvisor#3523",
        ),
        pytest.param(
            V1,
            "4:memory:/docker/08bd",
            of_v1("18446744073709551615", f"hierarchical_memory_limit 18446744073709551615\n{LISTS}"),
            Absent.NOT_SUPPORTED,
            734_003_200,
            id="moby/moby#18087",
        ),
        pytest.param(
            V1,
            "4:memory:/docker/08bd",
            of_v1("9223372036854771712", f"hierarchical_memory_limit 1073741824\n{LISTS}"),
            1 << 30,
            734_003_200,
            id="open-telemetry/opentelemetry-collector#4972",
        ),
        pytest.param(
            V1,
            "4:memory:/docker/08bd",
            of_v1("1073741824", "total_inactive_file -4096\ntotal_active_file 18446744073709547520\n"),
            1 << 30,
            734_003_200,
            id="google/cadvisor#254",
        ),
        pytest.param(
            V1,
            "4:memory:/docker/08bd",
            of_v1("9223372036854771712", f"hierarchical_memory_limit 9223372036854771712\n{LISTS}")
            | {"docker/08bd/memory.usage_in_bytes": "80342220800\n"},
            Absent.NOT_SUPPORTED,
            INCONSISTENT,
            id="kubernetes/kubernetes#114332",
        ),
    ],
)
def test_reported_cgroup_gives_its_limit(
    kind: str, own: str, files: dict[str, str], limit: Bytes, used: Bytes, tmp_path: Path
) -> None:
    name, point, options = kind.split()
    texts = {
        "proc/meminfo": "MemTotal:       16393244 kB\n",
        "proc/self/cgroup": f"{own}\n",
        "proc/self/mountinfo": f"30 1 0:26 / /sys/fs{point} rw - {name} {name} {options}\n",
        "root/.dockerenv": "",
        **{f"sys/fs/cgroup/{path}": text for path, text in files.items()},
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    collector = cgroup.Collector(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "root"), "cgroup")
    (share,) = collector.collect().shares
    collector.close()

    assert (share.limit_bytes, share.used_bytes) == (limit, used)


def test_limit_around_a_mounted_cgroup_is_not_none(tmp_path: Path) -> None:
    """enroot mounts the cgroup of a task: 4 GiB are the limit of the step around it (NVIDIA/enroot#169)."""
    machine = tmp_path / "machine"
    shutil.copytree(MACHINES / "container-v2", machine, symlinks=True)
    (machine / "sys/fs/cgroup/memory.max").write_text("max\n")
    collector = cgroup.Collector(Roots(machine / "proc", machine / "sys", machine / "root"))
    (share,) = collector.collect().shares
    collector.close()

    assert share.limit_bytes is Absent.NOT_SUPPORTED
    assert (share.note or "").startswith(cgroup.NO_LIMIT_VISIBLE)


def test_node_with_more_free_memory_than_it_has_keeps_its_size() -> None:
    """Found as used memory of 16 EiB: intel/cri-resource-manager#795."""
    data = b"Node 0 MemTotal: 65000000 kB\nNode 0 MemFree: 65300000 kB\nNode 0 MemUsed: 18446744073709251616 kB\n"
    node = parse_node(0, data, b"0-7\n")
    assert (node.size_bytes, node.free_bytes, node.available_bytes) == (
        65_000_000 << 10,
        INCONSISTENT,
        INCONSISTENT,
    )


def test_pages_of_one_value_are_not_stored_in_zram() -> None:
    """Swap holds 7.1 GiB, of which 2.3 are stored: util-linux/util-linux#3903."""
    found = parse_mm_stat(b"2469606195 895483904 947716915 0 947716915 1276512 0 0 0\n")
    assert (found.stored_bytes, found.memory_bytes) == (2_469_606_195, 947_716_915)


def test_use_of_a_gpu_above_its_memory_is_inconsistent() -> None:
    """98 GB in use of a card with 1 GB: clbr/radeontop#114."""
    region = build_region(parse_figure(b"1073741824\n"), parse_figure(b"105226698752\n"))
    assert (region.total_bytes, region.used_bytes) == (1 << 30, INCONSISTENT)
