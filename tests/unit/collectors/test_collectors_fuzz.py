"""Test that parsers turn arbitrary bytes into valid values or an error of a known kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import astuple

from memwatch.core.collectors import buddyinfo, cgroup, drm, machine, meminfo, numa, psi, vmstat, zram
from memwatch.core.drivers.drm import cards
from memwatch.core.drivers.drm.clients import parse_fdinfo
from memwatch.core.linux import cgroup_mounts
from memwatch.core.linux import process_files as process_files
from memwatch.core.linux.cgroup_mounts import find_own_cgroup
from memwatch.core.linux.cgroups import owner_folders, parse_cgroup, parse_mountinfo, parse_owners
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.meminfo import Meminfo, parse_low_watermark
from memwatch.core.linux.meminfo import check as check_lines
from memwatch.core.processes.process_folder import parse_rollup
from support.machine_folders import NAMES, machine_folder

Parser = Callable[[bytes], Any]

# Each parser with the files whose bytes are damaged, cut and mixed for it.
PARSERS: dict[str, tuple[Parser, tuple[str, ...]]] = {
    "meminfo": (lambda data: meminfo.build_pool(check_lines(Meminfo().parse(data))), ("proc/meminfo",)),
    "swap": (lambda data: meminfo.build_swap(check_lines(Meminfo().parse(data))), ("proc/meminfo",)),
    "arcstats": (meminfo.parse_arcstats, ("proc/spl/kstat/zfs/arcstats",)),
    "watermark": (lambda data: parse_low_watermark(data, 4096), ("proc/zoneinfo",)),
    "protection": (buddyinfo.parse_protection, ("proc/zoneinfo",)),
    "buddyinfo": (
        lambda data: buddyinfo.build_nodes(buddyinfo.parse_buddyinfo(data), {}, 4096),
        ("proc/buddyinfo",),
    ),
    "pressure": (psi.parse_pressure, ("proc/pressure/memory",)),
    "vmstat": (vmstat.Vmstat(4096).parse, ("proc/vmstat",)),
    "node": (lambda data: numa.parse_node(0, data, b"0-3\n"), ("sys/devices/system/node/node0/meminfo",)),
    "mm_stat": (zram.parse_mm_stat, ("sys/block/zram0/mm_stat",)),
    "cgroup": (lambda data: parse_owners(parse_cgroup(data)), ("proc/self/cgroup", "proc/1/cgroup")),
    "mountinfo": (parse_mountinfo, ("proc/self/mountinfo",)),
    "home v1": (lambda data: find_own_cgroup(b"4:memory:/docker/x\n", data, Roots()), ("proc/self/mountinfo",)),
    "home v2": (
        lambda data: find_own_cgroup(data, b"3 1 0:2 / /sys/fs/cgroup rw - cgroup2 x rw\n", Roots()),
        ("proc/self/cgroup",),
    ),
    "limit": (
        cgroup_mounts.parse_limit,
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ),
    "memory.stat": (cgroup.parse_stat, ("sys/fs/cgroup/memory.stat", "sys/fs/cgroup/memory/memory.stat")),
    "stat": (process_files.parse_stat, ("proc/1/stat", "proc/2/stat")),
    "boot time": (process_files.parse_boot_time, ("proc/stat",)),
    "status": (process_files.parse_uid, ("proc/1/status",)),
    "swap of a process": (process_files.parse_swap, ("proc/1/status",)),
    "statm": (process_files.parse_statm, ("proc/1/stat",)),
    "command": (lambda data: process_files.parse_command(data, 40), ("proc/1/stat", "proc/1/status")),
    "owners": (
        lambda data: owner_folders(parse_owners(parse_cgroup(data)), data.decode("latin-1")),
        ("proc/1/cgroup",),
    ),
    "smaps_rollup": (lambda data: parse_rollup(data, 1), ("proc/meminfo",)),
    "passwd": (process_files.parse_passwd, ("root/etc/passwd",)),
    "fdinfo": (parse_fdinfo, ("proc/4411/fdinfo/9", "proc/6120/fdinfo/5", "proc/1402/fdinfo/33")),
    "dmem": (cards.parse_dmem, ("sys/fs/cgroup/dmem.capacity", "sys/fs/cgroup/dmem.current")),
    "uevent": (
        lambda data: cards.select_compatible(cards.parse_uevent(data)),
        ("sys/devices/platform/fb000000.gpu/uevent",),
    ),
    "pci.ids": (
        lambda data: cards.find_model(data, "8086", "56a0"),
        ("root/usr/share/hwdata/pci.ids", "root/usr/share/misc/pci.ids"),
    ),
    "GPU active": (drm.parse_gpu_active, ("proc/meminfo",)),
    "text": (machine.decode_text, ("sys/class/dmi/id/product_name",)),
}
FOLDERS = [machine_folder(name).roots.procfs.parent for name in NAMES]


def samples_of(paths: tuple[str, ...]) -> list[bytes]:
    return [(folder / path).read_bytes() for folder in FOLDERS for path in paths if (folder / path).exists()]


@st.composite
def damaged(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Return a real file with a piece cut out, another inserted, and perhaps its end missing."""
    data = draw(st.sampled_from(samples))
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    piece = draw(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([b"-1", b"9" * 40, b"\n", b"\0", b" kB", b":", b"nan", b"0x10", b""]),
        )
    )
    return data[:start] + piece + data[end : draw(st.integers(end, len(data)))]


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [value]
    if isinstance(value, Struct):
        return numbers_in(astuple(value))
    if isinstance(value, dict):
        return numbers_in([*value.values()])
    return [number for part in value for number in numbers_in(part)] if isinstance(value, (list, tuple)) else []


def check(parse: Parser, data: bytes) -> None:
    try:
        found = parse(data)
    except (ParseError, SourceUnavailable):
        return
    assert all(number >= 0 for number in numbers_in(found))


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_parsed_or_rejected(name: str) -> None:
    """A damaged file yields no negative value, or is rejected; nothing else happens."""
    parse, paths = PARSERS[name]
    samples = samples_of(paths)
    assert samples

    @given(damaged(samples))
    def attack(data: bytes) -> None:
        check(parse, data)

    attack()


@pytest.mark.parametrize("name", PARSERS)
def test_arbitrary_bytes_are_parsed_or_rejected(name: str) -> None:
    """Arbitrary bytes yield no negative value, or are rejected."""
    parse, _ = PARSERS[name]

    @given(st.binary(max_size=300))
    def attack(data: bytes) -> None:
        check(parse, data)

    attack()


@pytest.mark.parametrize(
    "name", ["meminfo", "pressure", "buddyinfo", "vmstat", "node", "mm_stat", "stat", "arcstats"]
)
def test_truncated_files_yield_no_other_values(name: str) -> None:
    """A file cut off inside a line yields no value that the whole file does not yield."""
    parse, paths = PARSERS[name]
    for data in samples_of(paths):
        whole = set(numbers_in(parse(data)))
        for end in range(max(0, len(data) - 60), len(data)):
            try:
                found = parse(data[:end])
            except ParseError:
                continue
            assert data[:end].endswith(b"\n") or set(numbers_in(found)) <= whole
