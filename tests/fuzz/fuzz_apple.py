"""sysctl and ioreg of macOS, and the dynamic linker's cache of libraries elsewhere."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_valid
from memwatch.core.backends.probes import MAX_PATH_LENGTH, parse_linker_cache
from memwatch.core.drivers import apple
from memwatch.core.linux.files import ParseError


def check(data: bytes) -> None:
    settings = apple.parse_sysctl(data)
    are_valid((apple.parse_wired_limit(settings), apple.parse_memory_size(settings)))
    apple.parse_pressure_level(settings)
    with suppress(ParseError):
        accelerators = apple.parse_ioreg(data)
        are_valid(accelerators)
    are_valid(apple.parse_metal(data))
    assert all(path.startswith("/") and len(path) <= MAX_PATH_LENGTH for path in parse_linker_cache(data))
