"""Log lines: times for people, priorities for the journal."""

from __future__ import annotations

import re
import subprocess
import sys

from support.waiting import MAX_WAIT_SECONDS

SPEAK = """
import logging, os
from memwatchd.logging_setup import start_logging
start_logging("info", os.environ)
log = logging.getLogger("memwatch")
log.debug("too quiet")
log.warning("first\\nsecond")
log.error("third")
"""


def spoken(environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SPEAK],
        env=environ,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=True,
    )
    return done.stderr.splitlines()


def test_lines_for_people_begin_with_the_time() -> None:
    """Outside the journal a line has its time in UTC and its level; below the level nothing is written."""
    first, second, third = spoken({})

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING first", first)
    assert second == "second"
    assert third.endswith("Z ERROR   third")


def test_every_line_for_the_journal_has_its_priority() -> None:
    """In the journal each line of a message has the priority of its level, so that none of it gets lost."""
    assert spoken({"JOURNAL_STREAM": "8:1234"}) == ["<4>first", "<4>second", "<3>third"]
