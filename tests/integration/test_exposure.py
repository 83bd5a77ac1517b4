"""A reload that changes access: command lines, the warning, and settings that are safe after a restart only."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.certificates import self_signed
from support.daemon_process import RunningDaemon, running_daemon
from support.login_settings import BEARER, login_config
from support.waiting import wait_until

COMMANDS = "[processes]\ncommand_lines = true\ninterval = '1s'\ntop = 1000\n"
MARK = "a-mark-in-the-command-line"
WARNING = "no login: any client that reaches 0.0.0.0:0 can read all data"


@contextmanager
def marked_process() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", MARK])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def reload_with(daemon: RunningDaemon, folder: Path, config: str, log: str) -> None:
    (folder / "memwatchd.toml").write_text(config)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log(log)


@pytest.mark.host
def test_command_lines_are_hidden_at_once_after_a_reload_to_insecure(tmp_path: Path) -> None:
    """In every answer, and the warning of the start is logged again. They return with the login."""
    login = login_config(tmp_path)
    listen = ("--listen", "0.0.0.0:0")
    with (
        marked_process(),
        running_daemon(tmp_path, *listen, config=login + COMMANDS, watches_this_machine=True) as daemon,
    ):
        wait_until(lambda: MARK in daemon.get("/api/v1/processes", **BEARER).text)
        assert WARNING not in daemon.read_log()

        reload_with(daemon, tmp_path, f"[web]\ninsecure = true\n{COMMANDS}", WARNING)
        answers = [daemon.get(path).text for path in ("/api/v1/processes", "/api/v1/snapshot", "/processes") * 20]
        assert not [answer for answer in answers if MARK in answer]
        seen = daemon.snapshot()["seq"]
        daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] > seen + 2)
        assert MARK not in daemon.get("/api/v1/processes").text

        reload_with(daemon, tmp_path, login + COMMANDS, "no TLS: passwords and tokens reach 0.0.0.0:0")
        wait_until(lambda: MARK in daemon.get("/api/v1/processes", **BEARER).text)
        assert daemon.get("/api/v1/processes").status == 401


def test_reload_to_client_certificates_that_start_later_is_rejected(tmp_path: Path) -> None:
    """The login would end at once, but certificates are demanded from the next start on only."""
    cert = self_signed(tmp_path)
    config = f"[web.tls]\ncert_file = '{cert}'\nclient_ca_file = '{cert}'\n"
    with running_daemon(tmp_path, "--listen", "0.0.0.0:0", config=login_config(tmp_path)) as daemon:
        reload_with(daemon, tmp_path, config, "reload failed, keeping the old settings: ")

        assert daemon.get("/metrics").status == 401
        assert daemon.get("/metrics", **BEARER).status == 200
        assert "web.tls.client_ca_file change at the next start only" in daemon.read_log()
