"""JSON of a snapshot, as in recordings: rejected, or decoded unchanged and fit for metrics and pages."""

from __future__ import annotations

from functools import cache

from fuzz.oracle import are_valid
from memwatch import __version__
from memwatch.core.snapshot_json import SnapshotDecodeError, snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch_web.metrics.families import Exporter, negotiate_format
from memwatch_web.pages.renderer import Pages

MAX_BYTES = 6000


@cache
def pages() -> Pages:
    return Pages()


def check(data: bytes) -> None:
    try:
        snapshot = snapshot_from(data)
    except SnapshotDecodeError:
        return
    document = snapshot_json(snapshot)
    line = to_bytes(document)
    assert snapshot_json(snapshot_from(line)) == document
    are_valid((snapshot.pools, snapshot.shares))
    for process in snapshot.processes:
        are_valid((process.rss_bytes, process.footprint_bytes, process.swap_bytes, process.device_bytes))
    encode, _ = negotiate_format("text/plain")
    exporter = Exporter(__version__, max_processes=lambda: 5)
    assert b" NaN\n" not in exporter.render(snapshot, encode)
    for name in pages().names:
        assert b"<" in pages().page(name, snapshot)
