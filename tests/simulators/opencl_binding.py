"""Fake pyopencl with the behavior of a test, found before an installed one.

environ = binding(tmp_path, LISTS_A_GPU)
with running_daemon(tmp_path, environ=environ) as daemon:
    ...
    assert times_imported(tmp_path) == 1
"""

from __future__ import annotations

import os
from pathlib import Path

MISSING = 'raise ModuleNotFoundError("No module named \'pyopencl\'", name="pyopencl")'
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANGS = "import time; time.sleep(600)"
CHATTERS_AND_FAILS = """
import os
os.write(1, b"loading...")
os.write(2, b"oops")
raise KeyError("libamd.so")
"""
# A slow driver, so that concurrent requests overlap.
SLOW_AND_EMPTY = "import time; time.sleep(1.0)\ndef get_platforms():\n    return []\n"
LISTS_A_GPU = """
class Device:
    type, name, global_mem_size, host_unified_memory = 4, "NVIDIA GeForce RTX 4090\\0", 25_000_000_000, 0
    pci_bus_id_nv, pci_slot_id_nv, pci_domain_id_nv = 1, 0, 0

    @property
    def topology_amd(self):
        raise RuntimeError("clGetDeviceInfo failed: INVALID_VALUE")


class Platform:
    name, version = "NVIDIA CUDA  ", "OpenCL 3.0 CUDA"

    def get_devices(self):
        return [Device()]


class Empty(Platform):
    name = "Clover"

    def get_devices(self):
        raise RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")


def get_platforms():
    return [Platform(), Empty()]
"""


def binding(folder: Path, source: str) -> dict[str, str]:
    """Return the environment of a process that imports this pyopencl; each import is counted."""
    place = folder / "binding"
    place.mkdir()
    counter = f"open({str(place / 'imports')!r}, 'a').write('.')\n"
    (place / "pyopencl.py").write_text(counter + source)
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(place), *([before] if before else [])])}


def times_imported(folder: Path) -> int:
    imports = folder / "binding/imports"
    return len(imports.read_text()) if imports.exists() else 0
