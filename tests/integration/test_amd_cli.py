"""amd-smi and rocm-smi as the last resort: used only when the driver's files are hidden."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.collectors.amd_cli import Collector, NoOutputError, Options, find_tools, run_tool
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.model import Absent
from simulators.amd_machine import GIB, MIB, AmdMachine, discrete
from simulators.amd_smi_samples import AMD_SMI, PROCESS, ROCM_SMI, WARNING
from support.daemon_process import running_daemon

BUS = "0000:03:00.0"
LIST = [{"gpu": 0, "bdf": BUS, "uuid": "x"}]
PROCESSES = [{"gpu": 0, "process_list": [{"process_info": PROCESS}]}]


def hidden(folder: Path) -> AmdMachine:
    """AMD GPU on the PCI bus without any file of its driver, as in some containers."""
    machine = AmdMachine(folder)
    machine.host(64 * GIB, 50 * GIB)
    for name, text in {"class": "0x030000", "vendor": "0x1002", "device": "0x73ff"}.items():
        machine.write(f"sys/bus/pci/devices/{BUS}/{name}", text)
    return machine


def tool(folder: Path, name: str, answers: dict[str, str], code: int = 0) -> dict[str, str]:
    """Write a program that answers by its first argument and prints nothing else; return the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for argument, text in answers.items():
        (folder / f"{name}{argument}.out").write_text(text)
        cases.append(f"  {argument}) cat '{folder}/{name}{argument}.out' ;;")
    script = folder / name
    script.write_text("#!/bin/sh\necho noise >&2\ncase $1 in\n" + "\n".join(cases) + f"\nesac\nexit {code}\n")
    script.chmod(0o755)
    variable = f"MEMWATCHD_COLLECTORS_AMD_CLI_{name.upper().replace('-', '_')}"
    return {variable: str(script), "PATH": "/usr/bin:/bin", "ROCM_PATH": str(folder / "none")}


def named(folder: Path) -> Options:
    """Return options that name the tools in a folder: root does not take them from PATH."""
    return Options(amd_smi=str(folder / "amd-smi"), rocm_smi=str(folder / "rocm-smi"))


def amd_smi(folder: Path, **changes: Any) -> dict[str, str]:
    answers = {"list": LIST, "metric": {"gpu_data": AMD_SMI}, "process": PROCESSES, **changes}
    return tool(folder, "amd-smi", {name: json.dumps(answer) for name, answer in answers.items()})


def test_amd_smi_values_are_served(tmp_path: Path) -> None:
    """Memory to the MiB, its process, and an architecture that stays unknown."""
    machine = hidden(tmp_path / "box")
    machine.write("proc/213534/stat", f"213534 (python3) S 1 1 1 0 -1 4194560 {'0 ' * 12}100 4096 50 {'0 ' * 28}")
    with running_daemon(tmp_path, *machine.arguments, environ=amd_smi(tmp_path / "bin")) as daemon:
        pools = daemon.wait_for("/api/v1/pools", lambda pools: len(pools) == 2)
        snapshot = daemon.snapshot()
        log = daemon.read_log()

    assert (pools[1]["size_bytes"], pools[1]["used_bytes"]) == (8176 * MIB, 202 * MIB)
    assert (pools[1]["source"], pools[1]["quality"]) == ("amd-smi", "estimated")
    (device,) = snapshot["devices"]
    assert (device["pci"], device["architecture"]) == (BUS, "unknown")
    assert device["process_list"] is None
    assert "noise" not in log


def test_tools_are_not_run_while_a_gpu_is_suspended(tmp_path: Path) -> None:
    """They open every GPU. They run again once it is awake."""
    machine, pci = hidden(tmp_path / "box"), f"sys/bus/pci/devices/{BUS}"
    amd_smi(tmp_path / "bin")
    machine.write(f"{pci}/power/runtime_status", "suspended")
    collector = Collector(machine.roots, {}, named(tmp_path / "bin"))

    with pytest.raises(SourceUnavailable, match="a GPU is suspended"):
        collector.collect()
    machine.write(f"{pci}/power/runtime_status", "active")

    assert collector.collect().amdgpu is not None


def test_rocm_smi_values_are_served(tmp_path: Path) -> None:
    """A warning precedes the JSON, values are strings, and amd-smi is missing."""
    machine = hidden(tmp_path / "box")
    environ = tool(tmp_path / "bin", "rocm-smi", {"--showmeminfo": WARNING + json.dumps(ROCM_SMI)})
    with running_daemon(tmp_path, *machine.arguments, environ=environ) as daemon:
        pools = daemon.wait_for("/api/v1/pools", lambda pools: len(pools) == 2)
        (device,) = daemon.get("/api/v1/devices").json

    assert (pools[1]["size_bytes"], pools[1]["used_bytes"]) == (17163091968, 17776640)
    assert pools[1]["quality"] == "measured"
    assert device["pci"] == "0000:04:00.0"


def test_tools_without_a_driver_make_the_collector_unavailable(tmp_path: Path) -> None:
    """Empty stdout with exit codes 255 and 0 becomes an error; other values are served without the GPU's."""
    machine = hidden(tmp_path / "box")
    environ = {**tool(tmp_path / "bin", "amd-smi", {}, code=255), **tool(tmp_path / "bin", "rocm-smi", {})}
    with running_daemon(tmp_path, *machine.arguments, environ=environ) as daemon:
        found = daemon.wait_for(
            "/api/v1/collectors",
            lambda found: any(one["name"] == "amd_cli" and one["state"] == "unavailable" for one in found),
        )
        pools = daemon.get("/api/v1/pools").json

    error = next(one["error"] for one in found if one["name"] == "amd_cli")
    assert error == (
        "amd-smi printed nothing, as it does without a driver, or without a right to use the GPU; "
        "rocm-smi printed nothing, as it does without a driver, or without a right to use the GPU"
    )
    assert [pool["id"] for pool in pools] == ["ram"]


def test_rocm_smi_is_used_when_amd_smi_lists_nothing(tmp_path: Path) -> None:
    """The newer tool goes first."""
    amd_smi(tmp_path / "bin", metric={"gpu_data": []})
    environ = tool(tmp_path / "bin", "rocm-smi", {"--showmeminfo": json.dumps(ROCM_SMI)})
    collector = Collector(hidden(tmp_path / "box").roots, environ, named(tmp_path / "bin"))

    reading = collector.collect().amdgpu

    assert reading is not None
    assert reading.source == "rocm-smi"


def test_gpu_without_a_pci_address_gets_no_invented_one(tmp_path: Path) -> None:
    """The tool's index tells GPUs apart and is never shown as an address."""
    environ = amd_smi(tmp_path / "bin", list=[{"gpu": 0, "bdf": "N/A"}])
    collector = Collector(hidden(tmp_path / "box").roots, environ, named(tmp_path / "bin"))

    found = collector.collect()

    assert found.amdgpu is not None
    (gpu,) = found.amdgpu.gpus
    assert ":" not in gpu.card.pci
    assert gpu.card.may_sleep
    assert gpu.runtime_status is Absent.NOT_AVAILABLE


def test_driver_files_take_precedence_over_tools(tmp_path: Path) -> None:
    """A tool opens every GPU, so it is not started when files exist, nor once they appear."""
    machine = hidden(tmp_path / "box")
    collector = Collector(machine.roots, amd_smi(tmp_path / "bin"), named(tmp_path / "bin"))
    collector.collect()
    machine.gpu(discrete(), pci="0000:0a:00.0")

    with pytest.raises(SourceUnavailable, match="the amdgpu driver's files are visible"):
        collector.collect()
    with pytest.raises(SourceUnavailable, match="the amdgpu driver's files are visible"):
        Collector(machine.roots, amd_smi(tmp_path / "bin"))


def test_missing_gpu_or_tools_make_the_collector_unavailable(tmp_path: Path) -> None:
    """Both are normal."""
    with pytest.raises(SourceUnavailable, match="no AMD GPU on the PCI bus"):
        Collector(AmdMachine(tmp_path / "empty").roots, {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})
    with pytest.raises(SourceUnavailable, match="neither amd-smi nor rocm-smi is installed"):
        Collector(hidden(tmp_path / "box").roots, {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/nonexistent/interpreter\n", "amd-smi cannot be started"),
        ("#!/bin/sh\nexec sleep 3600\n", "amd-smi did not answer for 1 s"),
        ("#!/bin/sh\nexec cat /dev/zero\n", "amd-smi printed more than 4 MiB"),
    ],
)
def test_broken_tool_fails_in_time_with_a_reason(script: str, reason: str, tmp_path: Path) -> None:
    """No process stays behind."""
    path = tmp_path / "amd-smi"
    path.write_text(script)
    path.chmod(0o755)

    with pytest.raises(NoOutputError, match=reason):
        run_tool(str(path), "list", seconds=1.0)


def test_tools_are_found_in_the_rocm_folder(tmp_path: Path) -> None:
    """ROCm installs its tools outside PATH."""
    amd_smi(tmp_path / "rocm/bin")

    found = find_tools({"PATH": os.devnull, "ROCM_PATH": str(tmp_path / "rocm")}, uid=1000)

    assert found.amd_smi == str(tmp_path / "rocm/bin/amd-smi")
    assert found.rocm_smi is None
