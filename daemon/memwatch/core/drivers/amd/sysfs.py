"""Parsers of amdgpu's files in sysfs. Pure functions that return a value or why it is absent."""

from __future__ import annotations

import errno
import re

from memwatch.core.drivers.amd.records import Region
from memwatch.core.linux.files import is_shortage
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import decode

# No machine has an exbibyte of memory. On errors drivers report -1 as an unsigned number.
MAX_BYTES = 1 << 60
# Maximum length of a line of text from the firmware.
_MAX_TEXT_LENGTH = 128

_FIGURE = re.compile(rb"\d{1,20}")
_PERCENT = re.compile(rb"\d{1,3}")
_HEX = re.compile(rb"(?:0x)?([0-9a-fA-F]{1,8})")
_ERRORS = re.compile(rb"^(ue|ce|de): (\d{1,20})$", re.MULTILINE)
_BAD_PAGE = re.compile(rb"^0x[0-9a-fA-F]{1,16} ?: ?0x[0-9a-fA-F]{1,16} ?: ?([RPF])\s*$", re.MULTILINE)
_RELEASE = re.compile(rb"(\d{1,4})\.(\d{1,4})")

_REASONS = {
    errno.ENOENT: Absent.NOT_SUPPORTED,
    errno.EOPNOTSUPP: Absent.NOT_SUPPORTED,
    errno.EACCES: Absent.NOT_PERMITTED,
    errno.EPERM: Absent.NOT_PERMITTED,
}
_KINDS = {b"ue": "ecc_uncorrected", b"ce": "ecc_corrected", b"de": "ecc_deferred"}


def absent_reason(error: OSError) -> Absent:
    """Return why a file of a loaded driver cannot be read. A temporary shortage of resources is raised again."""
    if is_shortage(error):
        raise error
    return _REASONS.get(error.errno or 0, Absent.NOT_AVAILABLE)


def parse_figure(data: bytes | Absent) -> Bytes:
    if isinstance(data, Absent):
        return data
    text = data.strip()
    if text == b"N/A":
        return Absent.NOT_SUPPORTED
    if not _FIGURE.fullmatch(text) or int(text) > MAX_BYTES:
        return Absent.INCONSISTENT
    return int(text)


def parse_ratio(data: bytes | Absent) -> float | Absent:
    """Parse a percentage as a ratio, 0 to 1."""
    if isinstance(data, Absent):
        return data
    text = data.strip()
    if text == b"N/A":
        return Absent.NOT_SUPPORTED
    if not _PERCENT.fullmatch(text) or int(text) > 100:
        return Absent.INCONSISTENT
    return int(text) / 100


def parse_text(data: bytes | Absent) -> Words:
    """Parse a word or a name. Invalid UTF-8 and control characters are escaped."""
    if isinstance(data, Absent):
        return data
    text = data.split(b"\0")[0].strip()
    if not text or text in (b"N/A", b"unknown"):
        return Absent.NOT_SUPPORTED
    return decode(text[:_MAX_TEXT_LENGTH].replace(b"\n", b" "))


def parse_id(data: bytes | Absent) -> str:
    """Parse hexadecimal digits as in `0x744c`, in lower case. Empty if there are none."""
    found = _HEX.fullmatch(data.strip()) if isinstance(data, bytes) else None
    return found[1].decode().lower() if found else ""


def parse_release(data: bytes | Absent) -> tuple[int, ...]:
    """Parse the first two numbers of a version, for comparisons. Empty if there are none."""
    found = _RELEASE.match(data) if isinstance(data, bytes) else None
    return (int(found[1]), int(found[2])) if found else ()


def parse_metrics_format(data: bytes | Absent) -> int | Absent:
    """Parse the format revision of gpu_metrics, its third byte. 2 and 3 are formats of APUs."""
    if isinstance(data, Absent):
        return data
    return data[2] if len(data) >= 4 else Absent.INCONSISTENT


def parse_errors(data: bytes) -> dict[str, int]:
    """Parse memory error counts by kind. A GPU in reset reports "Query currently inaccessible", without counts."""
    return {_KINDS[kind]: int(count) for kind, count in _ERRORS.findall(data)}


def parse_bad_pages(data: bytes) -> dict[str, int]:
    """Count memory pages that are retired (R), pending retirement (P) or could not be retired (F)."""
    found = _BAD_PAGE.findall(data)
    kinds = {b"R": "pages_retired", b"P": "pages_pending", b"F": "pages_unretirable"}
    return {name: found.count(flag) for flag, name in kinds.items()}


def build_region(total: Bytes, used: Bytes) -> Region:
    """Build a region. A use that exceeds the total is inconsistent and left out, and so is a total of 0 in use."""
    if total == 0 and isinstance(used, int) and used:
        return Region(Absent.INCONSISTENT, used)
    if isinstance(total, int) and isinstance(used, int) and used > total:
        return Region(total, Absent.INCONSISTENT)
    return Region(total, used)
