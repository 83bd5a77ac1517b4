"""Test 1.5 days of ticks, 150 reloads and 72 alerts: memory, descriptors, threads and files stay bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from day import FULL_EVERY, HOUR

from scripts.soak import MAX_MEGABYTES_A_DAY, line_through
from support.paths import TESTS
from support.webhook_receiver import receiving

# Bounded buffers are full within the first day, with a step of 0.6 MB and one of 0.9 MB between its 11th and 19th
# hour; from then to the 60th it is flat.
HOURS, SETTLED = 36, 24
DISK_BYTES = 8 << 20


@pytest.mark.long
def test_simulated_day_leaks_nothing_and_loses_no_alert(tmp_path: Path) -> None:
    """129,600 ticks through sampling, storage, alerts and metrics, on a simulated clock."""
    with receiving(200) as site:
        command = [sys.executable, str(Path(__file__).with_name("day.py")), str(tmp_path), site.url, str(HOURS)]
        environ = {**os.environ, "PYTHONPATH": str(TESTS)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environ)
    hours = [json.loads(line) for line in done.stdout.splitlines()]
    delivered = Counter(json.loads(delivery.body)["event"] for delivery in site.deliveries)
    ids = [delivery.headers["webhook-id"] for delivery in site.deliveries]
    settled = hours[SETTLED:]
    line = line_through([one["ticks"] for one in settled], [one["rss_bytes"] for one in settled])

    assert (done.returncode, done.stderr) == (0, "")
    assert hours[-1]["ticks"] == HOURS * HOUR
    assert line.megabytes_a_day < MAX_MEGABYTES_A_DAY
    assert {(one["descriptors"], one["threads"], one["disk_bytes"]) for one in hours} == {
        (hours[0]["descriptors"], hours[0]["threads"], DISK_BYTES)
    }
    assert hours[-1]["rows"] == [3600, 2160, 144]
    assert {state for one in hours for state in one["states"]} <= {"ok", "unavailable"}
    cycles = HOURS * HOUR // FULL_EVERY
    assert delivered == Counter({"pressure.critical": cycles, "pressure.resolved": cycles})
    assert len(set(ids)) == len(ids) == 2 * cycles
