"""Test that an error in the kernel log is counted once, on the GPU it concerns."""

from __future__ import annotations

import pytest

from memwatch.core.accounting.driver_errors import same_slot, unassigned_errors, with_logged
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
