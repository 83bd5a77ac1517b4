"""Machine with simulated NVIDIA GPUs.

    simulator = Simulator.of(tmp_path, sample_nvml.RTX_4090)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        ...
        simulator.show(sample_nvml.RTX_4090.with_gpu(0, memory=Memory(total=24 * GIB, used=GIB)))
        ...
        simulator.calls()

Any program started with `environ` loads the library built from tests/simulators/nvml in place of NVIDIA's, and
each of its calls returns the state shown last.
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

from simulators.nvml_state import Machine
from simulators.nvml_state_file import SOURCES, state_file
from support.paths import MACHINES, ROOT
from support.waiting import wait_until

NEEDED_PROGRAMS = ("cc",)

CACHE = ROOT / ".pytest_cache" / "nvml_sim"
LIBRARY = "libnvidia-ml.so.1"
# Variable with the path of the log of calls; without it none is written.
LOG = "NVML_SIM_LOG"
FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")

# Functions missing in a driver of 2020 (450).
NOT_IN_OLD_DRIVERS = frozenset(
    {
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetC2cModeInfoV",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
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
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    }
)


class Call(NamedTuple):
    """Call of the library: `device` is `gpu.0`, `gpu.0.mig.1` or, for the whole machine, `-`."""

    function: str
    device: str
    pid: int


def built_library(hidden: Collection[str] = ()) -> Path:
    """Return the library without the functions in `hidden`, built unless these sources were built so before."""
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
    """Build the library and put it in place in one step, since test processes build concurrently."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        script, built = Path(scratch, "exported"), Path(scratch, LIBRARY)
        script.write_text(exported)
        command = [os.environ.get("CC", "cc"), *FLAGS, f"-Wl,--version-script={script}", "-o", str(built), *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        built.replace(library)


class Simulator(Struct, frozen=True):
    """Library, state and log in a separate folder."""

    folder: Path
    host: str | None = None

    @classmethod
    def of(cls, folder: Path, machine: Machine, hidden: Collection[str] = ()) -> Simulator:
        """Create a simulator of `machine` with its driver loaded and installed."""
        return cls.of_state(folder, state_file(machine), machine.host, hidden)

    @classmethod
    def of_state(cls, folder: Path, state: str, host: str | None = None, hidden: Collection[str] = ()) -> Simulator:
        """Create a simulator with the text of a state file, such as `nvml.state` of a machine folder."""
        simulator = cls(folder / "nvml", host)
        simulator._libraries.mkdir(parents=True)
        simulator.install(hidden)
        simulator._replace(simulator.folder / "state", state)
        return simulator

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of a process on this machine."""
        before = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": os.pathsep.join([str(self._libraries), *([before] if before else [])]),
            "NVML_SIM_STATE": str(self.folder / "state"),
            LOG: str(self._log),
        }

    @property
    def roots(self) -> list[str]:
        """Return the arguments that give memwatchd the host of this machine."""
        assert self.host is not None
        folder = MACHINES / self.host
        return [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]

    def show(self, machine: Machine) -> None:
        """Set the driver's state from the next call on. It is replaced atomically: no call reads half of it."""
        self._replace(self.folder / "state", state_file(machine))

    def unload_driver(self) -> None:
        """Unload the kernel module: init fails with DRIVER_NOT_LOADED, other calls with UNKNOWN."""
        (self.folder / "state").unlink()

    def install(self, hidden: Collection[str] = ()) -> None:
        """Install the library for later processes, without the functions in `hidden`."""
        self.uninstall()
        link = self._libraries / LIBRARY
        link.unlink()
        link.symlink_to(built_library(hidden))

    def uninstall(self) -> None:
        """Put a file that is no library in place: it hides a real one that may be installed."""
        self._replace(self._libraries / LIBRARY, "")

    def calls(self) -> list[Call]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Call(function, device, int(pid)) for function, device, pid in map(str.split, lines)]

    def clear_calls(self) -> None:
        with self._log.open("a") as log:
            log.truncate(0)

    def wait_for_call(self, function: str, device: str = "-") -> None:
        """Wait until this call has begun; it may still be in progress."""
        wait_until(
            lambda: (function, device) in {call[:2] for call in self.calls()},
            describe=lambda: f"{function} on {device} was not called: {self.calls()}",
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
