"""Programs that use the library, as separate processes with or without a daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.daemon_process import clean_environment
from support.dead_address import dead_address
from support.paths import MACHINES


def run_program(code: str, url: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program; without `url` no daemon answers."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=clean_environment(MEMWATCH_URL=url or f"http://{dead_address()}", **environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_json(code: str, url: str | None = None, **environ: str) -> Any:
    """Return the JSON that a program prints; it must print nothing else."""
    done = run_program(code, url, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def roots_environment(name: str) -> dict[str, str]:
    return {f"MEMWATCHD_{one.upper()}FS": str(MACHINES / name / one) for one in ("proc", "sys", "root")}
