"""A lease on the overview in a real browser: hatched while it runs, gone when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatch_web.pages.landscape_page import TOWER
from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, get, running_daemon
from support.ingest_client import post

GIB = 1 << 30
HATCHED = "#pool-ram .now-wide rect.b-leased"
HEIGHT = f'parseFloat(document.querySelector("{HATCHED}").getAttribute("height"))'


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path, "--demo", "dgx-spark") as running:
        yield running


def test_lease_is_hatched_until_it_ends(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """To scale, with its name and time left, and accessible. The figures of the pool stay."""
    with opened(browser, daemon.url) as page:
        body = {"bytes": 30 * GIB, "target": "ram", "seconds": 595, "pid": os.getpid(), "name": "train.py"}
        _, granted = post(daemon, "/api/v1/leases", body)
        page.wait_for_selector(HATCHED, state="attached")
        height, size = page.evaluate(HEIGHT), daemon.snapshot()["pools"][0]["size_bytes"]
        words = page.inner_text(".landscape .leases").split()
        found = faults_in_both_themes(page)
        get(daemon.port, f"/api/v1/leases/{granted['id']}", method="DELETE")
        page.wait_for_selector(HATCHED, state="detached")

    assert height == pytest.approx(30 * GIB / size * TOWER, abs=0.1)
    assert words[:7] == ["leased", "to", "train.py", "(PID", f"{os.getpid()}),", "9", "min"]
    assert words[-3:] == ["left", "30.0", "GiB"]
    assert found == []
