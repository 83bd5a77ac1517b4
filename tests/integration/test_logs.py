"""Log lines: timestamps on a terminal, priorities in the journal."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.hostile_names import find_controls
from support.waiting import MAX_WAIT_SECONDS

LOG_LINES = """
import logging, os
from memwatchd.logging_setup import start_logging
start_logging("info", os.environ)
log = logging.getLogger("memwatch")
log.debug("too quiet")
log.warning("first\\nsecond")
log.error("third")
try:
    raise ValueError("bad\\x1b[2J\\n<0>forged")
except ValueError:
    log.exception("%s", "name\\r\\n<0>forged\\x1b]0;owned\\x07\\x9b31m\\u202e")
"""


def log_lines(environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOG_LINES],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=True,
    )
    return done.stderr.splitlines()


def test_terminal_lines_begin_with_the_time() -> None:
    """The time is in UTC, followed by the level. Lines below the minimum level are dropped."""
    first, third, *_ = log_lines({})

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING first\\u000asecond", first)
    assert third.endswith("Z ERROR   third")


def test_every_journal_line_has_a_priority() -> None:
    """Also the lines of a traceback."""
    lines = log_lines({"JOURNAL_STREAM": "8:1234"})

    assert lines[:2] == ["<4>first\\u000asecond", "<3>third"]
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines[1:])


@pytest.mark.parametrize("environ", [{}, {"JOURNAL_STREAM": "8:1234"}], ids=["terminal", "journal"])
def test_quoted_names_forge_no_line_and_no_escape_sequence(environ: dict[str, str]) -> None:
    """A message is one line, whatever it quotes. Only a traceback adds lines, without control characters."""
    lines = log_lines(environ)

    assert not find_controls("\n".join(lines).encode())
    assert not any(line.startswith("<0>") for line in lines)
    assert lines[2].endswith("name\\u000d\\u000a<0>forged\\u001b]0;owned\\u0007\\u009b31m\\u202e")
