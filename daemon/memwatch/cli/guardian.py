"""`memwatch guardian`: run the command of the guardian, which the package memwatchd has."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from memwatch.cli.http import CommandError

PROGRAM = "memwatchd-guardian"


def run_guardian(what: str) -> NoReturn:
    """Replace this process by the program. Raises CommandError if it is not installed."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), PROGRAM)
    program = beside if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
    if program is None:
        raise CommandError(
            f"{PROGRAM} is not installed: it is a program of the package memwatchd; install that package"
        )
    sys.stdout.flush()
    os.execv(program, [PROGRAM, what])  # noqa: S606  the program beside this one
