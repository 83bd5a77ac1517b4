"""The `memwatch` command as users have it: a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon_process import clean_environment

SCRIPT = [str(Path(sys.executable).with_name("memwatch"))]
MODULE = [sys.executable, "-m", "memwatchd.client"]
QUESTIONS = ("status", "devices", "backends", "doctor", "events")
COMMANDS = (*QUESTIONS, "release")


def memwatch(*arguments: str, command: Sequence[str] = SCRIPT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end. A daemon that MEMWATCH_URL names outside of a test is none of the test's business."""
    clean = {name: value for name, value in clean_environment().items() if name != "MEMWATCH_URL"}
    return subprocess.run(
        [*command, *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
