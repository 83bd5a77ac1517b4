"""The `memwatch` command, with a daemon and without one, as a process where that matters."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatch.build_info import describe
from scripts.golden import roots_arguments
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.client_process import (
    COMMANDS,
    MODULE,
    QUERIES,
    SCRIPT,
    call_memwatch,
    into_a_closed_pipe,
    memwatch,
)
from support.daemon_process import RunningDaemon, running_daemon
from support.dead_address import dead_address
from support.paths import MACHINES

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

    assert (done.returncode, done.stdout, done.stderr) == (0, describe("memwatch") + "\n", "")


def test_help_fits_a_screen_and_names_all_commands() -> None:
    """24 lines of 80. Each command has its own help; examples and exit codes are in the manual page."""
    done = call_memwatch("--help", COLUMNS="80")

    assert done.returncode == 0
    for words in (
        *COMMANDS,
        "--url",
        "--json",
        "MEMWATCH_URL",
        "http://127.0.0.1:6360",
        "man memwatch",
    ):
        assert words in done.stdout
    assert len(done.stdout.splitlines()) <= 24
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for name in COMMANDS:
        own = call_memwatch(name, "--help", COLUMNS="80")
        assert own.returncode == 0
        assert own.stdout.startswith(f"Usage: memwatch {name} [OPTIONS]")
        assert "--json" in own.stdout


def test_missing_command_prints_help_and_exits_with_2() -> None:
    done = call_memwatch()

    assert done.returncode == 2
    assert done.stdout.startswith("Usage: memwatch [OPTIONS] COMMAND")


def test_client_does_not_import_dependencies_of_the_daemon(daemon: RunningDaemon) -> None:
    """The client uses HTTP of the standard library: no web stack, no settings, no drivers."""
    code = (
        "import sys; from memwatch.cli.cli import main; main({0!r}); "
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
    done = call_memwatch(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memwatch: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_invalid_url_in_the_environment_is_reported() -> None:
    """MEMWATCH_URL is parsed like --url."""
    done = call_memwatch("status", MEMWATCH_URL="nonsense")

    assert done.returncode == 2
    assert 'the URL "nonsense"' in done.stderr


def test_status_begins_with_the_verdict_and_has_a_tree(daemon: RunningDaemon) -> None:
    """The CUDA Pool is inside System RAM: in the tree below the part that it is inside. Colours need a terminal."""
    done = memwatch("--url", daemon.url, "status")
    tree = memwatch("--url", daemon.url, "status", "--tree")
    painted = memwatch("--url", daemon.url, "status", CLICOLOR_FORCE="1", TERM="xterm")

    assert (done.returncode, done.stderr, tree.returncode, tree.stderr) == (0, "", 0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["◆ System RAM is medium: 63.6% used.", "spark-1a2b, NVIDIA DGX Spark"]
    assert "  77.4 / 121.7 GiB   63.6%  available 44.3 GiB" in done.stdout
    assert (
        "gpu0: NVIDIA GB10 (unified memory): can allocate 13.4 GiB at once, up to 44.3 GiB after reclaim" in lines
    )
    assert "│  └─ GPU and devices   62.5 GiB\n│     └─ CUDA Pool      62.5 GiB\n" in tree.stdout
    assert "\x1b[1;33m◆ System RAM is medium" in painted.stdout
    assert "\x1b" not in done.stdout + tree.stdout


def test_devices_are_printed_as_a_table(daemon: RunningDaemon) -> None:
    """The columns are id, name, architecture, headroom and state."""
    done = call_memwatch("devices", "--url", daemon.url)

    head, row, sensors, note = done.stdout.splitlines()
    assert done.returncode == 0
    assert head.split() == ["id", "name", "architecture", "can", "allocate", "state"]
    assert row.split() == ["gpu0", "NVIDIA", "GB10", "unified", "memory", "13.4", "–", "44.3", "GiB", "ok"]
    assert " °C, " in sensors
    assert note.startswith("Of a range, the lower end is free now")


def test_backends_are_printed_with_reasons(daemon: RunningDaemon) -> None:
    """✓ and ✗ with a reason each, devices below, and the recommended backend."""
    done = call_memwatch("--url", daemon.url, "backends")

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
        done = call_memwatch("--url", daemon.url, *arguments)
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
    by_flag = call_memwatch(command, "--url", unix_url(daemon))
    by_environment = call_memwatch(command, MEMWATCH_URL=unix_url(daemon))

    assert (by_flag.returncode, by_flag.stderr) == (0, "")
    assert (by_environment.returncode, by_environment.stderr) == (0, "")


def test_release_closes_and_reopens_the_driver(tmp_path: Path) -> None:
    """`memwatch release --for 10m` over a Unix socket prints the drivers and the time of reopening.

    Another one replaces it: the GPU is available again after a second. `events` lists each, the newest last.
    """
    simulator = Simulator.of(tmp_path, sample_nvml.READY["rtx-4090"])
    listen = f"--listen=unix:{tmp_path / 'socket'}"
    with running_daemon(tmp_path, listen, *simulator.roots, environ=simulator.environ, config=QUICK) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        done = call_memwatch("--url", unix_url(running), "release", "--for", "10m")
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["stalled"])
        simulator.clear_calls()
        time.sleep(1.0)
        calls = simulator.calls()
        call_memwatch("--url", unix_url(running), "release", "--for", "1s")
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        as_json = call_memwatch("--url", running.url, "release", "--json")
        newest = call_memwatch("--url", running.url, "events", "--limit", "1").stdout
        events = call_memwatch("--url", running.url, "events").stdout.splitlines()

    assert done.returncode == 0
    assert done.stdout.startswith("nvml: devices close within 1 s and reopen after 10 min, at ")
    assert done.stdout.endswith(" UTC.\n")
    assert calls == []
    assert json.loads(as_json.stdout) == {"released": ["nvml"], "seconds": 60.0}
    assert newest.split()[3:12] == ["release", "GPU", "drivers", "released", "for", "60", "s:", "nvml,", "by"]
    assert events[-1] == newest.rstrip("\n")
    assert "started" in events[0]


def test_release_without_a_driver_succeeds(tmp_path: Path) -> None:
    """A machine without a GPU gets a message and exit code 0."""
    with running_daemon(tmp_path, *roots_arguments("zram-laptop")) as running:
        done = call_memwatch("--url", running.url, "release")

    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "nothing to release" in done.stdout


@pytest.mark.parametrize("command", ["status", "devices", "backends"])
def test_without_a_daemon_this_machine_is_read_with_a_notice(command: str) -> None:
    """The notice is on stderr, so that --json prints valid JSON."""
    url = f"http://{dead_address()}"

    done = memwatch(command, MEMWATCH_URL=url)
    as_json = memwatch(command, "--json", MEMWATCH_URL=url)

    assert done.returncode == as_json.returncode == 0
    assert done.stdout
    assert done.stderr == (
        f"memwatch: cannot reach memwatchd at {url} (connection refused); reading this machine directly\n"
    )
    json.loads(as_json.stdout)


@pytest.mark.parametrize("arguments", ["--url {} status", "status --url {}", "--url {} top", "--url {} watch"])
def test_dead_address_of_this_machine_is_an_error_if_it_was_given(arguments: str) -> None:
    """This machine may be another one: a forwarded port is an address of this one."""
    url = f"http://{dead_address()}"
    done = call_memwatch(*arguments.format(url).split())

    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot reach memwatchd at {url} (connection refused)" in done.stderr
    assert "reading this machine" not in done.stderr


def test_direct_reading_matches_the_daemon(daemon: RunningDaemon) -> None:
    """The same machine read without a daemon has the same fields, host and size of System RAM."""
    folder = MACHINES / "gb10"
    roots = {f"MEMWATCHD_{name.upper()}FS": str(folder / name) for name in ("proc", "sys", "root")}
    directly = memwatch("status", "--json", MEMWATCH_URL=f"unix:{daemon.log}.gone", **roots)
    asked = memwatch("status", "--json", "--url", daemon.url)

    ours, theirs = json.loads(directly.stdout), json.loads(asked.stdout)
    assert ours.keys() == theirs.keys()
    assert ours["host"] == theirs["host"] == "spark-1a2b"
    assert ours["pools"][0]["size_bytes"] == theirs["pools"][0]["size_bytes"]


def test_invalid_settings_are_reported_without_a_daemon() -> None:
    """Direct reading uses the daemon's settings. Errors in them are reported without a traceback."""
    url = f"http://{dead_address()}"
    done = memwatch("status", MEMWATCH_URL=url, MEMWATCHD_SAMPLING_INTERVAL="soon")

    assert done.returncode == 1
    assert "MEMWATCHD_SAMPLING_INTERVAL" in done.stderr
    assert "Traceback" not in done.stderr


def test_ascii_terminal_gets_escapes() -> None:
    done = memwatch("backends", MEMWATCH_URL=f"http://{dead_address()}", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "\\u2713 CPU" in done.stdout


def test_closed_pipe_causes_no_traceback() -> None:
    done = into_a_closed_pipe([*SCRIPT, "--help"])

    assert (done.returncode, done.stderr) == (1, "")


def test_check_has_the_exit_codes_of_nagios_plugins(daemon: RunningDaemon) -> None:
    """0, 1, 2 by level; 3 without a daemon, for an unknown target, and for an invalid command line."""
    dead = f"http://{dead_address()}"
    done = [
        call_memwatch("--url", url, "check", *arguments)
        for url, *arguments in (
            (daemon.url,),
            (daemon.url, "--warn-on", "medium"),
            (daemon.url, "--fail-on", "medium", "--target", "ram"),
            (daemon.url, "--target", "gpu9"),
            (dead,),
            (daemon.url, "--fail-on", "low"),
            (daemon.url, "--fail-on", "medium", "--warn-on", "critical"),
        )
    ]

    assert [one.returncode for one in done] == [0, 1, 2, 3, 3, 3, 3]
    assert (
        done[0].stdout
        == "MEMWATCH OK - System RAM is medium: 63.6% used | 'ram'=63.6%;80;95;0;100 'ram_level'=1;1;2;0;3\n"
    )
    assert done[4].stdout.startswith(f"MEMWATCH UNKNOWN - cannot reach memwatchd at {dead}")
    assert "--warn-on is critical, above --fail-on (medium)" in done[6].stderr
    assert "'ram'=63.6%;60;60;0;100 'ram_level'=1;0;0;0;3" in done[2].stdout
    as_json = json.loads(call_memwatch("--url", daemon.url, "--json", "check", "--warn-on", "medium").stdout)
    assert (as_json["status"], as_json["exit_code"]) == ("warning", 1)


def test_owners_without_systemd_are_users_or_processes(tmp_path: Path) -> None:
    """A virtual machine without units: the default shows users, and a named grouping says that none has one."""
    state = (MACHINES / "h100-firecracker/nvml.state").read_text()
    used = f"gpu.0.memory.used = {32 << 30}\ngpu.0.memory.free = {85_017_493_504 - (32 << 30)}\n"
    state = re.sub(r"gpu\.0\.memory\.used = .*\ngpu\.0\.memory\.free = .*\n", used, state)
    held = f"gpu.0.compute = 1002:{31 << 30}\n"
    simulator = Simulator.of_state(tmp_path, state.replace("gpu.0.compute = \n", held))
    roots = roots_arguments("h100-firecracker")
    with running_daemon(tmp_path, "--interval", "200ms", *roots, environ=simulator.environ) as daemon:
        daemon.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
        by_default, by_unit, by_process = [
            call_memwatch("owners", *words, "--url", daemon.url) for words in ([], ["--by=unit"], ["--by=process"])
        ]
        as_json = call_memwatch("owners", "--by=process", "--limit=1", "--json", "--url", daemon.url)

    head, root = by_default.stdout.splitlines()
    assert head.split()[:2] == ["user", "processes"]
    assert root.split()[:2] == ["root", "6"]
    assert root.endswith("VRAM 31.0 GiB")
    assert by_unit.stdout == "No process has a unit; --by process lists them.\n"
    largest = by_process.stdout.splitlines()[1]
    assert largest.split()[:2] == ["1002", "process-3"]
    assert largest.endswith("VRAM 31.0 GiB")
    assert json.loads(as_json.stdout)[0]["pid"] == 1002


@pytest.mark.parametrize(
    ("command", "words"), [("owners", "footprint"), ("growth", "grew"), ("alerts", "No alerts.")]
)
def test_reports_of_the_daemon_are_tables_or_json(daemon: RunningDaemon, command: str, words: str) -> None:
    """`last-words` of a daemon that ended cleanly, or keeps no files, has none and the reason."""
    done, as_json = (
        call_memwatch("--url", daemon.url, command),
        call_memwatch("--url", daemon.url, command, "--json"),
    )
    none = call_memwatch("--url", daemon.url, "last-words")

    assert (done.returncode, as_json.returncode, none.returncode) == (0, 0, 1)
    assert words in done.stdout or "growth" in done.stdout
    assert json.loads(as_json.stdout) is not None
    assert "No last words" in none.stderr
