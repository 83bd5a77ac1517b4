"""Wrong arguments of the library's first page: its own errors with a sentence, and right calls work afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import memwatch
from support import wrong_arguments
from support.daemon_process import clean_environment
from support.dead_address import dead_address
from support.library_process import roots_environment
from support.paths import TESTS
from support.waiting import MAX_WAIT_SECONDS


def test_every_wrong_argument_is_answered_with_an_error_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(wrong_arguments.MODEL))
    environment = clean_environment(
        MEMWATCH_URL=f"http://{dead_address()}", PYTHONPATH=str(TESTS), **roots_environment("n100")
    )

    done = subprocess.run(
        (sys.executable, "-m", "support.wrong_arguments", str(tmp_path)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * MAX_WAIT_SECONDS,
        check=False,
        cwd=tmp_path,
    )

    assert done.stdout == "0\n", done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_every_public_name_has_a_row() -> None:
    public = {name for name in dir(memwatch) if not name.startswith("_")}

    one = wrong_arguments
    assert {*one.CALLS, *one.RESULTS, *one.WITHOUT_ARGUMENTS, *one.OF_TRAINING} == public
