"""SIGKILL at any time loses no acknowledged message."""

from __future__ import annotations

from pathlib import Path

from support.outbox_kill_loop import kill_at_random, tally
from support.webhook_receiver import receiving


def test_hundred_kills_lose_no_message(tmp_path: Path) -> None:
    """After 100 kills during delivery no message is lost, no id has two bodies and no file is damaged."""
    with receiving(*[200, 200, 500] * 300, 200) as site:
        killed = kill_at_random(tmp_path, site.url, rounds=100)
        found = tally(killed, site)

    assert killed.rounds == 100
    assert killed.drained
    assert killed.complaints == []
    assert found.kept > 100
    assert (found.lost, found.two_bodies) == (0, 0)
