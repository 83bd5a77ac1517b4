"""The formats of the amdgpu and compute drivers' files: a figure, or a reason why there is none."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.drivers.amd import kfd, names, sysfs
from memwatch.drivers.amd.records import KfdNode, Region
from memwatch.model import Absent, Bytes

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
def test_figures(text: bytes | Absent, figure: Bytes) -> None:
    """A number of bytes is a number of bytes; whatever else stands there has a reason and is never 0."""
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
def test_errors_of_files(code: int, reason: Absent) -> None:
    """A missing file is no feature, a refusal is one of permissions, and anything else may pass."""
    assert sysfs.reason_of(OSError(code, "x")) is reason


def test_used_more_than_there_is() -> None:
    """Such an answer contradicts itself: the use is left out, the size stays."""
    assert sysfs.region_of(100, 101) == Region(100, Absent.INCONSISTENT)
    assert sysfs.region_of(100, 100) == Region(100, 100)
    assert sysfs.region_of(Absent.NOT_SUPPORTED, 7) == Region(Absent.NOT_SUPPORTED, 7)


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
def test_percentages(text: bytes, ratio: float | Absent) -> None:
    """Percentages are ratios, and more than all of the time is nonsense."""
    assert sysfs.parse_ratio(text) == ratio


def test_error_counts() -> None:
    """Errors by kind; a GPU in reset says a sentence in their place, which counts nothing."""
    assert sysfs.parse_errors(b"ue: 1\nce: 12\n") == {"ecc_uncorrected": 1, "ecc_corrected": 12}
    assert sysfs.parse_errors(b"ue: 1\nce: 12\nde: 3\n")["ecc_deferred"] == 3
    assert sysfs.parse_errors(b"Query currently inaccessible\n") == {}


def test_bad_pages() -> None:
    """Retired, pending and unretirable pages are told apart."""
    text = b"0x00a3f1c2 : 0x00001000 : R\n0x00a3f1c3 : 0x00001000 : P\n0x00a3f1c4 : 0x00001000 : R\n"

    assert sysfs.parse_bad_pages(text) == {"pages_retired": 2, "pages_pending": 1, "pages_unretirable": 0}


def test_versions_compare() -> None:
    """6.9 is older than 6.12, and what is no version is older than any."""
    assert sysfs.parse_release(b"6.9.1-arch1\n") < sysfs.parse_release(b"6.12.107")
    assert sysfs.parse_release(b"linux") < sysfs.parse_release(b"2.6")


@pytest.mark.parametrize(
    ("version", "gfx"), [(110501, "gfx1151"), (90402, "gfx942"), (90010, "gfx90a"), (0, Absent.NOT_SUPPORTED)]
)
def test_gfx(version: int, gfx: str | Absent) -> None:
    """The last place of a gfx version is hexadecimal."""
    assert kfd.gfx_of(version) == gfx


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
def test_addresses(domain: int, location: int, pci: str | None) -> None:
    """A partition's number, wherever the kernel puts it, does not make its GPU another one."""
    known = {"0000:03:00.0", "0003:02:00.0", "10000:41:00.0"}

    assert kfd.pci_of(domain, location, known) == pci


def test_virtual_functions_are_themselves() -> None:
    """A GPU that is a virtual function is found by its own function, not by function 0."""
    assert kfd.pci_of(0, 0x302, {"0000:03:00.2", "0000:03:00.0"}) == "0000:03:00.2"


def test_nodes() -> None:
    """A node of processors is no GPU, though it has memory, and a GPU has only frame buffer."""
    banks = [{"heap_type": 1, "size_in_bytes": 100}, {"heap_type": 0, "size_in_bytes": 900}]
    properties = kfd.parse_properties(HALO)

    assert kfd.node_of(0, 0, properties, banks, {"0000:03:00.0"}) is None
    assert kfd.node_of(1, 7, properties, banks, {"0000:03:00.0"}) == KfdNode(
        1, 7, "0000:03:00.0", "gfx1151", 100, Absent.NOT_AVAILABLE
    )


def test_what_processes_hold() -> None:
    """Contexts and partitions of one GPU add up; nonsense is counted; GPUs of others are nobody's."""
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

    assert kfd.held_by_gpu(figures, nodes) == ({"a": {10: 12}, "b": {10: 1}}, 1)


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
def test_names(product: str | None, device: str, revision: str, name: str) -> None:
    """The board's own name, the system's for this revision, ours, or the numbers."""
    listed = names.parse_ids(b"# a comment\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n\xff,,\n744C,C8\n")

    assert names.name_of(product, device, revision, listed) == name


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Bytes that no driver ever wrote give nothing negative and no exception."""
    figure, ratio = sysfs.parse_figure(data), sysfs.parse_ratio(data)

    assert isinstance(figure, Absent) or 0 <= figure <= sysfs.MOST_BYTES
    assert isinstance(ratio, Absent) or 0 <= ratio <= 1
    assert all(count >= 0 for count in {**sysfs.parse_errors(data), **sysfs.parse_bad_pages(data)}.values())
    assert isinstance(sysfs.parse_text(data), (str, Absent))
    assert isinstance(sysfs.parse_id(data), str)
    assert isinstance(sysfs.parse_metrics_format(data), (int, Absent))
    assert len(sysfs.parse_release(data)) in (0, 2)
    names.parse_ids(data)


@given(st.lists(st.sampled_from(HALO.split()), max_size=30), st.integers(0, 1 << 64), st.integers(0, 1 << 64))
def test_any_topology(words: list[bytes], domain: int, bank: int) -> None:
    """Properties in any order with any numbers are a GPU that is known, or none."""
    properties = {**kfd.parse_properties(b"\n".join(words)), "domain": domain}
    node = kfd.node_of(1, 5, properties, [{"heap_type": 2, "size_in_bytes": bank}], {"0000:03:00.0"})

    assert node is None or (node.pci == "0000:03:00.0" and isinstance(node.bank_bytes, (int, Absent)))
