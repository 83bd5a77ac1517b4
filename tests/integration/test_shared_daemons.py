"""Daemons that tests share: reading is allowed, and each kind of change is noticed and ends the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ingest_client import post
from support.shared_daemons import SharedDaemons

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


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/api/v1/marks", {"text": "loaded"}, ["mark"]),
        ("/api/v1/silences?seconds=60&target=ram", b"", ["silence", "sil"]),
        (
            "/api/v1/leases",
            {"bytes": 1 << 30, "target": "ram", "seconds": 60.0, "pid": os.getpid(), "name": "test"},
            ["lease", "lease"],
        ),
    ],
    ids=["mark", "silence", "lease"],
)
def test_change_is_named_and_the_next_test_gets_another_daemon(
    daemons: SharedDaemons, path: str, body: object, found: list[str]
) -> None:
    first = daemons.demo(DEMO)
    status, answer = post(first, path, body)
    assert status < 300, answer

    (changes,) = daemons.take_changes().values()
    assert [one.startswith(start) for one, start in zip(changes, found, strict=True)] == [True] * len(found), (
        changes
    )
    assert daemons.demo(DEMO) is not first
    assert daemons.take_changes() == {}


def test_stopped_daemon_is_named(daemons: SharedDaemons) -> None:
    daemons.demo(DEMO).terminate()

    assert daemons.take_changes() == {DEMO: ["it has ended"]}
    assert daemons.demo(DEMO).get("/healthz").status == 200
