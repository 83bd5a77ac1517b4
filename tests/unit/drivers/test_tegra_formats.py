"""Test that a Jetson's files and tegrastats are read in every form since JetPack 3."""

from __future__ import annotations

import string
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwatch.core.collectors.tegra import Release, parse_release
from memwatch.core.drivers.tegra.nvmap import NvMapTable, parse_clients, parse_meminfo
from memwatch.core.drivers.tegra.records import Area, Load, NvMapClient, TegrastatsReading
from memwatch.core.drivers.tegra.tegrastats import parse_line
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.gpu_presence import parse_compatible
from memwatch.core.model import Absent
from simulators.tegra_lines import LINES, Sample
from support.budget import within
from support.machine_folders import NAMES, machine_folder

JETSONS = [name for name in NAMES if (machine_folder(name).roots.procfs.parent / "tegrastats").exists()]
MIB, KIB, MHZ = 1 << 20, 1 << 10, 1_000_000
HEADER = f"{'CLIENT':<18} {'PROCESS':>18} {'PID':>8} {'SIZE':>11}\n"


def line_of(text: str) -> TegrastatsReading:
    return parse_line(text.encode() + b"\n")


@pytest.mark.parametrize("sample", LINES, ids=[sample.name for sample in LINES])
def test_every_form_of_a_line_is_parsed(sample: Sample) -> None:
    """Fields are read by name in any order and spacing; missing ones are absent, and never 0."""
    reading = line_of(sample.text)

    assert {name: getattr(reading, name) for name in sample.expected} == sample.expected
    others = {"swap", "gr3d", "emc", "mts", "time"} - sample.expected.keys()
    assert {getattr(reading, name) for name in others} <= {Absent.NOT_AVAILABLE}


def test_every_form_of_the_gpu_load_is_parsed() -> None:
    """`3%@76`, `0%`, `63%@[621]`, `12%@[1300,1300]`, a clock alone, nothing: 3, 0, 63, 12 and twice unknown."""
    texts = ["GR3D 3%@76", "GR3D_FREQ 0%", "GR3D_FREQ 63%@[621]", "GR3D_FREQ 12%@[1300,1300]"]
    found = [line_of(f"RAM 1/2MB (lfb 1x4MB) {text}").gr3d for text in (*texts, "GR3D_FREQ @[1000,1000,1000]", "")]

    assert found == [
        Load(busy_ratio=0.03, hertz=(76 * MHZ,)),
        Load(busy_ratio=0.0),
        Load(busy_ratio=0.63, hertz=(621 * MHZ,)),
        Load(busy_ratio=0.12, hertz=(1300 * MHZ, 1300 * MHZ)),
        Load(busy_ratio=Absent.NOT_AVAILABLE, hertz=(1000 * MHZ,) * 3),
        Absent.NOT_AVAILABLE,
    ]


@pytest.mark.parametrize("name", JETSONS)
def test_machines_agree_with_their_tegrastats(name: str) -> None:
    """The line of a simulated Jetson has the memory, the swap and the free blocks of its /proc."""
    machine = machine_folder(name)
    pool, swap = machine.expected["meminfo"]["pools"][0], machine.expected["meminfo"]["swap"]
    reading = parse_line((machine.roots.procfs.parent / "tegrastats").read_bytes())

    node = machine.expected["buddyinfo"]["nodes"][0]
    assert reading.ram_total_bytes == pool["size_bytes"] // MIB * MIB
    assert reading.largest_free_block_bytes == node["largest_free_block_bytes"]
    assert isinstance(reading.largest_free_blocks, int)
    if reading.largest_free_block_bytes == 4 * MIB:
        assert reading.largest_free_blocks * 4 * MIB == node["free_large_blocks_bytes"]
    if isinstance(reading.swap, Area):
        assert reading.swap.total_bytes == swap["size_bytes"] // MIB * MIB
        assert reading.swap.total_bytes == pytest.approx(pool["size_bytes"] / 2, rel=0.001)
    else:
        assert swap["size_bytes"] == 0


@pytest.mark.parametrize("sample", LINES, ids=[sample.name for sample in LINES])
def test_truncated_line_is_rejected(sample: Sample) -> None:
    """Only the newline completes a line, and no part of an incomplete one is used."""
    for end in range(len(sample.text)):
        with pytest.raises(DecodeError):
            parse_line(sample.text[:end].encode())


@pytest.mark.parametrize("sample", LINES, ids=[sample.name for sample in LINES])
def test_line_with_a_truncated_field_is_rejected(sample: Sample) -> None:
    """Even with its newline intact, a truncated field is detected and never taken for another one."""
    whole = line_of(sample.text)
    for end in range(len(sample.text)):
        try:
            part = line_of(sample.text[:end])
        except DecodeError:
            continue
        for name in ("ram_used_bytes", "ram_total_bytes", "largest_free_block_bytes"):
            assert getattr(part, name) in (getattr(whole, name), Absent.INCONSISTENT)
        assert part.engines.keys() <= whole.engines.keys()
        assert part.rails_milliwatts.keys() <= whole.rails_milliwatts.keys()
        now = {name: degrees[0] for name, degrees in part.temperatures_celsius.items()}
        assert all(whole.temperatures_celsius[name][0] == degrees for name, degrees in now.items())


@pytest.mark.parametrize(
    "text",
    ["", "CPU [1%@102]", "RAM 3/2MB (lfb 1x4MB)", "RAM 1/2MB", "RAM 1/2MB (lfb 1x4MB) " + "A@1C " * 4000],
)
def test_invalid_line_is_rejected_as_a_whole(text: str) -> None:
    """No RAM, nothing but a RAM that cannot be true, or endless text."""
    with pytest.raises(DecodeError):
        line_of(text)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("RAM 1/2MB (lfb 1x4MB)", 1),
        ("GR3D_FREQ 101%@76", 1),
        ("GR3D_FREQ 7", 1),
        ("CPU [1%@102,of", 1),
        ("CPU [1%@102,2%@102]@408", 1),
        ("SWAP 0/19", 1),
        ("SWAP 3/2MB (cached 0MB)", 1),
        ("VDD_IN 52", 1),
        ("VDD_IN 5299mW/52", 1),
        ("nonsense", 1),
        ("PLL@37.5", 1),
        ("nonsense PLL@nanC GR3D_FREQ none", 1),
        ("PLL@nanC cpu@40C GR3D_FREQ none", 2),
    ],
)
def test_odd_field_leaves_the_others(text: str, odd: int) -> None:
    """Repeated, above its whole, truncated, two clocks of a core, or not known: a sensor cost the GPU's load."""
    found = line_of(f"RAM 1/2MB (lfb 1x4MB) EMC_FREQ 3%@1600 {text} gpu@41C")

    assert (found.ram_total_bytes, found.emc, found.odd_fields) == (2 * MIB, Load(True, 0.03, (1600 * MHZ,)), odd)
    assert (found.gr3d, found.cpus, found.swap) == (Absent.NOT_AVAILABLE, (), Absent.NOT_AVAILABLE)
    assert found.temperatures_celsius["gpu"] == (41.0,)
    assert found.rails_milliwatts == {}


@pytest.mark.parametrize(
    "ram", ["RAM 3/2MB (lfb 1x4MB)", "RAM 1/2MB (lfb nonex4MB)", f"RAM 1/{10**12}MB (lfb 1x4MB)"]
)
def test_odd_ram_leaves_the_load(ram: str) -> None:
    found = line_of(f"{ram} GR3D_FREQ 62%@921")

    assert (found.ram_used_bytes, found.largest_free_blocks) == (Absent.INCONSISTENT, Absent.INCONSISTENT)
    assert (found.gr3d, found.odd_fields) == (Load(True, 0.62, (921 * MHZ,)), 1)


@settings(deadline=None)
@given(st.sampled_from(LINES), st.data())
def test_damaged_lines_are_parsed_or_rejected(sample: Sample, data: st.DataObject) -> None:
    """A damaged line yields a reading with possible values, or Garbled."""
    text = sample.text.encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 30)))
    pieces = [b"9" * 40, b"off", b"%", b"@", b"[", b"\0", b"\xff", b"-1", b"/", b" ", b"\n", b"mW"]
    piece = data.draw(st.one_of(st.binary(max_size=20), st.sampled_from(pieces)))
    try:
        reading = parse_line(text[:start] + piece + text[end:] + b"\n")
    except DecodeError:
        return
    used, total = reading.ram_used_bytes, reading.ram_total_bytes
    assert (used is total is Absent.INCONSISTENT) or 0 <= used <= total  # type: ignore[operator]
    assert all(0 <= load.busy_ratio <= 1 for load in reading.cpus if isinstance(load.busy_ratio, float))


@pytest.mark.measure
def test_line_is_parsed_within_a_millisecond() -> None:
    """The longest line takes less than one millisecond, also on a busy machine (50 µs when idle)."""
    longest = max((sample.text for sample in LINES), key=len).encode() + b"\n"
    costs = []
    for _ in range(20):
        started = time.process_time()
        for _ in range(20):
            parse_line(longest)
        costs.append((time.process_time() - started) / 20)

    within("line of tegrastats", min(costs), 0.001, "s")


def table(*rows: str, total: str = "120K") -> bytes:
    return (HEADER + "".join(f"{row}\n" for row in rows) + f"total   {total}\n").encode()


def test_total_counts_shared_memory_once() -> None:
    """Two clients of 100 MiB share 80 MiB: the last line gives 120 MiB in use."""
    found = parse_clients(table("user  one  11  102400K", "user  two  12  102400K", total="122880K"))

    assert found == NvMapTable(
        120 * MIB, (NvMapClient(11, "one", 100 * MIB), NvMapClient(12, "two", 100 * MIB)), rejected=0
    )


@pytest.mark.parametrize(
    ("row", "client"),
    [
        ("user            gpu_burn     7979   23525644K", NvMapClient(7979, "gpu_burn", 23525644 * KIB)),
        ("user     VLLM::EngineCor     4711     100K", NvMapClient(4711, "VLLM::EngineCor", 100 * KIB)),
        ("user      ros 2 detector     9042     100K", NvMapClient(9042, "ros 2 detector", 100 * KIB)),
        ("user             a 12 34       56     100K", NvMapClient(56, "a 12 34", 100 * KIB)),
        ("nvgpu             kernel        0   40960K", NvMapClient(0, "kernel", 40960 * KIB)),
        ("user             carveout     812  1048576", NvMapClient(812, "carveout", MIB)),
        ("user                          812     100K", NvMapClient(812, "user", 100 * KIB)),
    ],
)
def test_rows_are_parsed_from_the_right(row: str, client: NvMapClient) -> None:
    """Names with blanks and digits, kernel clients, and old rows without a unit (in bytes)."""
    assert parse_clients(table(row)).clients == (client,)


def test_column_pss_is_not_the_size() -> None:
    """The heading gives the order of columns."""
    rows = b"user  app  7  80K  100K\ntotal  80K  120K\n"

    by_pss_first = parse_clients(b"CLIENT PROCESS PID PSS SIZE\n" + rows)
    by_size_first = parse_clients(b"CLIENT PROCESS PID SIZE PSS\n" + rows)

    assert (by_pss_first.clients[0].used_bytes, by_pss_first.total_bytes) == (100 * KIB, 120 * KIB)
    assert (by_size_first.clients[0].used_bytes, by_size_first.total_bytes) == (80 * KIB, 80 * KIB)


def test_newline_in_a_name_hides_no_other_process() -> None:
    """The pieces of its row are left out and counted."""
    found = parse_clients(table("user  evil", "x y  z  100K", "user  good  12  100K"))

    assert found.clients == (NvMapClient(12, "good", 100 * KIB),)
    assert found.rejected == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER.encode(),
        HEADER.encode() + b"\n",
        table("user  app  7  100K")[:-3],
        table("user  app  7  100K").replace(b"total", b"Total"),
        table("user  app  7  100K", total="lots"),
        table("user  app  7  100K", total="9" * 30 + "K"),
        b"CLIENT PROCESS PID\n",
        b"<html>\n",
    ],
)
def test_table_without_heading_or_total_is_rejected(data: bytes) -> None:
    """Both a heading and a total are required."""
    with pytest.raises(DecodeError):
        parse_clients(data)


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 300))
@example(b"total", 0, 0)
def test_damaged_tables_are_parsed_or_rejected(piece: bytes, start: int, length: int) -> None:
    """A damaged table yields possible values, or Garbled."""
    data = table("user  gpu burn  7979  23525644K", "user  Xorg  1890  23676K", total="23549320K")
    try:
        found = parse_clients(data[:start] + piece + data[start + length :])
    except DecodeError:
        return
    assert found.total_bytes >= 0
    assert all(client.pid >= 0 and client.used_bytes >= 0 for client in found.clients)


def test_nvmap_lines_of_meminfo_are_optional() -> None:
    """In bytes if present, not supported if the kernel has none; more than MemTotal is rejected."""
    with_lines = parse_meminfo(b"MemTotal: 8038788 kB\nNvMapMemFree:  94784 kB\nNvMapMemUsed:  805068 kB\n")

    assert with_lines == (805068 * KIB, 94784 * KIB)
    assert parse_meminfo(b"MemTotal: 8038788 kB\n") == (Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED)
    for bad in (b"MemTotal: 10 kB\nNvMapMemUsed: 11 kB\n", b"MemTotal: 10 kB\nNvMapMemUsed: 1"):
        with pytest.raises(DecodeError):
            parse_meminfo(bad)


@pytest.mark.parametrize(
    ("data", "soc"),
    [
        (b"nvidia,p3450-0000\0nvidia,tegra210\0", "tegra210"),
        (b"nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0", "tegra264"),
        (b"nvidia,tegra186-board\0nvidia,tegra186\0nvidia,tegra18x\0", "tegra186"),
        (b"raspberrypi,4-model-b\0brcm,bcm2711\0", None),
        (b"nvidia,tegra234", "tegra234"),
        (b"", None),
        (b"\xff\0" * 9, None),
    ],
)
def test_last_chip_in_compatible_decides(data: bytes, soc: str | None) -> None:
    """Entries before and after it name boards and families."""
    assert parse_compatible(data) == soc


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64", Release("32.7.1", "4")),
        ("# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref", Release("35.4.1", "5")),
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic", Release("36.4.3", "6")),
        ("# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic", Release("38.2.0", "7")),
        ("# R39 (release), REVISION: 2.0, GCID: 45112230, BOARD: generic", Release("39.2.0", "7.2")),
        ("# R28 (release), REVISION: 1.0, GCID: 9379712", Release("28.1.0", Absent.NOT_AVAILABLE)),
        ("# R99 (release), REVISION: 1.0, GCID: 1", Release("99.1.0", Absent.NOT_AVAILABLE)),
        ("", Release(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)),
    ],
)
def test_release_gives_its_jetpack(line: str, release: Release) -> None:
    """A release missing in the table is not guessed."""
    assert parse_release(line.encode() + b"\n") == release
    assert parse_release(None) == Release(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)


@given(st.text(alphabet=string.printable, max_size=100))
def test_arbitrary_release_file_is_accepted(text: str) -> None:
    """The file belongs to the user's system and may have any content."""
    found: Any = parse_release(text.encode())

    assert isinstance(found.l4t, (str, Absent))
