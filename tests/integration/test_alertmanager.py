"""Debian's Alertmanager as a receiver: it groups alerts, notifies its webhook and gets firing alerts again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml
from msgspec import convert
from msgspec.structs import replace

from memwatch_monitor.notify.alertmanager import AlertmanagerChannel, alerts_endpoint
from memwatch_monitor.notify.http_post import Poster, parse_endpoint
from support.alert_machine import QUICK, AlertMachine
from support.bound_process import start_bound
from support.daemon_process import get, running_daemon
from support.free_ports import free_port
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving
from support.webhook_samples import new_receiver, notice, put_notices

NEEDED_PROGRAMS = ("prometheus-alertmanager",)

CONFIG = """
global:
  resolve_timeout: {timeout}
route:
  receiver: ours
  group_by: [alertname]
  group_wait: 0s
  group_interval: 1s
receivers:
  - name: ours
    webhook_configs:
      - url: "{url}"
        send_resolved: true
"""


PASSWORD = "correct horse"


@contextmanager
def alertmanager(folder: Path, url: str, timeout: str = "5m", password: str = "") -> Iterator[int]:
    """Run Alertmanager with `url` as its webhook; yield its port. A password is required of user `ada` if given."""
    port, file = free_port(), folder / "alertmanager.yml"
    file.write_text(CONFIG.format(url=url, timeout=timeout))
    command = [
        "prometheus-alertmanager",
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    if password:
        users = {"ada": bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}
        (folder / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": users}))
        command.append(f"--web.config.file={folder / 'web.yml'}")
    with start_bound(command, subprocess.DEVNULL, subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(port))
            yield port
        finally:
            process.terminate()


def answers(port: int) -> bool:
    try:
        return get(port, "/-/ready").status in (200, 401)
    except OSError:
        return False


def alerts_in(site: Site) -> list[dict[str, Any]]:
    return [alert for delivery in site.deliveries for alert in json.loads(delivery.body)["alerts"]]


def test_alert_and_resolve_reach_the_webhook_behind_alertmanager(tmp_path: Path) -> None:
    """From full memory to the webhook behind a real Alertmanager, and the resolve by the same path."""
    machine = AlertMachine.of(tmp_path)
    with receiving(200) as site, alertmanager(tmp_path, site.url) as port:
        config = QUICK.format(pending="400ms") + (
            f'[[alerts.alertmanagers]]\nname = "am"\nurl = "http://127.0.0.1:{port}/"\nresend = "1s"\n'
            '[labels]\ncluster = "west"\n'
        )
        with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            machine.fill()
            wait_until(lambda: bool(alerts_in(site)))
            (listed,) = get(port, "/api/v2/alerts").json
            machine.empty()
            wait_until(lambda: alerts_in(site)[-1]["status"] == "resolved")
            (receiver,) = daemon.get("/api/v1/receivers").json

    firing, resolved = alerts_in(site)[0], alerts_in(site)[-1]
    assert firing["status"] == "firing"
    assert firing["labels"] == resolved["labels"] == listed["labels"]
    assert firing["labels"] == {
        "alertname": "MemoryCritical",
        "cluster": "west",
        "instance": f"{daemon_host(machine)}:{daemon.port}",
        "job": "memwatchd",
        "severity": "critical",
        "target": "ram",
    }
    assert firing["annotations"]["summary"].endswith("memory is critical (System RAM)")
    assert "used" in firing["annotations"]["description"]
    started, ended = (convert(resolved[name], datetime) for name in ("startsAt", "endsAt"))
    assert firing["startsAt"] == resolved["startsAt"]
    assert started < ended
    assert (receiver["kind"], receiver["outcomes"]["delivered"], receiver["pending"]) == ("alertmanager", 2, 0)


def test_alertmanager_basic_auth_delivers_with_the_right_password(tmp_path: Path) -> None:
    """The right password delivers and repeats. A wrong one gets 401, and the notification stays queued."""
    machine, right, wrong = AlertMachine.of(tmp_path), tmp_path / "right", tmp_path / "wrong"
    right.write_text(PASSWORD + "\n")
    wrong.write_text("hunter2")
    with receiving(200) as site, alertmanager(tmp_path, site.url, password=PASSWORD) as port:
        config = QUICK.format(pending="400ms") + "".join(
            f'[[alerts.alertmanagers]]\nname = "{file.name}"\nurl = "http://127.0.0.1:{port}"\nresend = "1s"\n'
            f'user = "ada"\nsecret = "file:{file}"\n'
            for file in (right, wrong)
        )
        with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            machine.fill()
            wait_until(lambda: bool(alerts_in(site)))
            receivers = daemon.wait_for(
                "/api/v1/receivers", lambda found: [one["outcomes"]["retry"] > 0 for one in found] == [False, True]
            )
            log = daemon.read_log()

    assert [(one["name"], one["outcomes"]["delivered"], one["pending"]) for one in receivers] == [
        ("right", 1, 0),
        ("wrong", 0, 1),
    ]
    assert "401" in log
    assert "hunter2" not in log


def daemon_host(machine: AlertMachine) -> str:
    return (machine.folder / "proc/sys/kernel/hostname").read_text().strip()


def channel_to(url: str, repeat_seconds: float, ahead_seconds: float = 0.0) -> AlertmanagerChannel:
    def wall() -> float:
        return time.time() + ahead_seconds

    endpoint = alerts_endpoint(parse_endpoint(url))
    return AlertmanagerChannel("am", endpoint, Poster(endpoint, 5.0, False, None, wall), repeat_seconds, wall)


def test_repeated_alert_outlives_the_resolve_timeout(tmp_path: Path) -> None:
    """Alertmanager resolves an alert that long after its last update. Each repetition moves that time."""
    with receiving(200) as site, alertmanager(tmp_path, site.url) as port:
        made = new_receiver(channel_to(f"http://127.0.0.1:{port}", 0.5))
        made.start()
        put_notices(made, notice(1))
        wait_until(lambda: made.counts()["delivered"] == 1)
        first, end = update_of(port)
        wait_until(lambda: update_of(port)[1] - end >= timedelta(seconds=1))
        still, _ = update_of(port)
        put_notices(made, notice(2, firing=False))
        wait_until(lambda: get(port, "/api/v2/alerts").json == [])
        wait_until(lambda: alerts_in(site)[-1]["status"] == "resolved")
        made.close()

    assert end - convert(first["updatedAt"], datetime) == timedelta(minutes=5)
    assert (still["labels"]["target"], still["startsAt"]) == ("ram", first["startsAt"])
    assert {alert["status"] for alert in alerts_in(site)[:-1]} == {"firing"}


def update_of(port: int) -> tuple[dict[str, Any], datetime]:
    """Return the only alert of Alertmanager, and the time at which it is resolved without another update."""
    (alert,) = get(port, "/api/v2/alerts").json
    return alert, convert(alert["endsAt"], datetime)


def test_late_one_off_event_fires_and_expires(tmp_path: Path) -> None:
    """An OOM kill that is delivered an hour late fires in Alertmanager and ends by its resolve timeout."""
    an_hour_ago = time.time() - 3600.0
    killed = replace(notice(1, target="kernel", rule="kernel.oom_kill"), unix=an_hour_ago, fact=True)
    with receiving(200) as site, alertmanager(tmp_path, site.url, timeout="2s") as port:
        made = new_receiver(channel_to(f"http://127.0.0.1:{port}", 0.5))
        made.start()
        put_notices(made, replace(killed, started_unix=an_hour_ago))
        wait_until(lambda: bool(alerts_in(site)))
        wait_until(lambda: alerts_in(site)[-1]["status"] == "resolved")
        made.close()

    first = alerts_in(site)[0]
    assert (first["status"], first["labels"]["alertname"]) == ("firing", "MemoryOOMKill")


@pytest.mark.parametrize("corrected", [False, True])
def test_clock_two_days_ahead_delays_no_alert(tmp_path: Path, corrected: bool) -> None:
    """Sent while our clock is wrong, or after it is corrected: the alert fires and resolves."""
    ahead = 2 * 86_400.0
    began = time.time() + ahead
    with receiving(200) as site, alertmanager(tmp_path, site.url) as port:
        made = new_receiver(channel_to(f"http://127.0.0.1:{port}", 60.0, 0.0 if corrected else ahead))
        made.start()
        put_notices(made, replace(notice(1), unix=began, started_unix=began))
        wait_until(lambda: bool(alerts_in(site)))
        put_notices(made, replace(notice(2, firing=False), unix=began + 5.0, started_unix=began))
        wait_until(lambda: alerts_in(site)[-1]["status"] == "resolved")
        made.close()

    assert alerts_in(site)[0]["status"] == "firing"
    assert made.counts()["retry"] == 0


def test_firing_alerts_are_repeated_in_one_request() -> None:
    """Two firing alerts and a resolved one form one array, sent to Alertmanager's API path."""
    with receiving(200) as site:
        made = new_receiver(channel_to(site.url.partition("/hook")[0] + "/alertmanager/", 0.3))
        made.start()
        put_notices(made, notice(1), notice(2, target="vram0"), notice(3, target="vram1"))
        wait_until(lambda: made.counts()["delivered"] == 3)
        put_notices(made, notice(4, firing=False, target="vram1"))
        wait_until(lambda: made.counts()["delivered"] == 4)
        wait_until(lambda: len(site.deliveries) >= 6)
        made.close()

    again = json.loads(site.deliveries[-1].body)
    assert {delivery.path for delivery in site.deliveries} == {"/alertmanager/api/v2/alerts"}
    assert [(alert["labels"]["target"], "endsAt" in alert) for alert in again] == [
        ("ram", False),
        ("vram0", False),
        ("vram1", True),
    ]
