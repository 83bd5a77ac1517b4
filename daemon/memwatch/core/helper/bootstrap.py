"""Startup of a helper process: reserve stdout for responses, die with the daemon.

A helper that stays inherits the daemon's oom_score_adj: it is as hard to replace when memory is short, and smaller.
One that runs once for a question raises its own by `offer_to_oom_killer`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_PR_SET_PDEATHSIG = 1
_OOM_SCORE_ABOVE_PARENT = 300


def bootstrap() -> int:
    """Apply all steps below, and exit cleanly on SIGTERM. Return the descriptor for responses."""
    answers = keep_stdout_for_answers()
    die_with_parent()
    signal.signal(signal.SIGTERM, _leave)
    return answers


def leave_out_modules(helper: str) -> None:
    """Do without modules that libraries import and a helper does not use. Call it before those are imported.

    `typing_extensions`, which msgspec tries, and `ctypes.util`, which NVIDIA's binding imports for other systems,
    bring 20 more: 1.4 MiB. In other processes than that of the module `helper` nothing changes.
    """
    if sys.argv[:1] == [helper]:
        sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]  # `import` raises ImportError
        stand_in = ModuleType("ctypes.util")
        stand_in.find_library = _find_library  # type: ignore[attr-defined]
        sys.modules.setdefault("ctypes.util", stand_in)


def _find_library(name: str) -> str | None:
    sys.modules.pop("ctypes.util", None)
    from ctypes.util import find_library

    return find_library(name)


def keep_stdout_for_answers() -> int:
    """Return a private descriptor for responses. Anything printed to stdout, as by libraries, goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def die_with_parent() -> None:
    """Let the kernel kill this process when the daemon ends. If the daemon has already ended, stdin is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def offer_to_oom_killer() -> None:
    """Raise the OOM score above the daemon's, so that the OOM killer selects this process first. Linux only."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + _OOM_SCORE_ABOVE_PARENT)))


def _leave(*_: object) -> None:
    raise SystemExit(0)
