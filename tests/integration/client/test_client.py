"""The `memwatch` command as a process, with a daemon and without one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatch import __version__
from scripts.golden import roots_arguments
from support import sample_nvml
from support.client_process import COMMANDS, MODULE, QUERIES, SCRIPT, into_a_closed_pipe, memwatch
from support.daemon_process import RunningDaemon, free_port, running_daemon
from support.nvml_machine import Simulator
from support.paths import MACHINES
from support.waiting import Stopwatch

QUICK = '[collectors.nvml]\nrestart_after = "1s"\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon on a GB10 with a simulated driver. It also listens on a Unix socket."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    listen = f"--listen=unix:{folder / 'socket'}"
    with running_daemon(folder, listen, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def unix_url(daemon: RunningDaemon) -> str:
    return f"unix:{daemon.log.with_name('socket')}"


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
def test_version_is_one_line(command: list[str]) -> None:
    """--version prints name and version, installed or as a module."""
    done = memwatch("--version", command=command)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"memwatch {__version__}\n", "")


def test_help_lists_commands_url_examples_and_exit_codes() -> None:
    """Each command has its own help."""
    done = memwatch("--help", COLUMNS="80")

    assert done.returncode == 0
    for words in (
        *COMMANDS,
        "--url",
        "--json",
        "MEMWATCH_URL",
        "Examples:",
        "Exit codes:",
        "http://127.0.0.1:6360",
    ):
        assert words in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for name in COMMANDS:
        own = memwatch(name, "--help", COLUMNS="80")
        assert own.returncode == 0
        assert own.stdout.startswith(f"Usage: memwatch {name} [OPTIONS]")
        assert "--json" in own.stdout


def test_missing_command_prints_help_and_exits_with_2() -> None:
    done = memwatch()

    assert done.returncode == 2
    assert done.stdout.startswith("Usage: memwatch [OPTIONS] COMMAND")


def test_client_does_not_import_dependencies_of_the_daemon(daemon: RunningDaemon) -> None:
    """The client uses HTTP of the standard library: no web stack, no settings, no drivers."""
    code = (
        "import sys; from memwatch.client.cli import main; main({0!r}); "
        "heavy = ('fastapi', 'uvicorn', 'pydantic', 'jinja2', 'psutil', 'pynvml', 'pyopencl'); "
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )

    done = memwatch(command=[sys.executable, "-c", code.format(["--url", daemon.url, "status"])])

    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "--nonsense"),
        (["statsu"], "statsu"),
        (["status", "surplus"], "surplus"),
        (["--url", "gpu7:6360", "status"], 'the URL "gpu7:6360" is not http://HOST:PORT'),
        (["status", "--url", "unix:relative"], "for example http://127.0.0.1:6360"),
        (["status", "--url", "unix:/" + "x" * 200], "longer than the 103 bytes"),
        (["release", "--for", "soon"], '--for is "soon", which is not a duration from 1s to 1h; for example 60s'),
        (["release", "--for", "0.5s"], '--for is "0.5s"'),
        (["release", "--for", "2h"], '--for is "2h"'),
        (["release", "--for", ""], '--for is ""'),
        (["events", "--limit", "0"], "--limit"),
        (["events", "--limit", "many"], "--limit"),
    ],
)
def test_invalid_command_line_prints_one_line_and_exits_with_2(arguments: list[str], words: str) -> None:
    """The line on stderr names the mistake, with a valid value."""
    done = memwatch(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memwatch: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_invalid_url_in_the_environment_is_reported() -> None:
    """MEMWATCH_URL is parsed like --url."""
    done = memwatch("status", MEMWATCH_URL="nonsense")

    assert done.returncode == 2
    assert 'the URL "nonsense"' in done.stderr


def test_status_shows_the_tree_of_a_unified_machine(daemon: RunningDaemon) -> None:
    """The CUDA Pool as a subset of System RAM, the pressure level, and the GPU's headroom."""
    done = memwatch("--url", daemon.url, "status")

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "spark-1a2b, NVIDIA DGX Spark"
    assert "System RAM             121.7 GiB" in lines
    assert "├─ of which CUDA Pool   62.5 GiB" in lines
    assert "System RAM is medium: 63.6% used." in lines
    assert (
        "gpu0: NVIDIA GB10 (unified memory): can allocate 13.4 GiB at once, up to 44.3 GiB after reclaim" in lines
    )


def test_devices_are_printed_as_a_table(daemon: RunningDaemon) -> None:
    """The columns are id, name, architecture, headroom and state."""
    done = memwatch("devices", "--url", daemon.url)

    head, row, sensors, note = done.stdout.splitlines()
    assert done.returncode == 0
    assert head.split() == ["id", "name", "architecture", "can", "allocate", "state"]
    assert row.split() == ["gpu0", "NVIDIA", "GB10", "unified", "memory", "13.4", "–", "44.3", "GiB", "ok"]
    assert " °C, " in sensors
    assert note.startswith("A range is what is free at once")


def test_backends_are_printed_with_reasons(daemon: RunningDaemon) -> None:
    """✓ and ✗ with a reason each, devices below, and the recommended backend."""
    done = memwatch("--url", daemon.url, "backends")

    lines = done.stdout.splitlines()
    marks = {line.split()[1]: line[0] for line in lines if " — " in line and line[0] in "✓✗?"}
    assert done.returncode == 0
    assert marks == {"CPU": "✓", "CUDA": "✗", "ROCm": "✗", "Metal": "✗", "OpenCL": "✗", "Vulkan": "✗"}
    assert any(line.startswith("✗ CUDA — libcuda.so.1 is not installed") for line in lines)
    assert any(line.startswith("    gpu0: NVIDIA GB10: 121.7 GiB of unified memory, can") for line in lines)
    assert "Recommended: CPU — no backend supports a GPU of this machine" in lines


@pytest.mark.parametrize("command", QUERIES)
def test_json_is_the_response_of_the_daemon(command: str, daemon: RunningDaemon) -> None:
    """--json before or after the command prints the daemon's data on one line."""
    for arguments in (["--json", command], [command, "--json"]):
        done = memwatch("--url", daemon.url, *arguments)
        found: Any = json.loads(done.stdout)

        assert (done.returncode, done.stdout.count("\n")) == (0, 1)
        if command == "status":
            assert found["pools"][0]["id"] == "ram"
        if command == "devices":
            assert found[0]["name"] == "NVIDIA GB10"
        if command == "backends":
            assert found["recommended"] == "cpu"
        if command == "events":
            assert "started" in {event["kind"] for event in found}


@pytest.mark.parametrize("command", QUERIES)
def test_unix_socket_url_is_supported(command: str, daemon: RunningDaemon) -> None:
    """unix:/PATH, as an option and in the environment. The Host check accepts it."""
    by_flag = memwatch(command, "--url", unix_url(daemon))
    by_environment = memwatch(command, MEMWATCH_URL=unix_url(daemon))

    assert (by_flag.returncode, by_flag.stderr) == (0, "")
    assert (by_environment.returncode, by_environment.stderr) == (0, "")


def test_release_closes_and_reopens_the_driver(tmp_path: Path) -> None:
    """`memwatch release --for 6s` over a Unix socket prints the drivers and the time of reopening.

    The GPU is available again afterwards. `events` lists the release, the newest event last.
    """
    simulator = Simulator.of(tmp_path, sample_nvml.READY["rtx-4090"])
    listen = f"--listen=unix:{tmp_path / 'socket'}"
    with running_daemon(tmp_path, listen, *simulator.roots, environ=simulator.environ, config=QUICK) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        done = memwatch("--url", unix_url(running), "release", "--for", "6s")
        watch = Stopwatch(running.pid)
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["stalled"])
        released = watch.seconds
        simulator.clear_calls()
        time.sleep(1.0)
        calls = simulator.calls()
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        as_json = memwatch("--url", running.url, "release", "--json")
        newest = memwatch("--url", running.url, "events", "--limit", "1").stdout
        events = memwatch("--url", running.url, "events").stdout.splitlines()

    assert done.returncode == 0
    assert released < 2.5
    assert done.stdout.startswith("nvml: devices close within 1 s and reopen after 6.0 s, at ")
    assert done.stdout.endswith(" UTC.\n")
    assert calls == []
    assert json.loads(as_json.stdout) == {"released": ["nvml"], "seconds": 60.0}
    assert newest.split()[1:10] == ["release", "GPU", "drivers", "released", "for", "60", "s:", "nvml,", "by"]
    assert events[-1] == newest.rstrip("\n")
    assert "started" in events[0]


def test_release_without_a_driver_succeeds(tmp_path: Path) -> None:
    """A machine without a GPU gets a message and exit code 0."""
    with running_daemon(tmp_path, *roots_arguments("zram-laptop")) as running:
        done = memwatch("--url", running.url, "release")

    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "nothing to release" in done.stdout


@pytest.mark.parametrize("command", ["status", "devices", "backends"])
def test_without_a_daemon_this_machine_is_read_with_a_notice(command: str) -> None:
    """The notice is on stderr, so that --json prints valid JSON."""
    url = f"http://127.0.0.1:{free_port()}"

    done = memwatch(command, "--url", url)
    as_json = memwatch(command, "--url", url, "--json")

    assert done.returncode == as_json.returncode == 0
    assert done.stdout
    assert done.stderr == (
        f"memwatch: cannot reach memwatchd at {url} (connection refused); reading this machine directly\n"
    )
    json.loads(as_json.stdout)


def test_direct_reading_matches_the_daemon(daemon: RunningDaemon) -> None:
    """The same machine read without a daemon has the same fields, host and size of System RAM."""
    folder = MACHINES / "gb10"
    roots = {f"MEMWATCHD_{name.upper()}FS": str(folder / name) for name in ("proc", "sys", "root")}
    directly = memwatch("status", "--json", "--url", f"unix:{daemon.log}.gone", **roots)
    asked = memwatch("status", "--json", "--url", daemon.url)

    ours, theirs = json.loads(directly.stdout), json.loads(asked.stdout)
    assert ours.keys() == theirs.keys()
    assert ours["host"] == theirs["host"] == "spark-1a2b"
    assert ours["pools"][0]["size_bytes"] == theirs["pools"][0]["size_bytes"]


def test_invalid_settings_are_reported_without_a_daemon() -> None:
    """Direct reading uses the daemon's settings. Errors in them are reported without a traceback."""
    done = memwatch("status", "--url", f"http://127.0.0.1:{free_port()}", MEMWATCHD_SAMPLING_INTERVAL="soon")

    assert done.returncode == 1
    assert "MEMWATCHD_SAMPLING_INTERVAL" in done.stderr
    assert "Traceback" not in done.stderr


def test_ascii_terminal_gets_escapes() -> None:
    done = memwatch("backends", "--url", f"http://127.0.0.1:{free_port()}", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "\\u2713 CPU" in done.stdout


def test_closed_pipe_causes_no_traceback() -> None:
    done = into_a_closed_pipe([*SCRIPT, "--help"])

    assert (done.returncode, done.stderr) == (1, "")
