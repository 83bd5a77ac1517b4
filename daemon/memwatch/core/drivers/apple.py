"""Memory on macOS as reported by its tools: ioreg, vm_stat, sysctl, and Metal if it is installed.

`python -m memwatch.core.drivers.apple` prints Metal's properties of the default device as one line of JSON.
The collector runs it as a separate process, so that the daemon itself is not a client of the GPU. It needs
pyobjc-framework-Metal, which only exists for macOS.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.core.linux.files import ParseError
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import decode, printable

PressureLevel = Literal["normal", "warning", "critical"]


class Accelerator(Struct, frozen=True):
    """A GPU of the I/O registry.

    `in_use_bytes` is system memory that is resident for it. `allocated_bytes` was requested, may exceed the
    machine's memory, and does not measure use.
    """

    driver: str
    model: Words
    in_use_bytes: Bytes
    allocated_bytes: Bytes


class Metal(Struct, frozen=True):
    """Metal's properties of the default device.

    Its allocated size is left out: it covers only the process that reads it.
    """

    has_unified_memory: bool
    working_set_bytes: Bytes


class AppleReading(Struct, frozen=True):
    """One reading. `wired_limit_bytes` is absent while the system's default limit applies."""

    chip: Words
    model: Words
    memory_bytes: Bytes
    accelerators: tuple[Accelerator, ...]
    pressure: PressureLevel | Absent
    wired_limit_bytes: Bytes
    metal: Metal | Absent


# Match this key exactly: "In use system memory (driver)" is a different value.
IN_USE = "In use system memory"
ALLOCATED = "Alloc system memory"
MAX_BYTES = 1 << 50


def parse_ioreg(data: bytes) -> tuple[Accelerator, ...]:
    """Parse the accelerators, in the order of the registry. Empty output means that there is none."""
    if not data.strip():
        return ()
    # Only macOS needs an XML parser, so only macOS pays for its import.
    import plistlib
    from xml.parsers.expat import ExpatError

    try:
        found = plistlib.loads(data, fmt=plistlib.FMT_XML)
    except (ExpatError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ParseError(f"ioreg: {data[:60]!r} is not a property list ({error})") from None
    if not isinstance(found, list):
        raise ParseError(f"ioreg: expected a list of accelerators, got a {type(found).__name__}")
    return tuple(_parse_accelerator(one) for one in found if isinstance(one, dict))


def _parse_accelerator(found: Mapping[str, Any]) -> Accelerator:
    statistics = found.get("PerformanceStatistics")
    statistics = statistics if isinstance(statistics, dict) else {}
    driver = found.get("IOObjectClass") or found.get("IOClass")
    return Accelerator(
        driver=printable(driver) if isinstance(driver, str) else "IOAccelerator",
        model=_words(found.get("model")),
        in_use_bytes=_bytes(statistics.get(IN_USE)),
        allocated_bytes=_bytes(statistics.get(ALLOCATED)),
    )


def _words(value: Any) -> Words:  # noqa: ANN401  any type that a property list contains
    # On Intel Macs the text is data that ends with a NUL.
    if isinstance(value, bytes):
        value = value.split(b"\0")[0].decode("utf-8", "replace")
    return printable(value) if isinstance(value, str) and value else Absent.NOT_SUPPORTED


def _bytes(value: Any) -> Bytes:  # noqa: ANN401
    if value is None:
        return Absent.NOT_SUPPORTED
    return value if type(value) is int and 0 <= value <= MAX_BYTES else Absent.INCONSISTENT


_SETTING = re.compile(rb"^([a-z][\w.]{1,60}): ([^\n]{0,200})$", re.MULTILINE)
# The flags of the dispatch source (DISPATCH_MEMORYPRESSURE_*), not the kernel's own levels 0 to 3.
_LEVELS: Mapping[str, PressureLevel] = {"1": "normal", "2": "warning", "4": "critical"}
# The names that are passed to sysctl. A name that the system does not have is missing from its output.
SETTINGS = (
    "hw.memsize",
    "hw.model",
    "machdep.cpu.brand_string",
    "kern.memorystatus_vm_pressure_level",
    "iogpu.wired_limit_mb",
)


def parse_sysctl(data: bytes) -> Mapping[str, str]:
    return {key.decode(): decode(value).strip() for key, value in _SETTING.findall(data)}


def parse_pressure_level(settings: Mapping[str, str]) -> PressureLevel | Absent:
    word = settings.get("kern.memorystatus_vm_pressure_level")
    return Absent.NOT_SUPPORTED if word is None else _LEVELS.get(word, Absent.INCONSISTENT)


def parse_wired_limit(settings: Mapping[str, str]) -> Bytes:
    """Return the limit set by an administrator, in bytes. 0 means the default, which only Metal reports."""
    number = _number(settings.get("iogpu.wired_limit_mb"))
    return number << 20 if isinstance(number, int) and number else Absent.NOT_AVAILABLE


def parse_memory_size(settings: Mapping[str, str]) -> Bytes:
    return _number(settings.get("hw.memsize"))


def _number(text: str | None) -> Bytes:
    if text is None:
        return Absent.NOT_SUPPORTED
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else Absent.INCONSISTENT


def parse_metal(line: bytes) -> Metal | Absent:
    """Parse the output of this program. Absent if Metal is not installed or has no device."""
    try:
        return from_line(Metal, line)
    except DecodeError:
        return Absent.NOT_AVAILABLE


def main() -> int:
    try:
        library = importlib.import_module("Metal")
        device = library.MTLCreateSystemDefaultDevice()
    except Exception:  # noqa: BLE001  a third-party library may fail in any way; then there is no value
        return 1
    if device is None:
        return 1
    metal = Metal(bool(device.hasUnifiedMemory()), int(device.recommendedMaxWorkingSetSize()))
    sys.stdout.buffer.write(to_line(metal))
    return 0


if __name__ == "__main__":
    sys.exit(main())
