"""A flood of announcements by mDNS: memory stays, and real machines are found. In a network namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memwatch.core.budget import KINDS, Account, Budget
from support.budget import within
from support.mdns_flood import NETWORK

NEEDED_PROGRAMS = ("ip", "unshare")
USER = () if os.geteuid() == 0 else ("--map-root-user",)
MAX_GROWTH_KIB = 10 << 10


@pytest.mark.measure
def test_flood_of_names_neither_grows_the_daemon_nor_hides_a_machine(tmp_path: Path) -> None:
    """100,000 names of one source address. A machine that starts during the flood is listed."""
    own_network = ["unshare", "--net", *USER, "sh", "-c", NETWORK, "sh"]
    command = [*own_network, sys.executable, "-m", "support.mdns_flood", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    flooded = [one for one in seen["found"] if one["name"].startswith("flood-")]

    assert [one["name"] for one in seen["found"] if one["name"] == "ember"] == ["ember"]
    assert len(flooded) <= Budget(KINDS["machines_found"]).share(Account("192.0.2.1"))
    assert any("more machines were found by mDNS" in one["text"] for one in seen["found"])
    within("RSS growth in an mDNS flood of 100,000 names", seen["grown_kib"], MAX_GROWTH_KIB, "KiB")
