"""What a helper process does first: keep its stdout for answers, die with the daemon, be chosen before it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_OOM_SCORE_ABOVE_PARENT = 300


def settle_in() -> int:
    """Everything below at once, and SIGTERM ends the process calmly. Returns the descriptor for answers."""
    answers = keep_stdout_for_answers()
    die_with_parent()
    offer_to_oom_killer()
    signal.signal(signal.SIGTERM, _leave)
    return answers


def keep_stdout_for_answers() -> int:
    """A private descriptor for the answers. What vendor libraries print to stdout goes to stderr from now on."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def die_with_parent() -> None:
    """Never outlive the daemon, not even stuck. The end of stdin covers a parent that is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def offer_to_oom_killer() -> None:
    """Be chosen before the daemon is. Where the kernel has no such choice, there is nothing to offer."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE_ABOVE_PARENT)))


def _leave(*_: object) -> None:
    raise SystemExit(0)
