"""Test the file formats of the amdgpu and compute drivers: a value, or the reason for its absence."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.drivers.amd import amdgpu_cards, sysfs
from memwatch.core.drivers.amd.records import KfdNode, Region
from memwatch.core.model import MAX_BYTES, Absent, Bytes

HALO = b"cpu_cores_count 0\nsimd_count 80\ngfx_target_version 110501\nvendor_id 4098\nlocation_id 768\n"


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        (b"536870912\n", 536870912),
        (b"0\n", 0),
        (b"N/A\n", Absent.NOT_SUPPORTED),
        (b"", Absent.INCONSISTENT),
        (b"-1\n", Absent.INCONSISTENT),
        (b"12 MB\n", Absent.INCONSISTENT),
        (b"0x1000\n", Absent.INCONSISTENT),
        (b"18446744073709551615\n", Absent.INCONSISTENT),
        (b"9" * 40, Absent.INCONSISTENT),
        (b"\xff\xfe", Absent.INCONSISTENT),
        (Absent.NOT_PERMITTED, Absent.NOT_PERMITTED),
    ],
)
def test_sizes_are_parsed_or_absent(text: bytes | Absent, figure: Bytes) -> None:
    """Anything but a number of bytes is absent with a reason, and never 0."""
    assert sysfs.parse_figure(text) == figure


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOENT, Absent.NOT_SUPPORTED),
        (errno.EPERM, Absent.NOT_PERMITTED),
        (errno.EACCES, Absent.NOT_PERMITTED),
        (errno.EOPNOTSUPP, Absent.NOT_SUPPORTED),
        (errno.EIO, Absent.NOT_AVAILABLE),
        (errno.EINVAL, Absent.NOT_AVAILABLE),
    ],
)
def test_errors_of_files_become_reasons(code: int, reason: Absent) -> None:
    """A missing file is an unsupported feature, EPERM and EACCES are permissions, other errors may pass."""
    assert sysfs.absent_reason(OSError(code, "x")) is reason


def test_use_beyond_the_size_is_inconsistent() -> None:
    """The use is dropped as a contradiction, the size stays."""
    assert sysfs.build_region(100, 101) == Region(100, Absent.INCONSISTENT)
    assert sysfs.build_region(100, 100) == Region(100, 100)
    assert sysfs.build_region(Absent.NOT_SUPPORTED, 7) == Region(Absent.NOT_SUPPORTED, 7)


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        (b"87\n", 0.87),
        (b"100\n", 1.0),
        (b"0\n", 0.0),
        (b"101\n", Absent.INCONSISTENT),
        (b"N/A", Absent.NOT_SUPPORTED),
    ],
)
def test_percentages_become_ratios(text: bytes, ratio: float | Absent) -> None:
    """More than 100 % is inconsistent."""
    assert sysfs.parse_ratio(text) == ratio


def test_error_counts_are_parsed_by_kind() -> None:
    """A GPU in reset returns a sentence in place of the counts."""
    assert sysfs.parse_errors(b"ue: 1\nce: 12\n") == {"ecc_uncorrected": 1, "ecc_corrected": 12}
    assert sysfs.parse_errors(b"ue: 1\nce: 12\nde: 3\n")["ecc_deferred"] == 3
    assert sysfs.parse_errors(b"Query currently inaccessible\n") == {}


def test_bad_pages_are_counted_by_state() -> None:
    """Retired, pending and unretirable pages are counted separately."""
    text = b"0x00a3f1c2 : 0x00001000 : R\n0x00a3f1c3 : 0x00001000 : P\n0x00a3f1c4 : 0x00001000 : R\n"

    assert sysfs.parse_bad_pages(text) == {"pages_retired": 2, "pages_pending": 1, "pages_unretirable": 0}


def test_releases_compare_as_numbers() -> None:
    """6.9 is older than 6.12, and an unparsable version is older than any."""
    assert sysfs.parse_release(b"6.9.1-arch1\n") < sysfs.parse_release(b"6.12.107")
    assert sysfs.parse_release(b"linux") < sysfs.parse_release(b"2.6")


@pytest.mark.parametrize(
    ("version", "gfx"), [(110501, "gfx1151"), (90402, "gfx942"), (90010, "gfx90a"), (0, Absent.NOT_SUPPORTED)]
)
def test_gfx_name_has_a_hexadecimal_stepping(version: int, gfx: str | Absent) -> None:
    """The last digit of a gfx version is hexadecimal."""
    assert sysfs.format_gfx(version) == gfx


@pytest.mark.parametrize(
    ("domain", "location", "pci"),
    [
        (0, 0x300, "0000:03:00.0"),
        (3, 0x200, "0003:02:00.0"),
        (0, 0x305, "0000:03:00.0"),
        (0, 0x300 | 5 << 28, "0000:03:00.0"),
        (0x10000, 0x4100, "10000:41:00.0"),
        (0, 0x9900, None),
        (0, 1 << 40, None),
    ],
)
def test_partitions_map_to_the_address_of_their_gpu(domain: int, location: int, pci: str | None) -> None:
    """A partition's number in the location, wherever the kernel puts it, does not change the GPU."""
    known = {"0000:03:00.0", "0003:02:00.0", "10000:41:00.0"}

    assert sysfs.find_pci(domain, location, known) == pci


def test_virtual_function_keeps_its_own_address() -> None:
    """A GPU that is a virtual function is matched by its own function, not by function 0."""
    assert sysfs.find_pci(0, 0x302, {"0000:03:00.2", "0000:03:00.0"}) == "0000:03:00.2"


def test_node_of_cpus_is_no_gpu() -> None:
    """A CPU node has memory and is no GPU; of a GPU's banks only the frame buffer counts."""
    banks = [{"heap_type": 1, "size_in_bytes": 100}, {"heap_type": 0, "size_in_bytes": 900}]
    properties = sysfs.parse_properties(HALO)

    assert sysfs.parse_node(0, 0, properties, banks, {"0000:03:00.0"}) is None
    assert sysfs.parse_node(1, 7, properties, banks, {"0000:03:00.0"}) == KfdNode(
        1, 7, "0000:03:00.0", "gfx1151", 100, Absent.NOT_AVAILABLE
    )


def test_frame_buffer_without_a_size_is_unknown() -> None:
    """It is not 0 bytes: a sum with it would be too small."""
    banks = [{"heap_type": 1, "size_in_bytes": 100}, {"heap_type": 2}]

    assert sysfs.select_bank_bytes(banks) is Absent.NOT_AVAILABLE
    assert sysfs.select_bank_bytes(banks[:1]) == 100
    assert sysfs.select_bank_bytes([]) is Absent.NOT_SUPPORTED


def test_memory_of_processes_is_summed_by_gpu() -> None:
    """Contexts and partitions of one GPU add up; invalid values are counted; unknown GPUs are ignored."""
    nodes = [
        KfdNode(at, gpu_id, pci, "gfx942", 0) for at, (gpu_id, pci) in enumerate([(1, "a"), (2, "a"), (3, "b")])
    ]
    figures: list[tuple[int, int, Bytes]] = [
        (10, 1, 5),
        (10, 2, 7),
        (10, 3, 1),
        (11, 1, Absent.INCONSISTENT),
        (11, 9, 8),
    ]

    assert sysfs.held_by_gpu(figures, nodes) == ({"a": {10: 12}, "b": {10: 1}}, 1)


@pytest.mark.parametrize(
    ("product", "device", "revision", "name"),
    [
        ("AMD Instinct MI210", "740f", "02", "AMD Instinct MI210"),
        (None, "744c", "c8", "AMD Radeon RX 7900 XTX"),
        (None, "744c", "ff", "AMD Radeon RX 7900 XT/XTX"),
        (None, "ffff", "00", "AMD GPU 1002:ffff"),
        (None, "", "", "AMD GPU 1002:????"),
    ],
)
def test_name_comes_from_board_list_or_ids(product: str | None, device: str, revision: str, name: str) -> None:
    """The board's name, the entry for this revision in the system's list, the built-in name, or the ids."""
    listed = amdgpu_cards.parse_ids(b"# a comment\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n\xff,,\n744C,C8\n")

    assert amdgpu_cards.choose_name(product, device, revision, listed) == name


@given(st.binary(max_size=200))
def test_arbitrary_bytes_yield_valid_values(data: bytes) -> None:
    """Arbitrary bytes yield no negative value and raise nothing."""
    figure, ratio = sysfs.parse_figure(data), sysfs.parse_ratio(data)

    assert isinstance(figure, Absent) or 0 <= figure <= MAX_BYTES
    assert isinstance(ratio, Absent) or 0 <= ratio <= 1
    assert all(count >= 0 for count in {**sysfs.parse_errors(data), **sysfs.parse_bad_pages(data)}.values())
    assert isinstance(sysfs.parse_text(data), (str, Absent))
    assert isinstance(sysfs.parse_id(data), str)
    assert isinstance(sysfs.parse_metrics_format(data), (int, Absent))
    assert len(sysfs.parse_release(data)) in (0, 2)
    amdgpu_cards.parse_ids(data)


@given(st.lists(st.sampled_from(HALO.split()), max_size=30), st.integers(0, 1 << 64), st.integers(0, 1 << 64))
def test_arbitrary_topology_yields_a_known_gpu_or_none(words: list[bytes], domain: int, bank: int) -> None:
    """Properties in any order with any numbers yield a known GPU, or none."""
    properties = {**sysfs.parse_properties(b"\n".join(words)), "domain": domain}
    node = sysfs.parse_node(1, 5, properties, [{"heap_type": 2, "size_in_bytes": bank}], {"0000:03:00.0"})

    assert node is None or (node.pci == "0000:03:00.0" and isinstance(node.bank_bytes, (int, Absent)))
