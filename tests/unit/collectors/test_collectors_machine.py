"""Test the name of the machine, and the detection of GPUs among its displays."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.machine import Collector, choose_name
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import PciGpu, parse_gpu
from memwatch.core.model import Absent
from memwatch.core.snapshot import Machine


@pytest.mark.parametrize(
    ("dmi", "name"),
    [
        ({"sys_vendor": "Dell Inc.", "product_name": "Precision 7960"}, "Dell Inc. Precision 7960"),
        ({"sys_vendor": "HP", "product_name": "HP Z8 G5"}, "HP Z8 G5"),
        ({"sys_vendor": "NVIDIA", "product_name": "NVIDIA_DGX_Spark"}, "NVIDIA DGX Spark"),
        ({"sys_vendor": "LENOVO", "product_name": "21CB", "product_version": "ThinkPad X1"}, "LENOVO ThinkPad X1"),
        ({"sys_vendor": "LENOVO", "product_name": "30E0", "product_version": "None"}, "LENOVO 30E0"),
        (
            {"product_name": "System Product Name", "board_vendor": "ASUS", "board_name": "PRIME B650"},
            "ASUS PRIME B650",
        ),
        ({"sys_vendor": "To be filled by O.E.M.", "product_name": "Default string", "board_name": "  "}, None),
        ({"sys_vendor": "Default string", "product_name": "NUC 13"}, "NUC 13"),
        ({}, None),
    ],
)
def test_machine_name_skips_firmware_placeholders(dmi: dict[str, str], name: str | None) -> None:
    """The name is the vendor's product name; placeholders of the firmware are ignored."""
    assert choose_name(dmi) == (Absent.NOT_AVAILABLE if name is None else name)


@pytest.mark.parametrize(
    ("pci_class", "vendor", "device", "gpu"),
    [
        ("0x030000", "0x10de", "0x2684", PciGpu("10de", "2684")),
        ("0x030200", "0x10de", "0x2342", PciGpu("10de", "2342")),
        ("0x038000", "0x1002", "0x740f", PciGpu("1002", "740f")),
        ("0x120000", "0x1002", "0x74a1", PciGpu("1002", "74a1")),
        ("0x030000", "0x8086", "0x46a6", PciGpu("8086", "46a6")),
        ("0x120000", "0x8086", "0x7d1d", None),
        ("0x040300", "0x10de", "0x22ba", None),
        ("0x030000", "0x1a03", "0x2000", None),
        ("0x030000", "0x1af4", "0x1050", None),
        ("0x030000", "0x1234", "0x1111", None),
        ("0x030000", "0x1002", "0x515e", None),
        ("", "", "", None),
    ],
)
def test_gpu_is_recognized_by_class_and_vendor(
    pci_class: str, vendor: str, device: str, gpu: PciGpu | None
) -> None:
    """GPUs are told apart from management displays, virtual displays and neural engines."""
    assert parse_gpu(pci_class, vendor, device) == gpu


def machine_under(tmp_path: Path) -> Machine:
    machine = Collector(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)).collect().machine
    assert machine is not None
    return machine


def test_jetson_is_recognized_by_its_device_tree(tmp_path: Path) -> None:
    """A Jetson is recognized by its device tree: its name without the NUL, and a GPU on no bus."""
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"NVIDIA Jetson AGX Thor Developer Kit\0")
    (tmp_path / "proc/device-tree/compatible").write_bytes(
        b"nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0"
    )

    machine = machine_under(tmp_path)

    assert machine.name == "NVIDIA Jetson AGX Thor Developer Kit"
    assert machine.architecture == "unknown"
    assert "(nvidia,tegra264)" in machine.explanation


def test_architecture_is_unknown_without_sysfs(tmp_path: Path) -> None:
    """With /sys hidden, the absence of a GPU cannot be known."""
    machine = machine_under(tmp_path)

    assert (machine.name, machine.architecture) == (Absent.NOT_AVAILABLE, "unknown")
    assert "no bus is visible" in machine.explanation


def test_machine_without_pci_has_no_gpu(tmp_path: Path) -> None:
    """A machine that has buses but no PCI has no GPU."""
    (tmp_path / "sys/bus/platform").mkdir(parents=True)

    assert machine_under(tmp_path).architecture == "cpu_only"


def test_added_gpu_is_found_by_the_next_reading(tmp_path: Path) -> None:
    """A GPU added while the daemon runs is found by the next reading; two of one model are listed once."""
    pci = tmp_path / "sys/bus/pci/devices"
    pci.mkdir(parents=True)
    collector = Collector(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))
    before = collector.collect().machine

    for address in ("0000:01:00.0", "0000:02:00.0"):
        (pci / address).mkdir()
        for key, value in (("class", "0x030000"), ("vendor", "0x10de"), ("device", "0x2684")):
            (pci / address / key).write_text(value + "\n")
    after = collector.collect().machine

    assert before is not None
    assert after is not None
    assert (before.architecture, after.architecture) == ("cpu_only", "unknown")
    assert "(NVIDIA 10de:2684)" in after.explanation


def test_unreadable_pci_functions_are_not_the_absence_of_a_gpu(tmp_path: Path) -> None:
    """A sandbox may hide their files. They are tried again, and a function that vanished does not count."""
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)
    pci = roots.sysfs / "bus/pci/devices"
    (pci / "0000:01:00.0").mkdir(parents=True)
    (pci / "0000:02:00.0").symlink_to(pci / "gone")
    collector = Collector(roots)
    unread = collector.collect().machine
    for name, text in {"class": "0x020000", "vendor": "0x8086", "device": "0x10d3"}.items():
        (pci / "0000:01:00.0" / name).write_text(f"{text}\n")
    read = collector.collect().machine

    assert unread is not None
    assert (unread.architecture, unread.explanation) == (
        "unknown",
        "It is unknown if there is a GPU: class or vendor of 1 PCI functions cannot be read.",
    )
    assert read is not None
    assert read.architecture == "cpu_only"
