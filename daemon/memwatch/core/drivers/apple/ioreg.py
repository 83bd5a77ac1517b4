"""Parser of `ioreg -a -r -d 1 -c IOAccelerator`, a property list of every GPU. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwatch.core.drivers.apple.records import Accelerator
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import printable

# Match this key exactly: "In use system memory (driver)" is a different value.
IN_USE = "In use system memory"
ALLOCATED = "Alloc system memory"
MAX_BYTES = 1 << 50


class PlistError(ValueError):
    """The output is not a property list of the expected form."""


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
        raise PlistError(f"ioreg: {data[:60]!r} is not a property list ({error})") from None
    if not isinstance(found, list):
        raise PlistError(f"ioreg: expected a list of accelerators, got a {type(found).__name__}")
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
