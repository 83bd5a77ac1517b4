"""Test the runtime status of devices, by which all collectors decide if a call would wake one."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.linux.pci import is_awake, may_suspend


def device(folder: Path, **files: str) -> Path:
    (folder / "power").mkdir()
    for name, text in files.items():
        (folder / "power" / name).write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("status", "awake"),
    [
        ("active", True),
        ("unsupported", True),
        ("suspended", False),
        ("suspending", False),
        ("resuming", False),
        ("error", False),
        ("", False),
    ],
)
def test_device_is_awake_only_while_its_status_is_active(tmp_path: Path, status: str, awake: bool) -> None:
    assert is_awake(device(tmp_path, runtime_status=status)) is awake


def test_device_of_a_kernel_without_power_management_is_awake(tmp_path: Path) -> None:
    assert is_awake(tmp_path)


def test_unreadable_status_is_no_evidence_of_an_awake_device(tmp_path: Path) -> None:
    (tmp_path / "power/runtime_status").mkdir(parents=True)
    assert not is_awake(tmp_path)


@pytest.mark.parametrize(("control", "may"), [("on", False), ("auto", True), ("", True)])
def test_device_may_suspend_unless_its_control_is_on(tmp_path: Path, control: str, may: bool) -> None:
    assert may_suspend(device(tmp_path, control=control)) is may
