"""nvmap's table of clients: every size and every process is from a row, and no row is counted twice."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import are_in_input, are_valid
from memwatch.core.drivers.tegra.nvmap import parse_clients
from memwatch.core.helper.codec import DecodeError


def check(data: bytes) -> None:
    with suppress(DecodeError):
        found = parse_clients(data)
        are_valid(found)
        are_in_input(found.total_bytes, data)
        are_in_input([(one.pid, one.used_bytes) for one in found.clients], data)
        assert len(found.clients) + found.rejected <= data.count(b"\n") - 2
