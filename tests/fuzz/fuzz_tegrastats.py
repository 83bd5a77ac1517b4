"""A line of tegrastats: figures that stand in it, no more used than there is, loads from 0 to 1; or refused."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_figures, are_said
from memwatch.drivers.tegra.board import parse_compatible, parse_release
from memwatch.drivers.tegra.records import Load
from memwatch.drivers.tegra.tegrastats_line import parse_line
from memwatch.helper.codec import Garbled
from memwatch.model import Absent


def check(data: bytes) -> None:
    with suppress(Garbled):
        judge(data)
    chip = parse_compatible(data)
    assert chip is None or chip.encode() in data
    release = parse_release(data).l4t
    assert isinstance(release, Absent) or release.replace(".", "").isdigit()


def judge(data: bytes) -> None:
    reading = parse_line(data)
    areas = [area for area in (reading.swap, *reading.areas.values()) if not isinstance(area, Absent)]
    are_figures(areas)
    are_said(areas, data)
    assert reading.ram_used_bytes <= reading.ram_total_bytes
    assert all(area.used_bytes <= area.total_bytes for area in areas)
    are_said((reading.ram_used_bytes, reading.ram_total_bytes, reading.largest_free_block_bytes), data)
    loads = [*reading.engines.values(), reading.gr3d, reading.emc, *reading.cpus]
    for load in loads:
        if isinstance(load, Load):
            are_figures(load)
            assert isinstance(load.busy_ratio, Absent) or load.busy_ratio <= 1
