"""Programs that use the library, as separate processes with or without a daemon.

Within `installed_programs(True)` Python starts and imports them, for tests of the import or the interpreter's end.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.daemon_process import clean_environment
from support.dead_address import dead_address
from support.fork_server import CODE, can_fork, run_forked
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS


def run_program(code: str, url: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program, forked with the library's modules; without `url` no daemon answers."""
    environment = clean_environment(MEMWATCH_URL=url or f"http://{dead_address()}", **environ)
    command = [*CODE, code]
    if can_fork(environment):
        return run_forked(command, environment, MAX_WAIT_SECONDS)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, check=False
    )


def run_json(code: str, url: str | None = None, **environ: str) -> Any:
    """Return the JSON that a program prints; it must print nothing else."""
    done = run_program(code, url, **environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def roots_environment(name: str) -> dict[str, str]:
    return {f"MEMWATCHD_{one.upper()}FS": str(MACHINES / name / one) for one in ("proc", "sys", "root")}
