"""nvmap's table of clients: every size is a row's, every process too, and no row is counted twice."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_figures, are_said
from memwatch.drivers.tegra.nvmap import parse_clients
from memwatch.helper.codec import Garbled


def check(data: bytes) -> None:
    with suppress(Garbled):
        found = parse_clients(data)
        are_figures(found)
        are_said(found.total_bytes, data)
        are_said([(one.pid, one.used_bytes) for one in found.clients], data)
        assert len(found.clients) + found.rejected <= data.count(b"\n") - 2
