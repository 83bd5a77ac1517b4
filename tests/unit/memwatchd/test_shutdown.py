"""Test the shutdown of a daemon when one of its parts fails."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from memwatch_monitor.feature import Feature
from memwatchd.daemon import Daemon
from support.monitors import history
from support.settings_sample import settings_from

pytestmark = pytest.mark.process


def started(folder: Path) -> Daemon:
    settings = settings_from(folder, f"[state]\ndir = '{folder / 'state'}'\n[web]\nlisten = ['127.0.0.1:0']\n")
    daemon = Daemon(settings, lambda _: settings)
    daemon.start()
    daemon.first_tick()
    return daemon


def test_parts_after_one_that_fails_are_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without memory for the end of one thread, alerts, history and state are still closed: no unclean end."""
    first = started(tmp_path)

    class Failing(Feature):
        name = "failing"

        def close(self) -> None:
            raise MemoryError

    first.monitor.features.add(Failing())
    with caplog.at_level(logging.ERROR):
        first.stop()
    again = started(tmp_path)
    unclean, restored = history(again.monitor).unclean_shutdown, len(history(again.monitor).tiers)
    again.stop()

    assert caplog.messages == ["a part could not be stopped: MemoryError"]
    assert unclean is None
    assert restored >= 2
