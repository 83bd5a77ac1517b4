"""A new alert channel needs only its settings class and one line in `CHANNELS`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from support.daemon_process import RunningDaemon, clean_environment, get, running_daemon
from support.waiting import wait_until

# Runs memwatchd with a channel added to `memwatchd.settings.alerts`. The first argument is the command.
WITH_FILES = """
import sys
from typing import Annotated
from memwatch_monitor.notify.http_post import PostResult
from memwatch_monitor.notify.http_post import Password
from memwatch.core.options import Accepts
from memwatchd.settings import alerts
from memwatchd.settings.credentials import password_from
from memwatchd.settings.keys import ContextConverter
class FileChannel:
    kind, reminder = "file", None
    def __init__(self, name, path, secret):
        self.title, self.path, self.secret = f"file {name}", path, secret
    def prepare(self): pass
    def abort(self): pass
    def body(self, notice, snapshot, sender):
        return f"{notice.rule} {notice.target}".encode()
    def send(self, message_id, body):
        with open(self.path, "ab") as file:
            file.write(body + f" {self.secret}\\n".encode())
        return PostResult(200)
class FileReceiver(alerts.ReceiverSection, frozen=True, kw_only=True):
    path: str
    secret: Annotated[Password, ContextConverter(password_from), Accepts("a password", '"env:WORD"', shown=False)]
    def create_channel(self, owners):
        return FileChannel(self.name, self.path, self.secret)
alerts.CHANNELS["files"] = FileReceiver
from memwatchd.cli import main
sys.exit(main(sys.argv[2:]))
"""
THROUGH = (sys.executable, "-c", WITH_FILES)
SECRET = "sixteen-letters-"
# Has the prefix of a setting, but is none because a secret is read from it.
VARIABLE = "MEMWATCHD_FILE_SECRET"


def config_of(folder: Path, variable: str = VARIABLE) -> str:
    return f'[[alerts.files]]\nname = "local"\npath = "{folder / "alerts"}"\nsecret = "env:{variable}"\n'


def test_new_channel_receives_the_test_message(tmp_path: Path) -> None:
    config = tmp_path / "memwatchd.toml"
    config.write_text(config_of(tmp_path))
    done = subprocess.run(
        [*THROUGH, "memwatchd", "--config", str(config), "--test-alert"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(**{VARIABLE: SECRET}),
    )

    assert (done.returncode, done.stdout) == (0, "file local: delivered\n"), done.stderr
    assert (tmp_path / "alerts").read_text().startswith("test ")


def test_new_channel_is_used_by_a_daemon_after_a_reload(tmp_path: Path) -> None:
    with running_daemon(tmp_path, through=THROUGH, environ={"WORD": SECRET}) as daemon:
        reload(daemon, tmp_path / "memwatchd.toml", config_of(tmp_path, "WORD"))
        receivers = get(daemon.port, "/api/v1/alerts/test", method="POST").json["receivers"]
        wait_until(lambda: (tmp_path / "alerts").exists())
        (receiver,) = daemon.get("/api/v1/receivers").json
        log = daemon.read_log()

    assert receivers == ["local"]
    assert (receiver["name"], receiver["kind"]) == ("local", "file")
    assert f"alerts.files.local.path: not set → {json.dumps(str(tmp_path / 'alerts'))}" in log
    assert SECRET not in log


def test_missing_key_of_a_new_channel_is_named(tmp_path: Path) -> None:
    config = tmp_path / "memwatchd.toml"
    config.write_text('[[alerts.files]]\nname = "local"\npath = "/x"\n')
    done = subprocess.run(
        [*THROUGH, "memwatchd", "--config", str(config), "--check-config"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )

    assert done.returncode == 78
    assert 'alerts.files[0].secret is missing; add for example secret = "env:WORD"' in done.stderr


def reload(daemon: RunningDaemon, file: Path, config: str) -> None:
    file.write_text(config)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("alerts.files.local.name")
