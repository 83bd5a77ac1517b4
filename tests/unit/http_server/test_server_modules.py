"""The web server loads what it uses of uvicorn, and the daemon nothing else at rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# Of uvicorn's command line and of its supervisors of several processes; and of msgspec, for what it does not find.
UNUSED = {"uvicorn.main", "uvicorn.supervisors", "multiprocessing", "typing_extensions"}
SHOW = "import sys, memwatchd.cli, memwatchd.run, uvicorn; print(uvicorn.Server.__module__, *sys.modules)"


def test_daemon_does_without_unused_modules_of_its_libraries() -> None:
    command = [sys.executable, "-c", SHOW]
    server, *loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert server == "uvicorn.server"
    assert "memwatchd.http_server.server" in loaded
    assert UNUSED & set(loaded) == set()
