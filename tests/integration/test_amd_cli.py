"""AMD's command line tools as the last resort: only where the driver's files are hidden, and never a surprise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from memwatch.collectors.amd_cli import Collector, find_tools, run_tool
from memwatch.drivers.amd.smi_json import NoOutputError
from memwatch.linux.files import SourceUnavailable
from memwatch.model import Absent
from support.amd_machine import GIB, MIB, AmdMachine, discrete
from support.amd_smi_samples import AMD_SMI, PROCESS, ROCM_SMI, WARNING
from support.daemon_process import running_daemon
from support.waiting import Stopwatch

BUS = "0000:03:00.0"
LIST = [{"gpu": 0, "bdf": BUS, "uuid": "x"}]
PROCESSES = [{"gpu": 0, "process_list": [{"process_info": PROCESS}]}]


def hidden(folder: Path) -> AmdMachine:
    """An AMD GPU on the bus, and nothing of its driver, as in some containers."""
    machine = AmdMachine(folder)
    machine.host(64 * GIB, 50 * GIB)
    for name, text in {"class": "0x030000", "vendor": "0x1002", "device": "0x73ff"}.items():
        machine.write(f"sys/bus/pci/devices/{BUS}/{name}", text)
    return machine


def tool(folder: Path, name: str, answers: dict[str, str], code: int = 0) -> dict[str, str]:
    """A program that answers by its first argument; everything else gets nothing. Returns an environment."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    for argument, text in answers.items():
        (folder / f"{name}{argument}.out").write_text(text)
        cases.append(f"  {argument}) cat '{folder}/{name}{argument}.out' ;;")
    script = folder / name
    script.write_text("#!/bin/sh\necho noise >&2\ncase $1 in\n" + "\n".join(cases) + f"\nesac\nexit {code}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "ROCM_PATH": str(folder / "none")}


def amd_smi(folder: Path, **changes: Any) -> dict[str, str]:
    answers = {"list": LIST, "metric": {"gpu_data": AMD_SMI}, "process": PROCESSES, **changes}
    return tool(folder, "amd-smi", {name: json.dumps(answer) for name, answer in answers.items()})


def test_amd_smi_through_the_daemon(tmp_path: Path) -> None:
    """Memory to the MiB, its process, and an architecture that nobody claims to know."""
    machine = hidden(tmp_path / "box")
    machine.write("proc/213534/stat", f"213534 (python3) S 1 1 1 0 -1 4194560 {'0 ' * 12}100 4096 50 {'0 ' * 28}")
    with running_daemon(tmp_path, *machine.arguments, environ=amd_smi(tmp_path / "bin")) as daemon:
        pools = daemon.wait_for("/api/v1/pools", lambda pools: len(pools) == 2)
        snapshot = daemon.snapshot()
        log = daemon.log.read_text()

    assert (pools[1]["size_bytes"], pools[1]["used_bytes"]) == (8176 * MIB, 202 * MIB)
    assert (pools[1]["source"], pools[1]["quality"]) == ("amd-smi", "estimated")
    (device,) = snapshot["devices"]
    assert (device["pci"], device["architecture"]) == (BUS, "unknown")
    assert device["process_list"] is None
    assert "noise" not in log


def test_rocm_smi_through_the_daemon(tmp_path: Path) -> None:
    """A warning before the JSON, figures as text, and nothing of amd-smi."""
    machine = hidden(tmp_path / "box")
    environ = tool(tmp_path / "bin", "rocm-smi", {"--showmeminfo": WARNING + json.dumps(ROCM_SMI)})
    with running_daemon(tmp_path, *machine.arguments, environ=environ) as daemon:
        pools = daemon.wait_for("/api/v1/pools", lambda pools: len(pools) == 2)
        (device,) = daemon.get("/api/v1/devices").json

    assert (pools[1]["size_bytes"], pools[1]["used_bytes"]) == (17163091968, 17776640)
    assert pools[1]["quality"] == "measured"
    assert device["pci"] == "0000:04:00.0"


def test_no_driver_through_the_daemon(tmp_path: Path) -> None:
    """Nothing on stdout, exit codes 255 and 0: a sentence, and the machine without a GPU's figures."""
    machine = hidden(tmp_path / "box")
    tool(tmp_path / "bin", "amd-smi", {}, code=255)
    environ = tool(tmp_path / "bin", "rocm-smi", {})
    with running_daemon(tmp_path, *machine.arguments, environ=environ) as daemon:
        found = daemon.wait_for(
            "/api/v1/collectors",
            lambda found: any(one["name"] == "amd_cli" and one["state"] == "unavailable" for one in found),
            20,
        )
        pools = daemon.get("/api/v1/pools").json

    error = next(one["error"] for one in found if one["name"] == "amd_cli")
    assert error == (
        "amd-smi printed nothing, as it does without a driver; "
        "rocm-smi printed nothing, as it does without a driver"
    )
    assert [pool["id"] for pool in pools] == ["ram"]


def test_what_amd_smi_cannot_rocm_smi_may(tmp_path: Path) -> None:
    """The newer tool goes first; where it lists nothing the older is asked."""
    amd_smi(tmp_path / "bin", metric={"gpu_data": []})
    environ = tool(tmp_path / "bin", "rocm-smi", {"--showmeminfo": json.dumps(ROCM_SMI)})
    collector = Collector(hidden(tmp_path / "box").roots, environ)

    reading = collector.collect().amdgpu

    assert reading is not None
    assert reading.source == "rocm-smi"


def test_a_gpu_without_an_address_has_none(tmp_path: Path) -> None:
    """The tool's own number tells GPUs apart and is shown to nobody as an address."""
    environ = amd_smi(tmp_path / "bin", list=[{"gpu": 0, "bdf": "N/A"}])
    collector = Collector(hidden(tmp_path / "box").roots, environ)

    found = collector.collect()

    assert found.amdgpu is not None
    (gpu,) = found.amdgpu.gpus
    assert ":" not in gpu.card.pci
    assert gpu.card.may_sleep
    assert gpu.runtime_status is Absent.NOT_AVAILABLE


def test_the_drivers_own_files_go_first(tmp_path: Path) -> None:
    """A tool opens every GPU, so it is not started where there is another way; nor later, once there is."""
    machine = hidden(tmp_path / "box")
    collector = Collector(machine.roots, amd_smi(tmp_path / "bin"))
    collector.collect()
    machine.gpu(discrete(), pci="0000:0a:00.0")

    with pytest.raises(SourceUnavailable, match="the amdgpu driver's files are visible"):
        collector.collect()
    with pytest.raises(SourceUnavailable, match="the amdgpu driver's files are visible"):
        Collector(machine.roots, amd_smi(tmp_path / "bin"))


def test_no_tools_and_no_gpu(tmp_path: Path) -> None:
    """Both are normal."""
    with pytest.raises(SourceUnavailable, match="no AMD GPU on the PCI bus"):
        Collector(AmdMachine(tmp_path / "empty").roots, {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})
    with pytest.raises(SourceUnavailable, match="neither amd-smi nor rocm-smi is installed"):
        Collector(hidden(tmp_path / "box").roots, {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("#!/nonexistent/interpreter\n", "amd-smi cannot be started"),
        ("#!/bin/sh\nexec sleep 60\n", "amd-smi did not answer for 1 s"),
        ("#!/bin/sh\nexec cat /dev/zero\n", "amd-smi printed more than 4 MiB"),
    ],
)
def test_tools_that_misbehave(script: str, sentence: str, tmp_path: Path) -> None:
    """Each is a sentence within its time, and no process stays behind."""
    path = tmp_path / "amd-smi"
    path.write_text(script)
    path.chmod(0o755)
    watch = Stopwatch()

    with pytest.raises(NoOutputError, match=sentence):
        run_tool(str(path), "list", seconds=1.0)

    assert watch.seconds < 5


def test_rocms_own_folder_is_searched(tmp_path: Path) -> None:
    """Tools are found by PATH, and where ROCm puts them although no PATH has that."""
    amd_smi(tmp_path / "rocm/bin")

    found = find_tools({"PATH": os.devnull, "ROCM_PATH": str(tmp_path / "rocm")})

    assert found.amd_smi == str(tmp_path / "rocm/bin/amd-smi")
    assert found.rocm_smi is None
