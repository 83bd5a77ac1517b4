"""No process of memwatchd imports a module from its working directory, where another user may have put one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwatch.build_info import describe
from memwatch.core.backends import cuda_context, finder
from memwatch.core.collectors import amdsmi, apple, nvml
from simulators.amd_machine import GIB, PCI, AmdMachine, discrete
from simulators.driver_sim import CONTEXT_BYTES
from simulators.gpu_programs import simulated_cuda
from simulators.nvml_machine import Simulator
from simulators.opencl_binding import LISTS_A_GPU, binding, times_imported
from simulators.sample_nvml import READY, RTX_4090
from support.client_process import SCRIPT
from support.daemon_process import MEMWATCHD, clean_environment, quiet_machine, running_daemon
from support.dead_address import dead_address
from support.hostile_folder import HostileFolder
from support.paths import TESTS
from support.waiting import MAX_WAIT_SECONDS, wait_until

DAEMON = Path(nvml.__file__).parents[3]
# Modules that only print command lines.
PRINTS = ("memwatchd/install.py", "memwatch/planning/engines/")
# The module that starts a Python process, by `python_child`.
STARTS_PYTHON = {"memwatch/core/helper/process.py"}
READ_METAL = """
import sys
from memwatch.core.collectors.apple import TOOLS, Collector
collector = Collector({tool: f"{sys.argv[1]}/{tool}" for tool in TOOLS})
print(collector._read_metal())
"""


def run_in(folder: HostileFolder, *command: str, **environ: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder.path,
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_nvml(folder: HostileFolder, tmp_path: Path) -> None:
    simulator = Simulator.of(tmp_path, READY["rtx-4090"])

    def devices() -> Any:  # none if the driver took more than the two seconds that --once waits
        printed = run_in(folder, MEMWATCHD, "--once", "--json", *simulator.roots, **simulator.environ)
        return json.loads(printed)["devices"]

    wait_until(lambda: [one["name"] for one in devices()] == ["NVIDIA GeForce RTX 4090"])


def start_amdsmi(folder: HostileFolder, tmp_path: Path) -> None:
    machine = AmdMachine(tmp_path / "box")
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(used=5 * GIB))
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"gpus": {PCI: {"ecc": {}, "bad_pages": [], "vram": {}, "processes": []}}}))
    path = ":".join(filter(None, (str(TESTS / "simulators/amdsmi"), clean_environment().get("PYTHONPATH", ""))))
    environ = {"PYTHONPATH": path, "AMDSMI_SIM": str(state)}
    with running_daemon(tmp_path, *machine.arguments, environ=environ, through=folder.through) as daemon:
        daemon.wait_until_ok("amdsmi")


def start_cuda_context(folder: HostileFolder, tmp_path: Path) -> None:
    measure = "from memwatch.core.backends.cuda_context import measure_context; print(measure_context().bytes)"
    (tmp_path / "measure.py").write_text(measure)
    with simulated_cuda(tmp_path, RTX_4090) as environ:
        assert int(run_in(folder, sys.executable, str(tmp_path / "measure.py"), **environ)) == CONTEXT_BYTES


def start_opencl(folder: HostileFolder, tmp_path: Path) -> None:
    environ = {**binding(tmp_path, LISTS_A_GPU), "MEMWATCH_URL": f"http://{dead_address()}"}
    run_in(folder, *SCRIPT, "backends", **environ)
    here = quiet_machine(rootfs="/")  # with the OpenCL drivers of this machine
    with running_daemon(tmp_path, *here, environ=environ, through=folder.through) as daemon:
        assert daemon.get("/api/v1/backends").status == 200
    assert times_imported(tmp_path) == 2


def start_metal(folder: HostileFolder, tmp_path: Path) -> None:
    """The tools are not called, so any program replaces them. Metal itself is a module beside the script."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in apple.TOOLS:
        (tools / tool).symlink_to(sys.executable)
    (tools / "Metal.py").write_text(
        "class MTLCreateSystemDefaultDevice:\n"
        "    def hasUnifiedMemory(self): return 1\n"
        "    def recommendedMaxWorkingSetSize(self): return 77\n"
    )
    (tools / "read.py").write_text(READ_METAL)
    assert "77" in run_in(folder, sys.executable, str(tools / "read.py"), str(tools))


CHILDREN: dict[str, Callable[[HostileFolder, Path], None]] = {
    nvml.CHILD: start_nvml,
    amdsmi.CHILD: start_amdsmi,
    cuda_context.CHILD: start_cuda_context,
    finder.CHILD: start_opencl,
    apple.METAL: start_metal,
}


@pytest.mark.parametrize("child", CHILDREN)
def test_child_started_in_a_hostile_folder_imports_nothing_from_it(child: str, tmp_path: Path) -> None:
    """Each child does its work, started by the command or collector that does so in production."""
    folder = HostileFolder.of(tmp_path)

    CHILDREN[child](folder, tmp_path)

    assert folder.imports() == []


def test_every_child_is_tested() -> None:
    """Modules that can run as a program are the tested children, and no other module starts Python."""
    texts = {str(file.relative_to(DAEMON)): file.read_text() for file in DAEMON.rglob("*.py")}
    programs = {
        name.removesuffix(".py").replace("/", ".")
        for name, text in texts.items()
        if name.startswith("memwatch/") and '__name__ == "__main__"' in text
    }
    starters = {
        name
        for name, text in texts.items()
        if re.search(r"sys\.executable|\"python3?\"", text) and not name.startswith(PRINTS)
    }

    assert programs == set(CHILDREN)
    assert starters == STARTS_PYTHON


def test_empty_entry_of_pythonpath_does_not_reach_a_child(tmp_path: Path) -> None:
    """It means the working directory. An absolute entry that names that folder does reach the child."""
    show = "from memwatch.core.helper.process import python_child as p; print(p('x')[p('x').index('x') + 2:])"
    (tmp_path / "show.py").write_text(show)
    before = clean_environment().get("PYTHONPATH", "") or str(DAEMON)
    (tmp_path / "here").mkdir()

    def path_of_child(pythonpath: str) -> str:
        return subprocess.run(
            [sys.executable, "../show.py"],
            cwd=tmp_path / "here",
            env=clean_environment(PYTHONPATH=pythonpath),
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert str(tmp_path / "here") not in path_of_child(f":{before}:relative")
    assert str(tmp_path / "here") in path_of_child(f"{tmp_path / 'here'}:{before}")


def test_module_with_a_safe_path_imports_nothing_from_a_hostile_folder(tmp_path: Path) -> None:
    """`python -m` puts the working directory first, unless PYTHONSAFEPATH is set, which Python 3.10 ignores."""
    folder = HostileFolder.of(tmp_path)
    command = [sys.executable, "-m", "memwatchd", "--version"]
    environ = clean_environment(PYTHONSAFEPATH="1")

    done = subprocess.run(command, cwd=folder.path, env=environ, capture_output=True, text=True, check=False)

    safe = sys.version_info >= (3, 11)
    assert (folder.imports() == []) is safe
    assert (done.stdout == describe("memwatchd") + "\n") is safe
    assert "\nEnvironment=PYTHONSAFEPATH=1\n" in (TESTS.parent / "systemd/memwatchd.service").read_text()
