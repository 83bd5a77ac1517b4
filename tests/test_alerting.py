"""Memory turns critical on a machine, and a signed message leaves it; it recovers, and another one does."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from standardwebhooks import Webhook

from daemon_process import running_daemon
from machine_folders import FOLDER
from webhook_site import Delivery, Site, receiving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw0aGq3o8p3yM="
CONFIG = """
[pressure]
clear_after = "0s"

[alerts]
pending_for = "400ms"
resolve_after = "400ms"

[[alerts.webhooks]]
name = "operators"
url = "{url}"
secret = "{secret}"
"""


def set_available(procfs: Path, kib: int) -> None:
    """Rewrite the simulated meminfo at one stroke, as the kernel does."""
    lines = (FOLDER / "workstation/proc/meminfo").read_text().splitlines(keepends=True)
    width = len("MemAvailable:   ")
    changed = [
        f"{line[:width]}{kib:>{len(line) - width - 4}} kB\n" if "MemAvail" in line else line for line in lines
    ]
    with (procfs / "meminfo").open("r+b", buffering=0) as meminfo:
        meminfo.write("".join(changed).encode())


def wait_for_deliveries(site: Site, count: int, seconds: float = 15.0) -> list[Delivery]:
    until = time.monotonic() + seconds
    while len(site.deliveries) < count:
        assert time.monotonic() < until, f"{len(site.deliveries)} of {count} messages came"
        time.sleep(0.05)
    return site.deliveries


def test_a_critical_machine_tells_and_a_recovered_one_tells_again(tmp_path: Path) -> None:
    """One message each, signed, with the figures of the moment and those who hold the memory."""
    folder = tmp_path / "machine"
    shutil.copytree(FOLDER / "workstation", folder)
    roots = [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]
    with receiving(500, 200) as site:
        config = CONFIG.format(url=site.url, secret=SECRET)
        with running_daemon(tmp_path, "--interval", "100ms", *roots, config=config) as daemon:
            time.sleep(1)
            assert site.deliveries == []

            set_available(folder / "proc", 1_000_000)
            daemon.wait_for("/api/v1/alerts", lambda alerts: [one["state"] for one in alerts] == ["firing"])
            metrics = daemon.get("/metrics").text
            first = wait_for_deliveries(site, 2)

            set_available(folder / "proc", 40_000_000)
            daemon.wait_for("/api/v1/alerts", lambda alerts: alerts == [])
            deliveries = wait_for_deliveries(site, 3)
            events = [event["text"] for event in daemon.get("/api/v1/events").json if event["kind"] == "alert"]
            log = daemon.log.read_text()

    refused, critical, resolved = deliveries
    assert refused.body == first[1].body
    assert refused.headers["webhook-id"] == critical.headers["webhook-id"] != resolved.headers["webhook-id"]
    for delivery in deliveries:
        Webhook(SECRET).verify(delivery.body, delivery.headers)
    told = json.loads(critical.body)
    assert (told["event"], told["target"], told["level"]) == ("pressure.critical", "ram", "critical")
    assert told["reasons"][0]["signal"] == "util"
    assert told["top"], "who holds the memory"
    assert json.loads(resolved.body)["event"] == "pressure.resolved"
    assert 'memwatch_alerts_firing{rule="pressure.critical",severity="critical"} 1.0' in metrics
    assert events == ["alert resolved: System RAM is low", "alert firing: System RAM is critical"]
    assert SECRET not in log
    assert "/hook/token" not in log
