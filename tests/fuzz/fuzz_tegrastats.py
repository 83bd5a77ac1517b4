"""A line of tegrastats: values are in it, use is at most the total, loads are from 0 to 1; or a rejection."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_in_input, are_valid
from memwatch.core.collectors.tegra import parse_release
from memwatch.core.drivers.tegra.records import Load
from memwatch.core.drivers.tegra.tegrastats import parse_line
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.gpu_presence import parse_compatible
from memwatch.core.model import Absent


def check(data: bytes) -> None:
    with suppress(DecodeError):
        check_line(data)
    chip = parse_compatible(data)
    assert chip is None or chip.encode() in data
    release = parse_release(data).l4t
    assert isinstance(release, Absent) or release.replace(".", "").isdigit()


def check_line(data: bytes) -> None:
    reading = parse_line(data)
    areas = [area for area in (reading.swap, *reading.areas.values()) if not isinstance(area, Absent)]
    are_valid(areas)
    are_in_input(areas, data)
    used, total = reading.ram_used_bytes, reading.ram_total_bytes
    assert isinstance(used, Absent) or isinstance(total, Absent) or used <= total
    assert all(area.used_bytes <= area.total_bytes for area in areas)
    are_in_input((reading.ram_used_bytes, reading.ram_total_bytes, reading.largest_free_block_bytes), data)
    loads = [*reading.engines.values(), reading.gr3d, reading.emc, *reading.cpus]
    for load in loads:
        if isinstance(load, Load):
            are_valid(load)
            assert isinstance(load.busy_ratio, Absent) or load.busy_ratio <= 1
