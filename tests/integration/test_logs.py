"""Log lines: timestamps on a terminal, priorities in the journal."""

from __future__ import annotations

import re
import subprocess
import sys

from support.waiting import MAX_WAIT_SECONDS

LOG_LINES = """
import logging, os
from memwatchd.logging_setup import start_logging
start_logging("info", os.environ)
log = logging.getLogger("memwatch")
log.debug("too quiet")
log.warning("first\\nsecond")
log.error("third")
"""


def log_lines(environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOG_LINES],
        env=environ,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=True,
    )
    return done.stderr.splitlines()


def test_terminal_lines_begin_with_the_time() -> None:
    """The time is in UTC, followed by the level. Lines below the minimum level are dropped."""
    first, second, third = log_lines({})

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING first", first)
    assert second == "second"
    assert third.endswith("Z ERROR   third")


def test_every_journal_line_has_a_priority() -> None:
    """Also the further lines of a message."""
    assert log_lines({"JOURNAL_STREAM": "8:1234"}) == ["<4>first", "<4>second", "<3>third"]
