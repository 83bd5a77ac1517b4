"""Helper process that queries OpenCL, which loads every installed driver and may hang or crash.

`python -m memwatch.core.backends.opencl_child` prints one line of JSON (an `OpenclResult`) and exits. Loading PoCL
takes 0.6 s and 100 MiB (PoCL 3.1, November 2026), too much for a tick.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from memwatch.core.backends.model import Failure, OpenclDevice, OpenclKind, OpenclPlatform, OpenclResult
from memwatch.core.helper.bootstrap import die_with_parent, keep_stdout_for_answers, offer_to_oom_killer, write_all
from memwatch.core.helper.codec import to_line
from memwatch.core.model import Absent, Words

T = TypeVar("T")

# SIGALRM ends a child that is no longer waited for.
LIFE_SECONDS = 30
MAX_PLATFORMS, MAX_DEVICES, MAX_TEXT_LENGTH = 32, 64, 300
# cl_device_type. A device with both types, as in Oclgrind, is a CPU: it must not be listed as a GPU.
KINDS: tuple[tuple[int, OpenclKind], ...] = ((2, "cpu"), (4, "gpu"), (8, "accelerator"))


def main() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # messages of drivers do not belong in a log or on a terminal
    answers = keep_stdout_for_answers()
    signal.alarm(LIFE_SECONDS)
    die_with_parent()
    offer_to_oom_killer()
    write_all(answers, to_line(query_platforms()))
    return 0


def query_platforms() -> OpenclResult:
    """Query every platform and its devices. Any error is returned as a failure."""
    try:
        cl: Any = importlib.import_module("pyopencl")
        platforms = cl.get_platforms()
        return OpenclResult(tuple(read_platform(platform) for platform in platforms[:MAX_PLATFORMS]))
    except Exception as error:  # noqa: BLE001  bindings and drivers raise any exception
        return OpenclResult(failure=classify_failure(error), text=clean_text(f"{type(error).__name__}: {error}"))


def classify_failure(error: Exception) -> Failure:
    if isinstance(error, ModuleNotFoundError) and error.name == "pyopencl":
        return "no_binding"
    return "no_platform" if "PLATFORM_NOT_FOUND_KHR" in str(error) else "failed"


def read_platform(platform: Any) -> OpenclPlatform:  # noqa: ANN401  pyopencl's
    name, version = (
        clean_text(value_or_absent(lambda: platform.name)),
        clean_text(value_or_absent(lambda: platform.version)),
    )
    try:
        devices = platform.get_devices()
    except Exception as error:  # noqa: BLE001  a platform's failure does not affect the others
        return OpenclPlatform(name, version, (), clean_text(error))
    return OpenclPlatform(name, version, tuple(read_device(device) for device in devices[:MAX_DEVICES]))


def read_device(device: Any) -> OpenclDevice:  # noqa: ANN401
    kind = kind_of(value_or_absent(lambda: int(device.type)))
    size = Absent.NOT_SUPPORTED if kind == "cpu" else value_or_absent(lambda: int(device.global_mem_size))
    unified = value_or_absent(lambda: bool(device.host_unified_memory))
    return OpenclDevice(
        clean_text(value_or_absent(lambda: device.name)), kind, size, unified, read_pci_address(device)
    )


def kind_of(bits: int | Absent) -> OpenclKind:
    if isinstance(bits, Absent):
        return "other"
    return next((kind for bit, kind in KINDS if bits & bit), "other")


def read_pci_address(device: Any) -> Words:  # noqa: ANN401
    """Return the address from NVIDIA's extension (bus and slot << 3 | function) or AMD's, which has no domain."""

    def nvidia() -> str:
        slot = int(device.pci_slot_id_nv)
        domain = value_or_absent(lambda: int(device.pci_domain_id_nv))
        number = 0 if isinstance(domain, Absent) else domain
        return f"{number:04x}:{int(device.pci_bus_id_nv):02x}:{slot >> 3:02x}.{slot & 7}"

    def amd() -> str:
        place = device.topology_amd
        return f"0000:{int(place.bus) & 0xFF:02x}:{int(place.device):02x}.{int(place.function)}"

    address = value_or_absent(nvidia)
    return value_or_absent(amd) if isinstance(address, Absent) else address


def value_or_absent(ask: Callable[[], T]) -> T | Absent:
    """Return the result of a query. Drivers raise different errors for queries that they do not support."""
    try:
        return ask()
    except Exception:  # noqa: BLE001
        return Absent.NOT_SUPPORTED


def clean_text(words: object) -> str:
    """Clean up a driver's text, which may end with blanks or NULs, or be absent."""
    return "" if isinstance(words, Absent) else " ".join(str(words).replace("\0", " ").split())[:MAX_TEXT_LENGTH]


if __name__ == "__main__":
    sys.exit(main())
