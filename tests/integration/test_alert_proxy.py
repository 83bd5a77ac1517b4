"""Notifications of a daemon and of --test-alert through a proxy, and its password in no output."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import urlsplit

from support.daemon_process import MEMWATCHD, get, run_program, running_daemon
from support.http_proxy import LOGIN, PASSWORD, USER, proxying
from support.login_settings import basic
from support.settings_sample import SECRET
from support.waiting import wait_until
from support.webhook_receiver import receiving

NAME = "hooks.example.org"


def config_for(proxy: str) -> str:
    receiver = f'[[alerts.webhooks]]\nname = "ops"\nurl = "http://{NAME}/hook/token"\nsecret = "{SECRET}"\n'
    return f'[alerts]\nproxy = "{proxy}"\n{receiver}'


def test_daemon_sends_through_a_proxy_and_reloads_it(tmp_path: Path) -> None:
    """At first the proxy is dead. The queued notification goes through the new one after a reload."""
    file = tmp_path / "memwatchd.toml"
    with (
        receiving(200) as site,
        proxying({NAME: urlsplit(site.url).port or 0}, needs_login=True) as proxy,
        running_daemon(tmp_path, config=config_for(f"http://{LOGIN}127.0.0.1:1")) as daemon,
    ):
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        daemon.wait_for_log("the proxy http://127.0.0.1:1: connection refused")
        file.write_text(config_for(proxy.url(LOGIN)))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log(f'alerts.proxy: "http://127.0.0.1:1" → "{proxy.url()}"')
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        wait_until(lambda: site.deliveries)
        shown = daemon.read_log() + daemon.get("/api/v1/receivers").text + daemon.get("/alerts").text

    assert "the proxy http://127.0.0.1:1" in shown
    assert not any(
        secret in shown for secret in (PASSWORD, LOGIN, "word%40", basic(USER, PASSWORD)["Authorization"])
    )
    assert proxy.requests[0].target == f"http://{NAME}/hook/token"


def test_commands_report_the_proxy_without_its_password(tmp_path: Path) -> None:
    file = tmp_path / "memwatchd.toml"
    with proxying({}, needs_login=True) as proxy:
        file.write_text(config_for(proxy.url("user:hunter2@")))
        file.chmod(0o600)
        sent = run_program(MEMWATCHD, "--config", file, "--test-alert")
        checked = run_program(MEMWATCHD, "--config", file, "--check-config")

    assert sent.returncode == 1
    assert f"the proxy {proxy.url()} answered 407, it refuses the user or password" in sent.stdout
    assert f'"{proxy.url()}"' in checked.stdout
    assert "hunter2" not in sent.stdout + sent.stderr + checked.stdout + checked.stderr
