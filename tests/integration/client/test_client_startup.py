"""Start of the command: it imports what one command needs, so that an answer takes less than 0.3 s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from memwatch.cli.cli import memwatch
from scripts.published_models import MODELS
from support.budget import within
from support.client_process import COMMANDS, MODULE
from support.daemon_process import QUIET_MACHINE, ROOTS, clean_environment, running_daemon
from support.model_stores import hugging_face_cache

# What every command needs, and takes: 0.12 s where `memwatch fit` takes 0.20 s.
LIBRARIES = [sys.executable, "-c", "import click, http.client, json, msgspec"]
MAX_RATIO = 2.5
TRIES = 5


def cpu_seconds(command: Sequence[str]) -> float:
    """Return the least CPU time of several runs, which other load on the host hardly changes."""
    return min(_cpu_seconds_once(command) for _ in range(TRIES))


def _cpu_seconds_once(command: Sequence[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=clean_environment()) as started:
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.measure
@pytest.mark.parametrize("name", ["", "meta/Llama"])
def test_fit_of_a_model_costs_little_more_than_its_libraries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 4.4 times their CPU time while each command imported those of all commands. A name costs no more."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text(json.dumps(MODELS[0].config))
    if name:
        hugging_face_cache(tmp_path / "hub", name, files)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        command = [*MODULE, "--url", daemon.url, "fit", name or str(files)]
        ratio = cpu_seconds(command) / cpu_seconds(LIBRARIES)

    within("CPU time of memwatch fit, of its libraries'", ratio, MAX_RATIO, "")


@pytest.mark.parametrize("module", ["memwatch.cli.cli", "memwatch.cli.fit"])
def test_command_imports_neither_collectors_nor_the_server(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert loaded.isdisjoint({"asyncio", "uvicorn", "sqlite3", "memwatch.core.collectors", "memwatchd.wiring"})


# Imported by the daemon only, or by one command.
DAEMON_ONLY = frozenset({
    "memwatch_monitor.history_recorder", "memwatch_monitor.incident_observer", "memwatch_monitor.loop",
    "memwatch_monitor.neighbours", "memwatch_web.asgi.access", "memwatch_web.asgi.auth", "memwatchd.state_dir",
    "memwatch.reporting.doctor.examiner", "asyncio", "starlette", "uvicorn", "pydantic", "memwatch.planning.served",
})  # fmt: skip
# Modules of the product in one reading without a daemon. Each takes about 0.5 ms.
MAX_MODULES = 240


def test_fit_without_a_daemon_imports_nothing_of_it(tmp_path: Path) -> None:
    """It reads the machine with the settings of memwatchd. It took 0.6 s with the monitor and the web server."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS[0].config))
    code = (
        f"import sys; sys.argv = ['memwatch', 'fit', {str(tmp_path)!r}]\n"
        "from memwatch.cli.cli import main; main()\nprint(*sys.modules, file=sys.stderr)"
    )
    roots = {f"MEMWATCHD_{name.upper()}": str(QUIET_MACHINE / folder) for name, folder in ROOTS.items()}
    environment = clean_environment(MEMWATCH_URL="http://127.0.0.1:1", **roots)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    loaded = set(done.stderr.split())

    assert "memwatchd.wiring" in loaded
    assert not loaded & DAEMON_ONLY
    assert len([name for name in loaded if name.startswith("memwatch")]) <= MAX_MODULES


def test_every_command_is_found_by_name() -> None:
    """Also those that are imported when they are used."""
    ctx = click.Context(memwatch)
    found = {name: memwatch.get_command(ctx, name) for name in memwatch.list_commands(ctx)}

    assert set(COMMANDS) <= set(found)
    assert all(command is not None and command.name == name for name, command in found.items())
