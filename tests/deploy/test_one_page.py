"""One kill, one notification: by a webhook, by own pushes to Alertmanager, and by the rules of Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

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
TIMES = '[alerts]\ninstance = "{instance}"\npending_for = "400ms"\n'
WEBHOOK = '[[alerts.webhooks]]\nname = "operators"\nurl = "{url}"\nsecret = "{secret}"\nevents = {events}\n'
MANAGER = '[[alerts.alertmanagers]]\nname = "am"\nurl = "{url}"\nevents = {events}\ninstead_of_prometheus = true\n'
# Longer than any group waits here: rules are evaluated each second.
SETTLED_SECONDS = 12
SHORT_RULES = {"for: 10s": "for: 1s"}
SHORT_WAITS = {
    "group_wait: 5s": "group_wait: 2s",
    "group_wait: 30s": "group_wait: 3s",
    "group_interval: 5m": "group_interval: 1s",
}


class Watched(Struct, frozen=True):
    """A machine with a daemon for each way, the receiver of each, and the Prometheus that scrapes the daemons."""

    machine: MutableMachine
    daemons: Mapping[str, RunningDaemon]
    instances: Mapping[str, str]
    hook: Site
    alerts: Site
    server: Engine

    def set_kills(self, count: int) -> None:
        """Count kills, and wait until Prometheus has the count of each daemon."""
        self.machine.set_oom_kills(count)
        self._wait_for_all(f"memwatch_kernel_oom_kills_total == {count}")

    def settle(self) -> None:
        """Wait until a notification has come by each way, and Prometheus has evaluated its rules since then."""
        wait_until(lambda: all(map(self.notified, WAYS)))
        now = float(self.server.ask("/api/v1/query", query="time()")["data"]["result"][1])
        self._wait_for_all(f"timestamp(memwatch_build_info) > {now + SETTLED_SECONDS}")

    def _wait_for_all(self, expression: str) -> None:
        self.server.wait_for(f"count({expression}) == {len(WAYS)}")

    def notified(self, way: str) -> list[tuple[str, str]]:
        """Return the name and severity of each firing alert, once for each message that has it."""
        if way == "webhook":
            bodies = [json.loads(one.body) for one in self.hook.deliveries]
            return [(body["event"], body["severity"]) for body in bodies]
        bodies = [json.loads(one.body) for one in self.alerts.deliveries]
        alerts = [one["labels"] for body in bodies if body["status"] == "firing" for one in body["alerts"]]
        return [(one["alertname"], one["severity"]) for one in alerts if one["instance"] == self.instances[way]]

    def fired(self, way: str) -> set[str]:
        """Return the names of the alerts of Prometheus's rules about a daemon that fired at any time."""
        selector = f'alertstate="firing",severity=~".+",instance="{self.instances[way]}"'
        return {
            one["metric"]["alertname"] for one in self.server.query(f"count_over_time(ALERTS{{{selector}}}[1h])")
        }


@contextmanager
def watching(folder: Path) -> Iterator[Watched]:
    """Watch a calm machine by three daemons at once: each waits as long as its receivers group alerts."""
    machine, rules = MutableMachine.of("workstation", folder / "machine"), folder / "rules"
    instances = {way: f"127.0.0.1:{free_port()}" for way in WAYS}
    rules.mkdir()
    (rules / "alerts.yml").write_text(shipped("prometheus/rules/alerts.yml", SHORT_RULES))
    machine.use(0.3)
    machine.set_oom_kills(5)
    with ExitStack() as stack:
        hook, alerts = (stack.enter_context(receiving()) for _ in range(2))
        routes = shipped(
            "alertmanager/alertmanager.yml", {"http://127.0.0.1:9095/alerts": alerts.url} | SHORT_WAITS
        )
        manager = stack.enter_context(alertmanager(folder, routes))
        receivers = {
            "webhook": WEBHOOK.format(url=hook.url, secret=SECRET, events=EVENTS),
            "push": MANAGER.format(url=f"http://{manager.address}", events=EVENTS),
            "rules": "",
        }
        daemons = {}
        for way, address in instances.items():
            (folder / f"daemon-{way}").mkdir()
            arguments = ("--interval", "200ms", "--listen", address, *machine.arguments)
            settings = TIMES.format(instance=address) + receivers[way]
            daemons[way] = stack.enter_context(
                running_daemon(folder / f"daemon-{way}", *arguments, config=settings)
            )
        changes = {
            '"127.0.0.1:6360"': ", ".join(f'"{address}"' for address in instances.values()),
            "127.0.0.1:9093": manager.address,
            "15s": "1s",
            "10s": "1s",
            "rules/": f"{rules}/",
        }
        server = stack.enter_context(prometheus(folder, shipped("prometheus/prometheus.yml", changes)))
        calm = 'memwatch_kernel_oom_kills_total == 5 and on (instance) memwatch_pressure_level{target="ram"} == 0'
        server.wait_for(f"count({calm}) == {len(WAYS)}")
        server.wait_for('memwatch_alert_pushed{event="kernel.oom_kill"}')
        yield Watched(machine, daemons, instances, hook, alerts, server)


def test_kill_for_lack_of_memory_is_one_critical_notification(tmp_path: Path) -> None:
    """The receiver gets every event about memory. The kill, the levels and the forecast are one incident."""
    with watching(tmp_path) as watched:
        watched.machine.use(0.97)
        watched.set_kills(6)
        watched.settle()
        notified = {way: watched.notified(way) for way in WAYS}
        fired = {way: watched.fired(way) for way in WAYS}

    critical = [("MemoryCritical", "critical")]
    assert notified == {"webhook": [("pressure.critical", "critical")], "push": critical, "rules": critical}
    assert fired == {"webhook": {"MemoryCritical"}, "push": set(), "rules": {"MemoryCritical"}}


def test_kills_at_a_limit_are_one_warning(tmp_path: Path) -> None:
    """System RAM has room: five kills, one after the other, say nothing about it."""
    with watching(tmp_path) as watched:
        for count in range(6, 11):
            watched.set_kills(count)
        watched.settle()
        notified = {way: watched.notified(way) for way in WAYS}
        fired = {way: watched.fired(way) for way in WAYS}
        levels = {one.snapshot()["pressure"][0]["level"] for one in watched.daemons.values()}

    kill = [("MemoryOOMKill", "warning")]
    assert notified == {"webhook": [("kernel.oom_kill", "warning")], "push": kill, "rules": kill}
    assert fired == {"webhook": {"MemoryOOMKill"}, "push": set(), "rules": {"MemoryOOMKill"}}
    assert levels == {"low"}


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
