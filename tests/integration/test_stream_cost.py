"""CPU use of many open pages: each tick is rendered once, and all clients get the same bytes."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from support.budget import within
from support.daemon_process import WITHOUT_COVERAGE, running_daemon
from support.many_clients import Crowd, connections
from support.waiting import MAX_WAIT_SECONDS

STREAMS = 200
CORE_PART = 0.10
SECONDS = 8.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time so far of all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
@pytest.mark.measure
@pytest.mark.parametrize("page", ["overview", "processes"])
def test_200_open_pages_use_at_most_a_tenth_of_a_core(tmp_path: Path, page: str) -> None:
    """Over real sockets, at one tick a second, including the daemon's sampling. Every client gets its ticks."""
    request = f"GET /live?page={page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    config = f"[web]\nmax_streams = {STREAMS * 2}\n"
    with running_daemon(tmp_path, config=config, environ=WITHOUT_COVERAGE) as daemon:
        daemon.get("/")  # the first request creates the pages
        with connections(daemon, STREAMS, request) as members, Crowd(members) as crowd:
            part, ticks = measure_streams(daemon.pid, crowd, members)

    assert crowd.closed_at == {}
    assert min(ticks) > 0.7 * SECONDS
    within(f"200 open pages of {page}", part, CORE_PART, "cores")


def measure_streams(pid: int, crowd: Crowd, members: list[socket.socket]) -> tuple[float, list[int]]:
    """Return the fraction of a core used, and the number of ticks per client."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while len(crowd.events) < len(members) and time.monotonic() < until:
        time.sleep(0.05)
    began, before, earlier = time.monotonic(), cpu_seconds(pid), Counter(crowd.events)
    time.sleep(SECONDS)
    part = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    return part, [crowd.events[member] - earlier[member] for member in members]
