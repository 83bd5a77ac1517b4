"""A daemon whose configuration breaks: it watches, and each place where an operator looks says what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.broken_configurations import OF_DAEMON, TOKEN, Breakage, good
from support.daemon_process import MEMWATCHD, RunningDaemon, get, run_program, running_daemon
from support.waiting import MAX_WAIT_SECONDS, wait_until

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def see(daemon: RunningDaemon, path: str) -> Any:
    return get(daemon.port, path, BEARER).json


def read_metrics(daemon: RunningDaemon) -> dict[str, float]:
    lines = get(daemon.port, "/metrics", BEARER).text.splitlines()
    pairs = (line.split() for line in lines if line.startswith("memwatch_config_"))
    return {name.removeprefix("memwatch_config_"): float(value) for name, value in pairs}


def wait_for_metrics(daemon: RunningDaemon, problems: int) -> dict[str, float]:
    """Return the metrics of the first tick with this number of problems."""
    found: dict[str, float] = {}

    def is_there() -> bool:
        found.update(read_metrics(daemon))
        return found["problems"] == problems

    wait_until(is_there)
    return found


def problems_of(daemon: RunningDaemon) -> list[str]:
    return [one["text"] for one in see(daemon, "/api/v1/doctor")["checks"] if one["id"].startswith("config.")]


def start_of(folder: Path, text: str) -> list[str]:
    """Write the configuration, and return the options of a daemon that reads it."""
    file = folder / "own.toml"
    if text:
        file.write_text(text, errors="surrogateescape")
    return ["--config", str(file), "--state-dir", str(folder / "state")]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return what a daemon keeps of a configuration that it runs with. Its folder is called @FOLDER@."""
    folder = tmp_path_factory.mktemp("good")
    with running_daemon(folder, *start_of(folder, good(folder))) as daemon:
        figures = read_metrics(daemon)
    assert (figures["problems"], figures["last_reload_successful"]) == (0, 1)
    return (folder / "state/configuration.json").read_bytes().replace(os.fsencode(folder), b"@FOLDER@")


@pytest.mark.parametrize("broken", OF_DAEMON, ids=lambda one: one.name)
def test_daemon_watches_and_says_what_is_not_in_force(tmp_path: Path, kept: bytes, broken: Breakage) -> None:
    state = tmp_path / "state"
    state.mkdir(0o700)
    (state / "configuration.json").write_bytes(kept.replace(b"@FOLDER@", os.fsencode(tmp_path)))
    (state / "configuration.json").chmod(0o600)
    options = start_of(tmp_path, broken.apply(tmp_path))
    environ = {**broken.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(environ["NOTIFY_SOCKET"])
        manager.settimeout(MAX_WAIT_SECONDS)
        with running_daemon(tmp_path, *options, environ=environ) as daemon:
            while "STATUS=" not in (status := manager.recv(4096).decode()):
                pass
            pools = see(daemon, "/api/v1/pools")
            refused = get(daemon.port, "/api/v1/pools").status
            events = [one["text"] for one in see(daemon, "/api/v1/events") if one["kind"] == "config"]
            figures, problems = read_metrics(daemon), problems_of(daemon)
            about = get(daemon.port, "/about", BEARER).text

    assert pools
    assert refused == 401
    assert "configuration not in force" in status
    assert [one for one in problems if broken.says in one]
    assert (figures["problems"], figures["last_reload_successful"]) == (len(problems), broken.is_of_start)
    assert ("last_reload_success_timestamp_seconds" in figures) == broken.is_of_start
    assert len(events) == 1
    assert "Not in force" in about


def reload_by_unit(daemon: RunningDaemon, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of ExecReload=."""
    return run_program(MEMWATCHD, "--reload", MAINPID=str(daemon.pid), RUNTIME_DIRECTORY=str(folder))


def test_reload_fails_with_the_reason_and_a_good_one_ends_the_problem(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    options = start_of(tmp_path, good(tmp_path))
    with running_daemon(tmp_path, *options, environ={"RUNTIME_DIRECTORY": str(run)}) as daemon:
        first = read_metrics(daemon)
        start_of(tmp_path, good(tmp_path) + "[web]\n")
        refused = reload_by_unit(daemon, run)
        during, problems = wait_for_metrics(daemon, problems=1), problems_of(daemon)
        start_of(tmp_path, good(tmp_path) + "# as before\n")
        taken = reload_by_unit(daemon, run)
        after = wait_for_metrics(daemon, problems=0)
        kinds = [one["kind"] for one in see(daemon, "/api/v1/events")]
        kept = (tmp_path / "state/configuration.json").read_text()

    assert (refused.returncode, refused.stdout) == (78, "")
    assert "web is declared again, first on line 1" in refused.stderr
    assert during == {**first, "problems": 1, "last_reload_successful": 0}
    assert problems[0].startswith("a reload was refused: ")
    assert (taken.returncode, taken.stderr) == (0, "")
    assert (after["problems"], after["last_reload_successful"]) == (0, 1)
    assert after["last_reload_success_timestamp_seconds"] > first["last_reload_success_timestamp_seconds"]
    assert kinds[:2] == ["reloaded", "config"]
    assert "# as before" in kept


def test_reload_without_a_unit_names_the_command_for_it() -> None:
    ended = run_program(MEMWATCHD, "--reload", MAINPID="")

    assert ended.returncode == 78
    assert "systemctl reload memwatchd" in ended.stderr


def test_addresses_that_a_start_refused_stay_closed_until_the_next_start(tmp_path: Path) -> None:
    options = start_of(tmp_path, good(tmp_path))
    with running_daemon(tmp_path, *options):
        pass
    (tmp_path / "token").unlink()
    with running_daemon(tmp_path, *options) as daemon:
        closed = problems_of(daemon)
        start_of(tmp_path, good(tmp_path))
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for(
            "/api/v1/events", lambda found: any(one["kind"] == "reloaded" for one in found), headers=BEARER
        )
        after = problems_of(daemon)

    assert closed[0].startswith("only this machine has access, with the login of before: ")
    assert after == ["only this machine has access until memwatchd is restarted: [web] was refused at its start"]


def test_messages_for_a_receiver_that_is_off_are_kept(tmp_path: Path) -> None:
    """They are sent when its secret is back."""
    options = start_of(tmp_path, good(tmp_path))
    with running_daemon(tmp_path, *options) as daemon:
        get(daemon.port, "/api/v1/alerts/test", BEARER, method="POST")
        daemon.wait_for_log("ops")
    (tmp_path / "secret").unlink()
    with running_daemon(tmp_path, *options) as daemon:
        pass
    assert "receivers removed" not in (tmp_path / "log").read_text()


def test_recording_that_cannot_be_written_is_off(tmp_path: Path) -> None:
    options = start_of(tmp_path, f'{good(tmp_path)}[recording]\nfile = "{tmp_path}/nowhere/x"\n')
    with running_daemon(tmp_path, *options) as daemon:
        problems = problems_of(daemon)
        figures = read_metrics(daemon)
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait_for(
            "/api/v1/events", lambda found: any(one["kind"] == "reloaded" for one in found), headers=BEARER
        )
        (after,) = problems_of(daemon)

    assert problems[0].startswith("the recording is off: ")
    assert after == f"{problems[0]}; restart memwatchd when that is mended"
    assert (figures["problems"], figures["last_reload_successful"]) == (1, 1)


def test_address_that_cannot_be_used_leaves_the_others(tmp_path: Path) -> None:
    """Such as a name that DNS does not know."""
    options = ["--listen", "name.invalid:6360", "--listen", f"unix:{tmp_path}/none/memwatchd.sock"]
    with running_daemon(tmp_path, *start_of(tmp_path, good(tmp_path)), *options) as daemon:
        problems = problems_of(daemon)

    assert [one.partition(":")[0] for one in problems] == ["cannot listen on name.invalid"] * 1 + [
        "cannot listen on unix"
    ]


def test_no_address_ends_the_start(tmp_path: Path) -> None:
    """Under a service manager with a code that it restarts on: what has the port may end."""
    address = f"unix:{tmp_path}/none/memwatchd.sock"
    codes = [
        run_program(MEMWATCHD, "--listen", address, **more).returncode
        for more in ({}, {"NOTIFY_SOCKET": str(tmp_path / "notify")})
    ]

    assert codes == [78, 1]
