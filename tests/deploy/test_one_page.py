"""One kill, one notification: by a webhook, by own pushes to Alertmanager, and by the rules of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from support.daemon_process import RunningDaemon, running_daemon
from support.free_ports import free_port
from support.mutable_machine import MutableMachine
from support.prometheus_servers import Engine, alertmanager, prometheus, shipped
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving
from support.webhook_samples import SECRET

NEEDED_PROGRAMS = ("prometheus-alertmanager", "amtool", "prometheus", "promtool")

WAYS = ("webhook", "push", "rules")
EVENTS = '["pressure.medium", "pressure.high", "pressure.critical", "pressure.forecast", "kernel.oom_kill"]'
TIMES = '[alerts]\ninstance = "127.0.0.1:{port}"\npending_for = "400ms"\n'
WEBHOOK = '[[alerts.webhooks]]\nname = "operators"\nurl = "{url}"\nsecret = "{secret}"\nevents = {events}\n'
MANAGER = '[[alerts.alertmanagers]]\nname = "am"\nurl = "{url}"\nevents = {events}\n'
# Longer than any group waits here: rules are evaluated each second.
SETTLED_SECONDS = 12
SHORT_RULES = {"for: 10s": "for: 1s"}
SHORT_WAITS = {
    "group_wait: 5s": "group_wait: 2s",
    "group_wait: 30s": "group_wait: 3s",
    "group_interval: 5m": "group_interval: 1s",
}


class Watched(Struct, frozen=True):
    """A machine, its daemon, the receiver of notifications, and the Prometheus that scrapes the daemon."""

    machine: MutableMachine
    daemon: RunningDaemon
    site: Site
    server: Engine
    way: str

    def set_kills(self, count: int) -> None:
        """Count kills, and wait until Prometheus has the count."""
        self.machine.set_oom_kills(count)
        self.server.wait_for(f"memwatch_kernel_oom_kills_total == {count}")

    def settle(self) -> None:
        """Wait until a notification has come, and Prometheus has evaluated its rules often enough since then."""
        wait_until(lambda: bool(self.site.deliveries))
        now = float(self.server.ask("/api/v1/query", query="time()")["data"]["result"][1])
        until = now + SETTLED_SECONDS
        self.server.wait_for(f"max(timestamp(memwatch_build_info)) > {until}")

    def notified(self) -> list[tuple[str, str]]:
        """Return the name and severity of each firing alert, once for each message that has it."""
        bodies = [json.loads(one.body) for one in self.site.deliveries]
        if self.way == "webhook":
            return [(body["event"], body["severity"]) for body in bodies]
        alerts = [one for body in bodies if body["status"] == "firing" for one in body["alerts"]]
        return [(one["labels"]["alertname"], one["labels"]["severity"]) for one in alerts]

    def fired(self, selector: str) -> set[str]:
        """Return the names of the alerts of Prometheus's rules that fired at any time."""
        found = self.server.query(f'count_over_time(ALERTS{{alertstate="firing",{selector}}}[1h])')
        return {one["metric"]["alertname"] for one in found}


def receiver_settings(way: str, site: Site, manager: Engine) -> str:
    if way == "webhook":
        return WEBHOOK.format(url=site.url, secret=SECRET, events=EVENTS)
    return MANAGER.format(url=f"http://{manager.address}", events=EVENTS) if way == "push" else ""


@contextmanager
def watching(folder: Path, way: str) -> Iterator[Watched]:
    """Watch a calm machine. In the way `webhook`, Prometheus has the rules and no Alertmanager."""
    machine, port, rules = MutableMachine.of("workstation", folder / "machine"), free_port(), folder / "rules"
    rules.mkdir()
    (rules / "alerts.yml").write_text(shipped("prometheus/rules/alerts.yml", SHORT_RULES))
    machine.use(0.3)
    machine.set_oom_kills(5)
    with ExitStack() as stack:
        site = stack.enter_context(receiving())
        routes = shipped("alertmanager/alertmanager.yml", {"http://127.0.0.1:9095/alerts": site.url} | SHORT_WAITS)
        manager = stack.enter_context(alertmanager(folder, routes))
        settings = TIMES.format(port=port) + receiver_settings(way, site, manager)
        arguments = ("--interval", "200ms", "--listen", f"127.0.0.1:{port}", *machine.arguments)
        daemon = stack.enter_context(running_daemon(folder, *arguments, config=settings))
        changes = {
            "127.0.0.1:6360": f"127.0.0.1:{port}",
            "127.0.0.1:9093": "127.0.0.1:1" if way == "webhook" else manager.address,
            "15s": "1s",
            "10s": "1s",
            "rules/": f"{rules}/",
        }
        server = stack.enter_context(prometheus(folder, shipped("prometheus/prometheus.yml", changes)))
        server.wait_for('memwatch_kernel_oom_kills_total == 5 and on () memwatch_pressure_level{target="ram"} == 0')
        if way == "push":
            server.wait_for('memwatch_alert_pushed{event="kernel.oom_kill"}')
        yield Watched(machine, daemon, site, server, way)


@pytest.mark.parametrize("way", WAYS)
def test_kill_for_lack_of_memory_is_one_critical_notification(tmp_path: Path, way: str) -> None:
    """The receiver gets every event about memory. The kill, the levels and the forecast are one incident."""
    with watching(tmp_path, way) as watched:
        watched.machine.use(0.97)
        watched.set_kills(6)
        watched.settle()
        notified, fired = watched.notified(), watched.fired('severity=~".+"')

    assert notified == [("pressure.critical" if way == "webhook" else "MemoryCritical", "critical")]
    assert fired == (set() if way == "push" else {"MemoryCritical"})


@pytest.mark.parametrize("way", WAYS)
def test_kills_at_a_limit_are_one_warning(tmp_path: Path, way: str) -> None:
    """System RAM has room: five kills, one after the other, say nothing about it."""
    with watching(tmp_path, way) as watched:
        for count in range(6, 11):
            watched.set_kills(count)
        watched.settle()
        notified, fired = watched.notified(), watched.fired('severity=~".+"')
        level = watched.daemon.snapshot()["pressure"][0]["level"]

    assert notified == [("kernel.oom_kill" if way == "webhook" else "MemoryOOMKill", "warning")]
    assert fired == (set() if way == "push" else {"MemoryOOMKill"})
    assert level == "low"


def test_alertmanager_inhibits_alerts_about_the_same_target_only(tmp_path: Path) -> None:
    """A critical limit says nothing of System RAM, and System RAM nothing of a kill at a limit."""
    routes = shipped("alertmanager/alertmanager.yml", {"http://127.0.0.1:9095/alerts": "http://127.0.0.1:1/"})
    alerts = [
        ("MemoryCritical", {"target": "ram"}, False),
        ("MemoryHigh", {"target": "ram"}, True),
        ("MemoryFullSoon", {"target": "cgroup"}, False),
        ("MemoryOOMKill", {"scope": "machine"}, True),
        ("MemoryOOMKill", {"scope": "cgroup"}, False),
        ("MemoryLeak", {"pool": "ram"}, True),
        ("GPULost", {"device": "gpu0"}, False),
    ]
    common = {"job": "memwatchd", "instance": "a", "severity": "warning"}
    sent = [{"labels": {"alertname": name, **common, **labels}} for name, labels, _ in alerts]
    with alertmanager(tmp_path, routes) as manager:

        def inhibited() -> list[bool]:
            listed = manager.ask("/api/v2/alerts")
            return [bool(find(listed, {"alertname": name, **labels})) for name, labels, _ in alerts]

        manager.post("/api/v2/alerts", sent)
        wait_until(lambda: len(manager.ask("/api/v2/alerts")) == len(alerts))
        wait_until(lambda: any(inhibited()))  # it has seen the source of all inhibitions
        found = inhibited()

    assert found == [is_inhibited for _, _, is_inhibited in alerts]


def find(listed: list[Any], labels: dict[str, str]) -> list[str]:
    """Return the alerts that inhibit the one with these labels."""
    (found,) = [one for one in listed if labels.items() <= one["labels"].items()]
    by: list[str] = found["status"]["inhibitedBy"]
    return by
