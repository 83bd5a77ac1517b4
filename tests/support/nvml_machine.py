"""A machine with NVIDIA GPUs that are not there.

    simulator = Simulator.of(tmp_path, sample_nvml.RTX_4090)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        ...
        simulator.show(sample_nvml.RTX_4090.with_gpu(0, memory=Memory(total=24 * GIB, used=GIB)))
        ...
        simulator.calls()

Any program started with `environ` loads the library built from tests/nvml_sim in place of NVIDIA's, and each of its
calls answers from what was last shown.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from support.nvml_state import Machine
from support.nvml_state_file import SOURCES, state_file
from support.paths import MACHINES, ROOT
from support.waiting import wait_until

CACHE = ROOT / ".pytest_cache" / "nvml_sim"
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")

# What a driver of 2020 (450) does not have yet.
NOT_IN_OLD_DRIVERS = frozenset(
    {
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetC2cModeInfoV",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetHandleByUUIDV",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMemoryLimits_v1",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetPciInfoExt",
        "nvmlDeviceGetRemappedRows_v2",
        "nvmlDeviceGetRunningProcessDetailList",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    }
)


class Call(NamedTuple):
    """One call of the library: `device` is `gpu.0`, `gpu.0.mig.1` or, for the whole machine, `-`."""

    function: str
    device: str
    pid: int


def built_library(hidden: Collection[str] = ()) -> Path:
    """The library without the functions in `hidden`, built unless these sources were built like that before."""
    exported = "{ global: nvml*; local: " + " ".join(f"{name};" for name in (*sorted(hidden), "*")) + " };\n"
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(exported.encode() + " ".join(FLAGS).encode())
    for source in sources:
        digest.update(source.read_bytes())
    library = CACHE / digest.hexdigest()[:16] / LIBRARY
    if not library.exists():
        _build([str(source) for source in sources if source.suffix == ".c"], exported, library)
    return library


def _build(sources: list[str], exported: str, library: Path) -> None:
    """Test processes build side by side, so the library appears in one step."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        script, built = Path(scratch, "exported"), Path(scratch, LIBRARY)
        script.write_text(exported)
        command = [os.environ.get("CC", "cc"), *FLAGS, f"-Wl,--version-script={script}", "-o", str(built), *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        built.replace(library)


class Simulator(Struct, frozen=True):
    """A library, a state and a log in a folder of their own."""

    folder: Path
    host: str | None = None

    @classmethod
    def of(cls, folder: Path, machine: Machine, hidden: Collection[str] = ()) -> Simulator:
        """`machine` with a driver that is loaded and installed."""
        simulator = cls(folder / "nvml", machine.host)
        simulator._libraries.mkdir(parents=True)
        simulator.install(hidden)
        simulator.show(machine)
        return simulator

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to be on this machine."""
        before = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": os.pathsep.join([str(self._libraries), *([before] if before else [])]),
            "NVML_SIM_STATE": str(self.folder / "state"),
            "NVML_SIM_LOG": str(self._log),
        }

    @property
    def roots(self) -> list[str]:
        """The arguments that show memwatchd the host of this machine."""
        assert self.host is not None
        folder = MACHINES / self.host
        return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]

    def show(self, machine: Machine) -> None:
        """From the next call on the driver says this. In one step: no call sees half of it."""
        self._replace(self.folder / "state", state_file(machine))

    def unload_driver(self) -> None:
        """The kernel module is gone: init fails with DRIVER_NOT_LOADED, other calls with UNKNOWN."""
        (self.folder / "state").unlink()

    def install(self, hidden: Collection[str] = ()) -> None:
        """From the next process on, the library is there, without the functions in `hidden`."""
        self.uninstall()
        link = self._libraries / LIBRARY
        link.unlink()
        link.symlink_to(built_library(hidden))

    def uninstall(self) -> None:
        """A file that is no library: it hides a real one that may be installed here."""
        self._replace(self._libraries / LIBRARY, "")

    def calls(self) -> list[Call]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Call(function, device, int(pid)) for function, device, pid in map(str.split, lines)]

    def forget_calls(self) -> None:
        with self._log.open("a") as log:
            log.truncate(0)

    def wait_for_call(self, function: str, device: str = "-") -> None:
        """Until this call has begun; it may still be under way."""
        wait_until(
            lambda: (function, device) in {call[:2] for call in self.calls()},
            told=lambda: f"{function} on {device} was not called: {self.calls()}",
        )

    @property
    def _libraries(self) -> Path:
        return self.folder / "lib"

    @property
    def _log(self) -> Path:
        return self.folder / "calls"

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(text)
        fresh.replace(path)
