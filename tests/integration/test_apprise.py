"""The installed Apprise library as a receiver: it notifies a local server, and secrets stay out of the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memwatch_monitor.notify.apprise import AppriseChannel, load_service
from support.http_proxy import proxying
from support.settings_sample import problems_from, settings_from
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving
from support.webhook_samples import new_receiver, notice, put_notices


def channel_to(site: Site) -> AppriseChannel:
    return AppriseChannel("chat", load_service(site.url.replace("http://", "json://").replace("?key=value", "")))


def test_apprise_delivers_title_and_text() -> None:
    """The title names the alert; the text has the reason, the values and the largest processes."""
    with receiving(200) as site:
        made = new_receiver(channel_to(site))
        made.start()
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["delivered"] == 1)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["delivered"] == 2)
        made.close()

    firing, resolved = (json.loads(delivery.body) for delivery in site.deliveries)
    assert firing["title"] == "spark-1: memory is critical (System RAM)"
    assert firing["type"] == "failure"
    assert "96.2% used" in firing["message"]
    assert "largest processes: " in firing["message"]
    assert resolved["title"] == "spark-1: resolved: memory is critical (System RAM)"
    assert resolved["type"] == "success"


def test_apprise_failure_is_retried_and_logs_only_the_status(caplog: pytest.LogCaptureFixture) -> None:
    """Neither path nor token is logged."""
    with receiving(500, (302, {"Location": "http://169.254.169.254/"}), 200) as site:
        made = new_receiver(channel_to(site))
        made.start()
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["delivered"] == 1)
        made.close()

    assert made.counts()["retry"] == 2
    assert "apprise chat (JSON): answered 500; retrying in " in caplog.text
    assert "token" not in caplog.text


def config_for(url: str) -> str:
    return f'[[alerts.apprise]]\nname = "chat"\nurl = "{url}"\n'


def test_apprise_url_is_checked_and_hidden(tmp_path: Path) -> None:
    """An unknown URL is rejected when the settings are read, and never logged."""
    settings = settings_from(tmp_path, config_for("json://localhost/hushed-word"))
    problems = problems_from(tmp_path, config_for("nonsense://secret-token/x"))
    missing = problems_from(tmp_path, config_for("env:NOT_SET"))

    assert "hushed-word" not in repr(settings)
    assert "is not a URL that Apprise supports" in problems[0]
    assert "secret-token" not in problems[0]
    assert "names the environment variable NOT_SET, which is not set" in missing[0]


def test_missing_apprise_is_reported_with_the_install_command(tmp_path: Path) -> None:
    """The [[alerts.apprise]] table is rejected with exit code 78."""
    (tmp_path / "apprise.py").write_text('raise ModuleNotFoundError("No module named apprise", name="apprise")\n')
    file = tmp_path / "chat.toml"
    file.write_text(config_for("json://localhost/"))
    file.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "memwatchd", "--config", str(file), "--check-config"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 78
    assert "pip install apprise" in done.stderr


def test_apprise_uses_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apprise opens its own connections, through the library requests."""
    with (
        receiving(200) as site,
        proxying({"chat.example.org": int(site.url.split(":")[2].partition("/")[0])}) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url())
        made = new_receiver(AppriseChannel("chat", load_service("json://chat.example.org/hook")))
        made.start()
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["delivered"] == 1)
        made.close()

    assert [(one.method, one.target) for one in proxy.requests] == [("POST", "http://chat.example.org/hook")]
    assert len(site.deliveries) == 1
