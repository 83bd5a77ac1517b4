"""CSV format of /api/v1/history: one row per bucket, empty cells for missing values."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.monitor.render.json import rfc3339

FIGURES = ("min", "avg", "max")


class Series(Struct, frozen=True):
    """Buckets of one series. Minimum and maximum are exact at any resolution."""

    name: str
    unit: str
    unix: list[float]
    min: Annotated[list[float | None], Doc("Null in a gap.")]
    avg: Annotated[list[float | None], Doc("Null in a gap.")]
    max: Annotated[list[float | None], Doc("Null in a gap.")]


def render_csv(series: Sequence[Series]) -> str:
    """Return three columns per series, such as `pool.ram.used_bytes avg [bytes]`. A gap is a row without values."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\r\n")
    writer.writerow(["time", *(f"{one.name} {figure} [{one.unit}]" for one in series for figure in FIGURES)])
    places = [{unix: index for index, unix in enumerate(one.unix)} for one in series]
    for unix in sorted({unix for one in series for unix in one.unix}):
        aggregates: list[Any] = [rfc3339(unix)]
        for one, place in zip(series, places, strict=True):
            index = place.get(unix)
            aggregates += (
                ["", "", ""] if index is None else [_cell(getattr(one, figure)[index]) for figure in FIGURES]
            )
        writer.writerow(aggregates)
    return output.getvalue()


def _cell(value: float | None) -> float | str:
    if value is None:
        return ""
    return int(value) if value.is_integer() else value


def build_file_name(host: str, start: float, end: float) -> str:
    """Return a file name without characters that are special to a shell or an HTTP header."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")[:60]
    times = [
        datetime.fromtimestamp(max(0.0, unix), timezone.utc).strftime("%Y%m%dT%H%M%SZ") for unix in (start, end)
    ]
    return "-".join(["memwatch", name or "machine", *times])
