"""The JSON of a snapshot, as recordings hold it: refused, or the same again and fit for every face."""

from __future__ import annotations

from functools import cache

from fuzz.oracle import are_figures
from memwatch import __version__
from memwatch.render.json import snapshot_json, to_bytes
from memwatch.render.json_decode import NotASnapshot, snapshot_from
from memwatch_web.metrics.families import Exporter, negotiated
from memwatch_web.pages.renderer import Pages

MOST_BYTES = 6000


@cache
def pages() -> Pages:
    return Pages()


def check(data: bytes) -> None:
    try:
        snapshot = snapshot_from(data)
    except NotASnapshot:
        return
    said = snapshot_json(snapshot)
    line = to_bytes(said)
    assert snapshot_json(snapshot_from(line)) == said
    are_figures((snapshot.pools, snapshot.shares))
    for process in snapshot.processes:
        are_figures((process.rss_bytes, process.footprint_bytes, process.swap_bytes, process.device_bytes))
    encode, _ = negotiated("text/plain")
    exporter = Exporter(__version__, dict, tuple, lambda: 5)
    assert b" NaN\n" not in exporter.render(snapshot, encode)
    for name in pages().names:
        assert b"<" in pages().page(name, snapshot)
