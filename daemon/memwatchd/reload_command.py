"""`memwatchd --reload`, the ExecReload= of the unit: reload the running daemon, and fail if it refuses."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from memwatch.core.runtime.regular_file import read_regular
from memwatchd.config_keeper import ReloadResult, result_file

# The daemon answers within a tick; reading secrets from a slow file system takes longer. systemd waits for 60 s.
WAIT_SECONDS = 45.0
PAUSE_SECONDS = 0.02
MAX_RESULT_BYTES = 1 << 20


class ReloadError(Exception):
    """The reload failed. `problems` has the sentences of the daemon, or the reason why it did not answer."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def reload(environ: Mapping[str, str]) -> None:
    """Reload the daemon with the PID in $MAINPID, and wait for its result. Raises ReloadError."""
    main = environ.get("MAINPID", "")
    file = result_file(environ)
    if not re.fullmatch(r"[1-9][0-9]{0,9}", main):
        raise ReloadError("--reload is for the unit: run systemctl reload memwatchd, or kill -HUP PID elsewhere")
    pid = int(main)
    before = None if file is None else read_result(file)
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        raise ReloadError(f"the daemon with PID {pid} cannot be reloaded: {error.strerror}") from None
    if file is None or before is None or before.pid != pid:
        return  # a daemon of before, which writes no results
    end = time.monotonic() + WAIT_SECONDS
    while (now := read_result(file)) is None or now == before or now.number == before.number:
        if time.monotonic() > end:
            raise ReloadError(f"the daemon with PID {pid} did not answer within {WAIT_SECONDS:.0f} s; see its log")
        time.sleep(PAUSE_SECONDS)
    if now.problems:
        raise ReloadError(*now.problems)


def read_result(file: Path) -> ReloadResult | None:
    try:
        return msgspec.json.decode(read_regular(file, MAX_RESULT_BYTES), type=ReloadResult)
    except (OSError, ValueError):
        return None
