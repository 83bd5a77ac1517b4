"""Test that an error in the kernel log is counted once, on the GPU it concerns, and its words by NVIDIA's XIDs."""

from __future__ import annotations

import re

import pytest

from memwatch.core.accounting.driver_errors import XIDS, describe_kind, same_slot, unassigned_errors, with_logged
from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Architecture, Device


def gpu(name: str, vendor: str, pci: str, errors: dict[str, int] | None = None) -> Device:
    return Device(name, vendor, name, Architecture.DISCRETE, pci=pci, errors=errors or {})


def error(driver: str, pci: str, kind: str, count: int = 1) -> DriverError:
    return DriverError(driver, pci, kind, count, 1_800_000_000.0, "a line")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("00000000:65:00.0", "0000:65:00", True),
        ("0000:03:00.0", "0000:03:00.0", True),
        ("0000000F:01:00.0", "000f:01:00", True),
        ("00000000:65:00.0", "0000:66:00", False),
        ("00000001:65:00.0", "0000:65:00", False),
    ],
)
def test_addresses_are_compared_as_addresses(one: str, other: str, same: bool) -> None:
    """NVML pads the domain to eight digits, the log to four; XIDs name no function."""
    assert same_slot(one, other) is same


def test_error_is_counted_on_the_gpu_with_its_address() -> None:
    """An error already counted by NVML is not counted again."""
    devices = (gpu("gpu0", "NVIDIA", "00000000:65:00.0", {"xid_79": 3}), gpu("gpu1", "NVIDIA", "00000000:66:00.0"))
    log = KernelLog(
        driver_errors=(error("nvidia", "0000:65:00", "xid_79", 2), error("nvidia", "0000:66:00", "xid_48"))
    )

    first, second = with_logged(devices, log)

    assert dict(first.errors) == {"xid_79": 3}
    assert dict(second.errors) == {"xid_48": 1}
    assert second.errors_seen_unix["xid_48"] == 1_800_000_000.0
    assert unassigned_errors(devices, log) == ()


def test_error_without_an_address_is_counted_on_the_only_gpu_of_its_driver() -> None:
    """With two such GPUs it belongs to neither and is listed under the driver's name."""
    line = KernelLog(driver_errors=(error("nvidia", "", "nv_err_no_memory"),))
    one = (gpu("gpu0", "NVIDIA", "00000000:65:00.0"), gpu("gpu1", "AMD", "0000:03:00.0"))
    two = (*one, gpu("gpu2", "NVIDIA", "00000000:66:00.0"))

    assert dict(with_logged(one, line)[0].errors) == {"nv_err_no_memory": 1}
    assert with_logged(two, line) == two
    assert [found.place for found in unassigned_errors(two, line)] == ["nvidia"]


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", "Intel"])
def test_error_of_wsl_is_counted_on_the_only_gpu_of_any_maker(vendor: str) -> None:
    """microsoft/WSL#41176: one driver for all, whose lines name no GPU."""
    line = KernelLog(driver_errors=(error("dxgkrnl", "", "no_memory"),))
    one = (gpu("gpu0", vendor, "00000000:65:00.0"),)
    two = (*one, gpu("gpu1", "NVIDIA", "00000000:66:00.0"))

    assert dict(with_logged(one, line)[0].errors) == {"no_memory": 1}
    assert [found.place for found in unassigned_errors(two, line)] == ["dxgkrnl"]


# Every XID that a data centre or consumer GPU of today is documented to report.
DOCUMENTED = [13, 31, 32, 43, 45, 48, 56, 57, 58, 61, 62, 63, 64, 65, 68, 69, 74, 79, 92, 93, 94, 95, 109, 110]
DOCUMENTED += [119, 120, 121, 122, 123, 124, 140, 143, *range(144, 151), 154, *range(156, 159), 171, 172]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xid_79", "XID 79: GPU has fallen off the bus"),
        ("xid_48", "XID 48: uncorrectable ECC error (double bit)"),
        ("xid_999", "XID 999"),
        ("xid_", "XID "),
        ("page_fault", "a page fault of a GPU program"),
        ("no_memory", "not enough memory for a command or a buffer"),
    ],
)
def test_kind_is_described(kind: str, words: str) -> None:
    assert describe_kind(kind) == words


def test_documented_xid_has_a_meaning() -> None:
    assert [code for code in DOCUMENTED if not XIDS.get(code)] == []


def test_meanings_are_short_and_fit_into_a_sentence() -> None:
    """They follow "XID 79: ", in events, on pages and in alerts."""
    assert all(len(words) <= 75 and not re.search(r"[.;:]$", words) for words in XIDS.values())
