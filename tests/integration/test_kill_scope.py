"""OOM kills in the default installation: without the kernel's log a kill has no name and no scope."""

from __future__ import annotations

from pathlib import Path

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.webhook_receiver import receiving

EVENT = "OOM killer: killed 1 process, of the machine or at the limit of a cgroup: no log says which"


def ram_of(daemon: RunningDaemon) -> tuple[str, list[str]]:
    """Return level and signals of System RAM."""
    (ram,) = [one for one in daemon.snapshot()["pressure"] if one["target"] == "ram"]
    return ram["level"], [reason["signal"] for reason in ram["reasons"]]


def kill_events(daemon: RunningDaemon) -> list[str]:
    daemon.wait_for("/api/v1/events", lambda events: "oom_kill" in {event["kind"] for event in events})
    return [event["text"] for event in daemon.get("/api/v1/events").json if event["kind"] == "oom_kill"]


def test_kill_at_the_limit_of_a_container_is_an_event_and_no_alert(tmp_path: Path) -> None:
    """The counter rises while 40 of 63 GB are available, as in google/cadvisor#2417."""
    machine = AlertMachine.of(tmp_path)
    machine.empty()
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        calm = ram_of(daemon)
        machine.count_oom_kill()

        assert kill_events(daemon) == [EVENT]
        assert ram_of(daemon) == calm
        assert daemon.get("/api/v1/incidents").json == []
        assert "oom_kill" not in daemon.get("/metrics").text.partition("memwatch_pressure_reason{")[2]
    assert site.deliveries == []


def test_kill_on_a_full_machine_is_critical(tmp_path: Path) -> None:
    machine = AlertMachine.of(tmp_path)
    machine.set_available(9_000_000)  # 86 % used: high by its use
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        assert ram_of(daemon)[0] == "high"
        machine.count_oom_kill()
        (delivery,) = wait_for_deliveries(site, 1)

        assert kill_events(daemon) == ["OOM killer: killed 1 process"]
        assert ram_of(daemon)[0] == "critical"
    assert b"OOM killer: killed a process" in delivery.body
