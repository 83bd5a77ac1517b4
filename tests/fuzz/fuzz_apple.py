"""vm_stat, sysctl and ioreg of macOS, and the dynamic linker's cache of libraries elsewhere."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_valid
from memwatch.core.backends.probes import MAX_PATH_LENGTH, parse_linker_cache
from memwatch.core.drivers.apple import ioreg, text
from memwatch.core.drivers.apple import metal_child as metal


def check(data: bytes) -> None:
    found = text.parse_vm_stat(data)
    if found is not None:
        are_valid(found)
    settings = text.parse_sysctl(data)
    are_valid((text.parse_wired_limit(settings), text.parse_memory_size(settings)))
    text.parse_pressure_level(settings)
    with suppress(ioreg.PlistError):
        accelerators = ioreg.parse_ioreg(data)
        are_valid(accelerators)
    are_valid(metal.parse_metal(data))
    assert all(path.startswith("/") and len(path) <= MAX_PATH_LENGTH for path in parse_linker_cache(data))
