"""Helper process that opens a CUDA context by the driver API, so that its cost can be measured.

`memwatch.core.backends.cuda_context` starts it, sends one command a line, and reads one line for each.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

from memwatch.core.helper.bootstrap import bootstrap, offer_to_oom_killer, write_all

# SIGALRM ends a child that is no longer waited for.
LIFE_SECONDS = 60
LIBRARY = "libcuda.so.1"
# CUdevice_attribute, cuda.h.
CU_DEVICE_ATTRIBUTE_INTEGRATED = 18


class DriverCallError(Exception):
    """The driver's library is missing, or a call failed."""


class Driver:
    """First GPU of the driver, without a context until `open`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise DriverCallError(f"no NVIDIA driver is installed ({LIBRARY} cannot be loaded)") from None
        self._device, self._context = c_int(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDeviceGet", byref(self._device), c_int(0))
        integrated = c_int()
        self._call("cuDeviceGetAttribute", byref(integrated), c_int(CU_DEVICE_ATTRIBUTE_INTEGRATED), self._device)
        self._is_integrated = bool(integrated.value)

    def open(self) -> str:
        """Open the context, and return the GPU's name."""
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._call("cuCtxSetCurrent", self._context)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, c_int(len(name)), self._device)
        return name.value.decode("utf-8", "replace")

    def free_bytes(self) -> int:
        """Return free memory. On unified memory MemAvailable: page cache changes what CUDA calls free."""
        if self._is_integrated:
            return read_available(Path(os.environ.get("MEMWATCHD_PROCFS") or "/proc"))
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def _call(self, function: str, *arguments: object) -> None:
        try:
            called = getattr(self._library, function)
        except AttributeError:
            raise DriverCallError(f"{function} is missing in this driver") from None
        code = called(*arguments)
        if code:
            text = c_char_p()
            known = self._library.cuGetErrorString(c_int(code), byref(text)) == 0 and text.value
            raise DriverCallError(f"{function} failed: {text.value.decode() if known and text.value else code}")


def read_available(procfs: Path) -> int:
    for line in (procfs / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise DriverCallError("this kernel does not report MemAvailable")


def main() -> int:
    answers = bootstrap()
    offer_to_oom_killer()
    signal.alarm(LIFE_SECONDS)
    driver = None
    for line in sys.stdin:
        try:
            if driver is None:
                driver = Driver()
            command = line.strip()
            text = (
                driver.open() if command == "open" else str(driver.free_bytes()) if command == "free" else "ready"
            )
        except (DriverCallError, OSError, ValueError) as error:
            write_all(answers, f"error {error}\n".encode())
            return 1
        write_all(answers, f"ok {text}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
