"""The vendor's tools as the comparison with real hardware runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hardware.vendor_tools import AmdSmi, NvidiaSmi, RocmSmi, ToolReading, find_tool
from simulators.amd_smi_samples import AMD_SMI, ROCM_SMI, WARNING

MIB = 1 << 20
Install = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a program that prints a text for the first of these options it is given, and else fails."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(name: str, outputs: Mapping[str, str]) -> None:
        cases = "".join(
            f'case "$*" in *"{option}"*) cat <<"END"\n{text}\nEND\nexit;; esac\n'
            for option, text in outputs.items()
        )
        (tmp_path / name).write_text(f"#!/bin/sh\n{cases}exit 2\n")
        (tmp_path / name).chmod(0o755)

    return put


@pytest.mark.process
def test_nvidia_smi_counts_reserved_memory_and_processes(install: Install) -> None:
    """A process on two MIG instances has two rows."""
    install("nvidia-smi", {"memory.reserved": "24564, 13320, 424", "compute-apps": "7, 100\n8, [N/A]\n7, 20"})

    found = NvidiaSmi("0000:01:00.0").read()

    assert found == ToolReading(24564 * MIB, 13744 * MIB, 13744 * MIB, {7: 120 * MIB, 8: None})


@pytest.mark.process
def test_nvidia_smi_of_an_old_driver_has_no_reserved_memory(install: Install) -> None:
    install("nvidia-smi", {"memory.used --format": "45634, 40665", "compute-apps": ""})

    assert NvidiaSmi(None).read() == ToolReading(45634 * MIB, 40665 * MIB, 40665 * MIB, {})


@pytest.mark.process
def test_nvidia_smi_of_gb10_has_processes_and_no_memory(install: Install) -> None:
    cells = "[N/A], [N/A], [N/A]"
    install("nvidia-smi", {"memory.reserved": cells, "memory.used": "[N/A], [N/A]", "compute-apps": "7, 63931"})

    assert NvidiaSmi("0000000F:01:00.0").read() == ToolReading(processes={7: 63931 * MIB})


@pytest.mark.process
def test_nvidia_smi_sensors_leave_out_what_is_not_available(install: Install) -> None:
    install("nvidia-smi", {"temperature": "36, 3.12, [N/A], [Not Supported], 0"})

    assert NvidiaSmi(None).sensors() == {"temperature": 36.0, "power": 3.12, "utilization": 0.0}


@pytest.mark.process
def test_rocm_smi_adds_vram_and_gtt(install: Install) -> None:
    install("rocm-smi", {"--json": WARNING + json.dumps(ROCM_SMI)})

    assert RocmSmi("0000:04:00.0").read() == ToolReading(used=17776640 + 25608192, used_on_card=17776640)
    assert RocmSmi("0000:05:00.0").read() == ToolReading()


@pytest.mark.process
def test_amd_smi_is_read_by_its_number_for_the_address(install: Install) -> None:
    second = {**AMD_SMI[0], "gpu": 1}
    listed = [{"gpu": 0, "bdf": "0000:03:00.0"}, {"gpu": 1, "bdf": "0000:0a:00.0"}]
    install("amd-smi", {"list": json.dumps(listed), "metric": json.dumps({"gpu_data": [second]})})

    assert AmdSmi("0000:0a:00.0").read() == ToolReading(used=(202 + 65) * MIB, used_on_card=202 * MIB)
    assert AmdSmi("0000:03:00.0").read() == ToolReading()


@pytest.mark.process
def test_tool_that_fails_has_no_figure(install: Install) -> None:
    install("nvidia-smi", {})
    install("rocm-smi", {"--json": "garbage"})

    assert NvidiaSmi(None).read() == ToolReading()
    assert RocmSmi(None).read() == ToolReading()


def test_missing_tool_is_named_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_tool("NVIDIA", None).name == "none"
    assert find_tool("Intel", None).read() == ToolReading()
