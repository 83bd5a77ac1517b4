"""Daemons that tests share: reading is allowed, and each kind of change is noticed and ends the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ingest_client import post
from support.shared_daemons import SharedDaemons, changes_of

DEMO = "dgx-spark"


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[SharedDaemons]:
    shared = SharedDaemons(tmp_path)
    yield shared
    shared.close()


def test_reading_is_no_change_and_the_daemon_stays(daemons: SharedDaemons) -> None:
    first = daemons.demo(DEMO)
    for path in ("/", "/api/v1/snapshot", "/api/v1/events", "/metrics"):
        assert first.get(path).status == 200

    assert daemons.take_changes() == {}
    assert daemons.demo(DEMO) is first

    first.terminate()
    assert daemons.take_changes() == {DEMO: ["it has ended"]}
    assert daemons.demo(DEMO).get("/healthz").status == 200


def test_change_is_named_and_the_next_test_gets_another_daemon(daemons: SharedDaemons) -> None:
    """Each kind of change adds its names. A lease is granted for a process that the daemon can see, this one."""
    first = daemons.demo(DEMO)
    assert changes_of(first) == []
    lease = {"bytes": 1 << 30, "target": "ram", "seconds": 60.0, "pid": os.getpid(), "name": "test"}
    for path, body, starts in (
        ("/api/v1/marks", {"text": "loaded"}, ["mark"]),
        ("/api/v1/silences?seconds=60&target=ram", b"", ["mark", "sil", "silence"]),
        ("/api/v1/leases", lease, ["lease", "lease", "mark", "sil", "silence"]),
    ):
        status, answer = post(first, path, body)
        assert status < 300, answer
        found = sorted(changes_of(first))
        assert [one.startswith(start) for one, start in zip(found, starts, strict=True)] == [True] * len(starts), (
            found
        )

    assert [len(changes) for changes in daemons.take_changes().values()] == [5]
    assert daemons.demo(DEMO) is not first
    assert daemons.take_changes() == {}
