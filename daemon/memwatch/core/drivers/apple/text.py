"""Parsers of the output of vm_stat and sysctl. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memwatch.core.drivers.apple.records import PressureLevel, VmStat
from memwatch.core.model import Absent, Bytes
from memwatch.core.printable import decode

_PAGE = re.compile(rb"page size of (\d{4,7}) bytes")
_LINE = re.compile(rb'^"?([^":\n]{1,60})"?: +(\d{1,15})\.?$', re.MULTILINE)
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


def parse_vm_stat(data: bytes) -> VmStat | None:
    """Parse vm_stat. None if a queue or the page size is missing: without it, page counts are useless."""
    page = _PAGE.search(data)
    pages = {key.decode("ascii", "replace"): int(count) for key, count in _LINE.findall(data)}
    queues = ("Pages free", "Pages active", "Pages inactive", "Pages speculative", "Pages wired down")
    if page is None or not set(queues) <= pages.keys():
        return None
    size = int(page[1])

    def convert(key: str) -> Bytes:
        return pages[key] * size if key in pages else Absent.NOT_SUPPORTED

    free, active, inactive, speculative, wired = (pages[key] * size for key in queues)
    return VmStat(
        page_bytes=size,
        free_bytes=free,
        active_bytes=active,
        inactive_bytes=inactive,
        speculative_bytes=speculative,
        wired_bytes=wired,
        compressor_bytes=convert("Pages occupied by compressor"),
        compressed_bytes=convert("Pages stored in compressor"),
        purgeable_bytes=convert("Pages purgeable"),
        anonymous_bytes=convert("Anonymous pages"),
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
