"""Test a real Prometheus and Alertmanager with the shipped files."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from scripts.golden import roots_arguments
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import GIB
from simulators.nvml_state import Trouble
from simulators.sample_nvml import CONTAINER_HIDDEN_PIDS, CONTAINER_PARTITION, EIGHT_H100, RTX_4090
from support.daemon_process import RunningDaemon, running_daemon
from support.free_ports import free_port
from support.mutable_machine import MutableMachine
from support.paths import DEPLOY
from support.prometheus_servers import alertmanager, prometheus, scrape, shipped
from support.waiting import wait_until
from support.webhook_receiver import receiving

# Levels fall at once, so that tests need not wait for 30 s.
FORGETFUL = '[pressure]\nclear_after = "0s"\n'
ONE_INCIDENT = """
[web]
url = "http://gpu1.example.org:6360"
[pressure]
clear_after = "0s"
[alerts]
instance = "127.0.0.1:{port}"
pending_for = "400ms"
resolve_after = "400ms"
keep_firing_for = "0s"
again_after = "0s"
[[alerts.alertmanagers]]
name = "am"
url = "{url}"
instead_of_prometheus = true
"""
FAST = {"127.0.0.1:6360": "", "127.0.0.1:9093": "127.0.0.1:1", "15s": "1s", "10s": "1s"}


def configuration(target: str, manager: str = "127.0.0.1:1") -> str:
    changes = {**FAST, "127.0.0.1:6360": target, "127.0.0.1:9093": manager, "rules/": f"{DEPLOY}/prometheus/rules/"}
    return shipped("prometheus/prometheus.yml", changes)


def test_prometheus_scrapes_memwatchd_and_answers_queries(tmp_path: Path) -> None:
    """The shipped configuration works, and the pools add up to this machine's memory."""
    with (
        running_daemon(tmp_path) as daemon,
        prometheus(tmp_path, configuration(f"127.0.0.1:{daemon.port}")) as server,
    ):
        size = server.wait_for("sum(memwatch_pool_size_bytes)")
        parts = server.wait_for("sum(memwatch_pool_used_bytes) + sum(memwatch_pool_available_bytes)")
        up = server.wait_for('up{job="memwatchd"} == 1')
        level = server.wait_for('memwatch_pressure{target="ram"} == 1')
        recorded = server.wait_for("job:memwatch_pool_size_bytes:sum")
        pool = daemon.get("/api/v1/pools").json[0]

    assert up
    assert float(size[0]["value"][1]) == float(parts[0]["value"][1]) == pool["size_bytes"]
    assert recorded[0]["value"][1] == size[0]["value"][1]
    assert level[0]["metric"]["level"] in {"low", "medium", "high", "critical"}


def test_partition_adds_nothing_to_the_sum_over_host_and_container(tmp_path: Path) -> None:
    """The daemon of the container reports the driver's total as a limit: the card is in the sum once."""
    (tmp_path / "host").mkdir()
    (tmp_path / "container").mkdir()
    card = CONTAINER_HIDDEN_PIDS.gpus[0]
    host = Simulator.of(tmp_path / "host", RTX_4090.with_gpu(0, memory=card.memory, name=card.name, compute=()))
    inside = Simulator.of(tmp_path / "container", CONTAINER_PARTITION)
    with (
        running_daemon(tmp_path / "host", *host.roots, environ=host.environ) as outer,
        running_daemon(tmp_path / "container", *inside.roots, environ=inside.environ) as inner,
    ):
        for daemon in (outer, inner):
            daemon.wait_until_ok("nvml")
        with prometheus(tmp_path, scrape(f"127.0.0.1:{outer.port}", f"127.0.0.1:{inner.port}")) as server:
            server.wait_for('memwatch_share_limit_bytes{kind="gpu_limit"}')
            (size,) = server.wait_for('sum(memwatch_pool_size_bytes{kind!="system_ram"}) and count(up == 1) == 2')
            (limit,) = server.query('memwatch_share_limit_bytes{kind="gpu_limit"}')
            level = server.query('memwatch_pressure_level{target="gpu0.limit"}')

    assert card.memory is not None
    assert float(size["value"][1]) == card.memory.total
    assert (float(limit["value"][1]), limit["metric"]["within"]) == (20 * GIB, "gpu0")
    assert level


def test_full_memory_reaches_a_receiver_through_alertmanager(tmp_path: Path) -> None:
    """Scrape, rule, Alertmanager, webhook: with the shipped files, shorter waits, and resolved afterwards."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "alerts.yml").write_text(
        shipped(
            "prometheus/rules/alerts.yml", {"for: 10s": "for: 1s", "keep_firing_for: 2m": "keep_firing_for: 1s"}
        )
    )
    with receiving() as receiver:
        waits = {"group_wait: 5s": "group_wait: 1s", "group_interval: 5m": "group_interval: 1s"}
        routes = shipped("alertmanager/alertmanager.yml", {"http://127.0.0.1:9095/alerts": receiver.url} | waits)
        with (
            running_daemon(tmp_path, "--interval", "200ms", *machine.arguments, config=FORGETFUL) as daemon,
            alertmanager(tmp_path, routes) as manager,
        ):
            text = configuration(f"127.0.0.1:{daemon.port}", manager.address)
            with prometheus(tmp_path, text.replace(f"{DEPLOY}/prometheus/rules/", f"{rules}/")) as server:
                server.wait_for('memwatch_pressure_level{target="ram"} < 3')
                machine.use(0.97)
                wait_until(lambda: bool(receiver.deliveries))
                machine.use(0.3)
                wait_until(lambda: b'"status":"resolved"' in receiver.deliveries[-1].body)

    first, last = (json.loads(receiver.deliveries[place].body) for place in (0, -1))
    (alert,) = first["alerts"]
    assert (first["status"], alert["labels"]["alertname"], alert["labels"]["target"]) == (
        "firing",
        "MemoryCritical",
        "ram",
    )
    assert alert["annotations"]["summary"].startswith(f"ram of 127.0.0.1:{daemon.port} is critical")
    assert re.match(r"9\d(\.\d+)?% used, [\d.]+GiB available\. Signals: .*Largest holder: \S+",
                    alert["annotations"]["description"])  # fmt: skip
    assert last["alerts"][0]["fingerprint"] == alert["fingerprint"]


def test_one_incident_gives_one_notification(tmp_path: Path) -> None:
    """Own alerts and Prometheus's rules in one Alertmanager: the daemon's alert comes, and later its end.

    While its deliveries fail, the alert of the rules comes instead, with the same labels.
    """
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    rules, port = tmp_path / "rules", free_port()
    rules.mkdir()
    short = {"for: 10s": "for: 0s", "keep_firing_for: 2m": "keep_firing_for: 0s"}
    (rules / "alerts.yml").write_text(shipped("prometheus/rules/alerts.yml", short))
    waits = {"group_wait: 5s": "group_wait: 2s", "group_interval: 5m": "group_interval: 1s"}
    listen = ("--listen", f"127.0.0.1:{port}")
    with receiving() as receiver:
        routes = shipped("alertmanager/alertmanager.yml", {"http://127.0.0.1:9095/alerts": receiver.url} | waits)
        with alertmanager(tmp_path, routes) as manager:
            own = ONE_INCIDENT.format(port=port, url=f"http://{manager.address}")
            text = configuration(f"127.0.0.1:{port}", manager.address)
            with (
                prometheus(tmp_path, text.replace(f"{DEPLOY}/prometheus/rules/", f"{rules}/")) as server,
                running_daemon(tmp_path, "--interval", "200ms", *machine.arguments, *listen, config=own) as daemon,
            ):
                server.wait_for('memwatch_alert_pushed{event="pressure.critical",target="ram"}')
                machine.use(0.97)
                server.wait_for('memwatch_pressure_level{target="ram"} == 3')
                wait_until(lambda: bool(receiver.deliveries))
                time.sleep(3.0)  # the rule is evaluated each second, and would notify after two more
                listed = manager.ask("/api/v2/alerts")
                fired = server.query('ALERTS{alertname="MemoryCritical"}')
                machine.use(0.3)
                wait_until(lambda: b'"status":"resolved"' in receiver.deliveries[-1].body)
                told = [json.loads(delivery.body) for delivery in receiver.deliveries]

                reload(daemon, tmp_path, own.replace(manager.address, "127.0.0.1:1"))
                machine.use(0.97)
                server.wait_for('ALERTS{alertname="MemoryCritical",alertstate="firing"}')
                wait_until(lambda: len(receiver.deliveries) > len(told))
                taken_over = json.loads(receiver.deliveries[-1].body)

    (alert,) = listed
    assert fired == []
    assert [one["status"] for one in told] == ["firing", "resolved"]
    assert alert["annotations"]["runbook_url"].endswith("/runbooks#memorycritical")
    assert alert["labels"]["instance"] == f"127.0.0.1:{port}"
    assert [one["labels"] for one in taken_over["alerts"]] == [alert["labels"]]


@pytest.mark.parametrize("instance", [None, "spark:6360"])
def test_doctor_names_the_instance_of_the_scrape(instance: str | None, tmp_path: Path) -> None:
    """Own alerts and scrapes of one machine are two machines for Alertmanager. A chosen name is not doubted."""
    chosen = "" if instance is None else f'instance = "{instance}"\n'
    config = f'[alerts]\n{chosen}[[alerts.alertmanagers]]\nname = "am"\nurl = "http://127.0.0.1:1"\n'
    with (
        running_daemon(tmp_path, config=config) as daemon,
        prometheus(tmp_path, scrape(f"127.0.0.1:{daemon.port}")) as server,
    ):
        before = daemon.get("/api/v1/doctor").json["checks"]
        name = f"{daemon.snapshot()['host']}:{daemon.port}"
        server.wait_for("memwatch_build_info")
        after = daemon.get("/api/v1/doctor").json["checks"]

    found = [one for one in after if one["id"] == "alerts.instance"]
    assert "alerts.instance" not in {one["id"] for one in before}
    assert bool(found) is (instance is None)
    for one in found:
        assert f"as 127.0.0.1:{daemon.port}, and its own alerts have instance {name}" in one["text"]
        assert f'labels: {{instance: "{name}"}}' in one["remedy"]


def reload(daemon: RunningDaemon, folder: Path, config: str) -> None:
    (folder / "memwatchd.toml").write_text(config)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_log("alerts.alertmanagers.am.url")


def test_series_of_a_lost_gpu_end_at_once(tmp_path: Path) -> None:
    """Its series end with the next scrape, those of other GPUs continue, and the alert's condition holds."""
    simulator = Simulator.of(tmp_path, EIGHT_H100)
    with (
        running_daemon(
            tmp_path, "--interval", "200ms", *roots_arguments("8x-h100"), environ=simulator.environ
        ) as daemon,
        prometheus(tmp_path, scrape(f"127.0.0.1:{daemon.port}")) as server,
    ):
        server.wait_for('memwatch_pool_used_bytes{pool="gpu0"} and on () memwatch_device_up{device="gpu0"} == 1')
        simulator.show(EIGHT_H100.with_gpu(0, down=15))
        server.wait_for('memwatch_device_up{device="gpu0"} == 0')

        for gone in (
            'memwatch_pool_used_bytes{pool="gpu0"}',
            'memwatch_pressure{target="gpu0"}',
            'memwatch_device_headroom_after_reclaim_bytes{device="gpu0"}',
        ):
            assert server.query(gone) == []
        assert len(server.query('memwatch_pool_used_bytes{kind="vram"}')) == 7
        assert server.query('memwatch_device_info{device="gpu0"}')


def test_crashed_driver_ends_its_series_and_collector_up_is_0(tmp_path: Path) -> None:
    """After a crash of the driver's library no stale value is exported, and errors have a reason."""
    simulator = Simulator.of(tmp_path, EIGHT_H100)
    broken = EIGHT_H100.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(segfault=True)})
    with (
        running_daemon(
            tmp_path, "--interval", "200ms", *roots_arguments("8x-h100"), environ=simulator.environ
        ) as daemon,
        prometheus(tmp_path, scrape(f"127.0.0.1:{daemon.port}")) as server,
    ):
        server.wait_for('memwatch_pool_used_bytes{pool="gpu0"}')
        simulator.show(broken)
        server.wait_for('memwatch_collector_up{collector="nvml"} == 0')
        server.wait_for('absent(memwatch_pool_used_bytes{kind="vram"})')

        assert server.query('memwatch_collector_errors_total{collector="nvml"} > 0')
        assert server.query('memwatch_collector_up{collector="meminfo"} == 1')


def test_counters_survive_a_restart_of_the_daemon(tmp_path: Path) -> None:
    """A kill increases the counter by one, also across a restart of the daemon."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    machine.set_oom_kills(5)
    targets, token = tmp_path / "machines.json", tmp_path / "token"
    token.write_text("0123456789abcdef")
    changes = {"machines.json": str(targets), "/etc/prometheus/memwatchd-token": str(token)}
    listed = shipped("prometheus/discovery/file.yml", changes)
    with prometheus(tmp_path, f"global: {{scrape_interval: 1s}}\n{listed}") as server:

        def watch(kills: int) -> None:
            machine.set_oom_kills(kills)
            with running_daemon(tmp_path, *machine.arguments) as daemon:
                target = {"targets": [f"127.0.0.1:{daemon.port}"], "labels": {"instance": "a"}}
                targets.write_text(json.dumps([target]))
                server.wait_for(f'sum without (scope) (memwatch_kernel_oom_kills_total{{instance="a"}}) == {kills}')

        watch(5)
        watch(6)

        changed = server.query("sum(changes(memwatch_kernel_oom_kills_total[1m]))")
        resets = server.query("sum(resets(memwatch_kernel_oom_kills_total[1m]))")
    assert [float(one["value"][1]) for one in (*changed, *resets)] == [1, 0]
