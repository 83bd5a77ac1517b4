"""Helper process that queries OpenCL, which loads every installed driver and may hang or crash.

`python -m memwatch.backends.opencl_child` prints one line of JSON (an `OpenclAnswer`) and exits. Loading PoCL
takes 0.6 s and 100 MiB (PoCL 3.1, November 2026), too much for a tick.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from memwatch.backends.opencl_result import Failure, OpenclAnswer, OpenclDevice, OpenclKind, OpenclPlatform
from memwatch.helper.bootstrap import die_with_parent, keep_stdout_for_answers, offer_to_oom_killer, write_all
from memwatch.helper.codec import to_line
from memwatch.model import Absent, Words

T = TypeVar("T")

# SIGALRM ends a child that is no longer waited for.
LIFE_SECONDS = 30
MOST_PLATFORMS, MOST_DEVICES, LONGEST_TEXT = 32, 64, 300
# cl_device_type. A device with both types, as in Oclgrind, is a CPU: it must not be listed as a GPU.
KINDS: tuple[tuple[int, OpenclKind], ...] = ((2, "cpu"), (4, "gpu"), (8, "accelerator"))


def main() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # messages of drivers do not belong in a log or on a terminal
    answers = keep_stdout_for_answers()
    signal.alarm(LIFE_SECONDS)
    die_with_parent()
    offer_to_oom_killer()
    write_all(answers, to_line(asked()))
    return 0


def asked() -> OpenclAnswer:
    """Query every platform and its devices. Any error is returned as a failure."""
    try:
        cl: Any = importlib.import_module("pyopencl")
        platforms = cl.get_platforms()
        return OpenclAnswer(tuple(platform_of(platform) for platform in platforms[:MOST_PLATFORMS]))
    except Exception as error:  # noqa: BLE001  bindings and drivers raise any exception
        return OpenclAnswer(failure=failure_of(error), text=text_of(f"{type(error).__name__}: {error}"))


def failure_of(error: Exception) -> Failure:
    if isinstance(error, ModuleNotFoundError) and error.name == "pyopencl":
        return "no_binding"
    return "no_platform" if "PLATFORM_NOT_FOUND_KHR" in str(error) else "failed"


def platform_of(platform: Any) -> OpenclPlatform:  # noqa: ANN401  pyopencl's
    name, version = text_of(said(lambda: platform.name)), text_of(said(lambda: platform.version))
    try:
        devices = platform.get_devices()
    except Exception as error:  # noqa: BLE001  a platform's failure does not affect the others
        return OpenclPlatform(name, version, (), text_of(error))
    return OpenclPlatform(name, version, tuple(device_of(device) for device in devices[:MOST_DEVICES]))


def device_of(device: Any) -> OpenclDevice:  # noqa: ANN401
    kind = kind_of(said(lambda: int(device.type)))
    size = Absent.NOT_SUPPORTED if kind == "cpu" else said(lambda: int(device.global_mem_size))
    unified = said(lambda: bool(device.host_unified_memory))
    return OpenclDevice(text_of(said(lambda: device.name)), kind, size, unified, pci_of(device))


def kind_of(bits: int | Absent) -> OpenclKind:
    if isinstance(bits, Absent):
        return "other"
    return next((kind for bit, kind in KINDS if bits & bit), "other")


def pci_of(device: Any) -> Words:  # noqa: ANN401
    """Return the address from NVIDIA's extension (bus and slot << 3 | function) or AMD's, which has no domain."""

    def nvidia() -> str:
        slot = int(device.pci_slot_id_nv)
        domain = said(lambda: int(device.pci_domain_id_nv))
        number = 0 if isinstance(domain, Absent) else domain
        return f"{number:04x}:{int(device.pci_bus_id_nv):02x}:{slot >> 3:02x}.{slot & 7}"

    def amd() -> str:
        place = device.topology_amd
        return f"0000:{int(place.bus) & 0xFF:02x}:{int(place.device):02x}.{int(place.function)}"

    address = said(nvidia)
    return said(amd) if isinstance(address, Absent) else address


def said(ask: Callable[[], T]) -> T | Absent:
    """Return the result of a query. Drivers raise different errors for queries that they do not support."""
    try:
        return ask()
    except Exception:  # noqa: BLE001
        return Absent.NOT_SUPPORTED


def text_of(words: object) -> str:
    """Clean up a driver's text, which may end with blanks or NULs, or be absent."""
    return "" if isinstance(words, Absent) else " ".join(str(words).replace("\0", " ").split())[:LONGEST_TEXT]


if __name__ == "__main__":
    sys.exit(main())
