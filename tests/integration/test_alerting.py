"""Alerts end to end: signed webhook notifications when memory turns critical and when it recovers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from support.alert_machine import WEBHOOK, AlertMachine, quick_config, wait_for_deliveries
from support.api_schema import check_answer
from support.budget import within
from support.daemon_process import MEMWATCHD, RunningDaemon, get, run_program, running_daemon
from support.state_copy import messages_on_disk
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until
from support.webhook_receiver import raw_receiver, receiving, silent
from support.webhook_samples import SECRET, ids


def events_of(site: Any) -> list[str]:
    return [json.loads(delivery.body)["event"] for delivery in site.deliveries]


def test_critical_pressure_and_recovery_send_one_notification_each(tmp_path: Path) -> None:
    """Both are signed. The firing one carries current values and the largest processes."""
    machine = AlertMachine.of(tmp_path)
    with (
        receiving(500, 200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        time.sleep(1)
        assert site.deliveries == []

        machine.fill()
        daemon.wait_for("/api/v1/alerts", lambda alerts: [one["state"] for one in alerts] == ["firing"])
        metrics = daemon.get("/metrics").text
        first = wait_for_deliveries(site, 2)

        machine.empty()
        daemon.wait_for("/api/v1/alerts", lambda alerts: alerts == [])
        deliveries = wait_for_deliveries(site, 3)
        events = [event["text"] for event in daemon.get("/api/v1/events").json if event["kind"] == "alert"]
        log = daemon.read_log()

    rejected, critical, resolved = deliveries
    assert rejected.body == first[1].body
    assert rejected.headers["webhook-id"] == critical.headers["webhook-id"] != resolved.headers["webhook-id"]
    for delivery in deliveries:
        Webhook(SECRET).verify(delivery.body, delivery.headers)
    firing = json.loads(critical.body)
    assert (firing["event"], firing["target"], firing["level"]) == ("pressure.critical", "ram", "critical")
    assert firing["reasons"][0]["signal"] == "util"
    assert firing["top"], "the largest processes"
    assert json.loads(resolved.body)["event"] == "pressure.resolved"
    assert 'memwatch_alerts_firing{rule="pressure.critical",severity="critical"} 1.0' in metrics
    assert events == ["alert resolved: System RAM critical (now OK)", "alert firing: System RAM critical"]
    assert SECRET not in log
    assert "/hook/token" not in log
    assert "WARNING no state folder: nothing is kept across restarts" in log


def test_record_of_an_incident_has_who_was_notified(tmp_path: Path) -> None:
    """The first attempt fails; what arrives then is in the record, with its time."""
    machine = AlertMachine.of(tmp_path)
    with (
        receiving(500, 200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        machine.fill()
        (head,) = daemon.wait_for(
            "/api/v1/incidents",
            lambda found: found and [one["result"] for one in found[0]["told"]] == ["delivered"],
        )
        one = daemon.get(f"/api/v1/incidents/{head['id']}").json
        report = daemon.get(f"/incidents/{head['id']}/report.md").text

    (told,) = one["told"]
    assert one["told"] == head["told"]
    assert (told["rule"], told["reason"]) == ("pressure.critical", "")
    assert told["unix"] >= one["began_unix"]
    assert f"` {told['receiver']} ` pressure.critical delivered" in report


def test_undelivered_alert_is_sent_once_after_a_restart(tmp_path: Path) -> None:
    """memwatchd is killed with an undelivered alert. After its restart it sends the alert exactly once."""
    machine = AlertMachine.of(tmp_path)
    state = f"--state-dir={tmp_path / 'state'}"
    with receiving(503, 200) as site:
        site.may_answer.clear()
        config = quick_config(site)
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            machine.fill()
            wait_for_deliveries(site, 1)
            wait_until(lambda: messages_on_disk(tmp_path / "state") == 1)
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait(MAX_WAIT_SECONDS)
        site.may_answer.set()
        site.answers[:] = [(200, {})]
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            firing = daemon.get("/api/v1/alerts").json
            wait_for_deliveries(site, 2)
            machine.empty()  # the end of the alert is sent after everything else that is queued
            deliveries = wait_for_deliveries(site, 3)
            durable = "memwatch_outbox_durable 1.0" in daemon.get("/metrics").text
            assert daemon.terminate() == 0

    assert [(one["target"], one["state"]) for one in firing] == [("ram", "firing")]
    assert len(set(ids(site)[:2])) == 1
    assert deliveries[0].body == deliveries[1].body
    assert events_of(site) == ["pressure.critical", "pressure.critical", "pressure.resolved"]
    assert durable


def test_silence_survives_a_restart_and_alert_is_sent_when_it_expires(tmp_path: Path) -> None:
    """No notification while it lasts. When an operator ends it, the firing alert is sent."""
    machine = AlertMachine.of(tmp_path)
    state = f"--state-dir={tmp_path / 'state'}"
    with receiving(200) as site:
        config = quick_config(site)
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            path = "/api/v1/silences?seconds=3600&target=ram&event=pressure.critical&comment=loading"
            made = get(daemon.port, path, method="POST")
        machine.fill()
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            silenced = daemon.wait_for("/api/v1/alerts", lambda alerts: alerts and alerts[0]["state"] == "firing")
            listed = daemon.get("/api/v1/silences").json
            time.sleep(0.5)
            before = list(site.deliveries)
            ended = get(daemon.port, f"/api/v1/silences/{listed[0]['id']}", method="DELETE")
            wait_for_deliveries(site, 1)
            gone = get(daemon.port, f"/api/v1/silences/{listed[0]['id']}", method="DELETE")

    assert (made.status, made.json) == (200, listed)
    assert (listed[0]["target"], listed[0]["comment"]) == ("ram", "loading")
    check_answer(silenced[0], "Alert")
    assert silenced[0]["runbook"] == "/runbooks#memorycritical"
    check_answer(listed[0], "Silence")
    assert silenced[0]["silenced"] is True
    assert before == []
    assert (ended.status, ended.json, gone.status) == (200, [], 404)
    assert events_of(site) == ["pressure.critical"]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for requests that change nothing."""
    with running_daemon(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "seconds"),
        ("seconds=0", "seconds"),
        ("seconds=nan", "seconds"),
        ("seconds=1e300", "seconds"),
        ("seconds=60&event=pressure.bad", "use one of pressure.critical"),
        (f"seconds=60&target={'x' * 300}", "target"),
    ],
)
def test_invalid_silence_is_rejected_with_a_reason(shared_daemon: RunningDaemon, query: str, words: str) -> None:
    """A silence needs an end, a known event and a short target."""
    rejected = get(shared_daemon.port, f"/api/v1/silences?{query}", method="POST")

    assert rejected.status == 422
    assert words in rejected.json["detail"]
    assert shared_daemon.get("/api/v1/silences").json == []


def test_silence_for_an_absent_target_carries_a_note(tmp_path: Path) -> None:
    """It is accepted, because a GPU may appear later. Response, list and page name the present targets."""
    with running_daemon(tmp_path, "--demo", "strix-halo") as daemon:
        made = [
            get(daemon.port, f"/api/v1/silences?seconds=3600{about}", method="POST")
            for about in ("&target=nosuch", "&target=gpu0.gtt", "", "&target=kernel&event=pressure.critical")
        ][-1]
        listed, page = daemon.get("/api/v1/silences"), daemon.get("/alerts").text

    notes = [one["note"] for one in made.json]
    nosuch, gtt, anything, elsewhere = notes
    assert made.status == 200
    assert made.json == listed.json
    assert nosuch.startswith("no target 'nosuch' at present; present targets: ram, gpu0.gtt, ")
    assert (gtt, anything) == (None, None)
    assert elsewhere == "no target 'kernel' at present for pressure.critical; present targets: ram, gpu0.gtt"
    assert page.count("present targets: ") == 2
    for one in made.json:
        check_answer(one, "Silence")


def test_kill_while_memory_is_critical_is_sent_to_receivers_of_kills_alone(tmp_path: Path) -> None:
    """Memory runs out and the kernel kills a process: one incident. It needs no new thread."""
    machine = AlertMachine.of(tmp_path)
    with receiving(200) as both, receiving(200) as kills:
        config = quick_config(both) + 'events = ["pressure.critical", "kernel.oom_kill"]\n'
        config += WEBHOOK.format(name="kills", url=kills.url, secret=SECRET) + 'events = ["kernel.oom_kill"]\n'
        with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            daemon.snapshot()  # builds the API now; otherwise it is built in its own thread during the shortage
            threads = threads_of(daemon.pid)
            machine.fill()
            wait_for_deliveries(both, 1)
            machine.count_oom_kill()
            deliveries = wait_for_deliveries(kills, 1)
            threads_after = threads_of(daemon.pid)
            before = daemon.snapshot()["seq"]
            wait_until(lambda: daemon.snapshot()["seq"] > before + 5)

    assert events_of(both) == ["pressure.critical"]
    killed = json.loads(deliveries[0].body)
    assert killed["reasons"] == [{"signal": "oom_kill", "text": "OOM killer: killed 1 process"}]
    assert (killed["target"], killed["level"], killed["severity"]) == ("ram", None, "warning")
    assert killed["values"]["used_bytes"] > 0
    assert threads_after <= threads


def threads_of(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.measure
def test_dead_receiver_delays_no_other(tmp_path: Path) -> None:
    """One receiver never answers; the other is notified within 2 s. The page shows no secret path."""
    machine = AlertMachine.of(tmp_path)
    with raw_receiver(silent) as dead, receiving(200) as gone, receiving(200) as site:
        config = quick_config(site, gone, extra="").replace(gone.url, dead)
        with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            machine.fill()
            watch = Stopwatch(daemon.pid)
            wait_for_deliveries(site, 1)
            took = watch.seconds
            receivers = daemon.wait_for("/api/v1/receivers", lambda found: found[0]["outcomes"]["delivered"] == 1)
            page = daemon.get("/alerts").text
            lag = daemon.snapshot()["self"]["tick_lag_seconds"]

    within("delivery beside a dead receiver", took, 2.0, "s")
    for found in receivers:
        check_answer(found, "Receiver")
    assert [(one["name"], one["pending"]) for one in receivers] == [("site0", 0), ("site1", 1)]
    sent = {key: receivers[0]["deliveries"][0][key] for key in ("rule", "target", "result", "attempts", "status")}
    assert sent == {
        "rule": "pressure.critical",
        "target": "ram",
        "result": "delivered",
        "attempts": 1,
        "status": 200,
    }
    assert [one["result"] for one in receivers[1]["deliveries"]] == ["queued"]
    assert "webhook site0 (http://localhost:" in page
    assert "/hook/token" not in page
    within("tick lag beside a dead receiver", lag, 0.1, "s")


def test_test_notification_is_sent_by_api_and_by_command(tmp_path: Path) -> None:
    """POST /api/v1/alerts/test uses the outbox; --test-alert prints the result per receiver."""
    machine = AlertMachine.of(tmp_path)
    with receiving(200) as site, receiving(503) as broken:
        with running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon:
            response = get(daemon.port, "/api/v1/alerts/test", method="POST")
            wait_for_deliveries(site, 1)
        file = tmp_path / "both.toml"
        file.write_text(quick_config(site, broken))
        file.chmod(0o600)
        done = run_program(MEMWATCHD, "--config", file, "--test-alert")

    assert response.json == {"receivers": ["site0"]}
    assert events_of(site) == ["test", "test"]
    assert json.loads(site.deliveries[0].body)["values"]["size_bytes"] > 0
    assert done.returncode == 1
    lines = [line.partition("): ") for line in done.stdout.splitlines()]
    assert [(head.partition(" (")[0], result) for head, _, result in lines] == [
        ("webhook site0", "delivered"),
        ("webhook site1", "answered 503"),
    ]
    assert "token" not in done.stdout


def test_test_notification_without_receivers_is_an_error(tmp_path: Path) -> None:
    """Both the API and the command report that no receiver is configured."""
    file = tmp_path / "none.toml"
    file.write_text("")
    done = run_program(MEMWATCHD, "--config", file, "--test-alert")
    with running_daemon(tmp_path) as daemon:
        response = get(daemon.port, "/api/v1/alerts/test", method="POST")

    assert (done.returncode, response.status) == (78, 409)
    for error in (done.stderr, response.json["detail"]):
        assert "no receiver is configured; add [[alerts.webhooks]]" in error


def test_demo_data_sends_no_test_notification(tmp_path: Path) -> None:
    """A test notification carries values, and those of a demo are not real."""
    with receiving(200) as site:
        file = tmp_path / "one.toml"
        file.write_text(quick_config(site))
        file.chmod(0o600)
        done = run_program(MEMWATCHD, "--config", file, "--test-alert", "--demo", "rtx4090")

    assert (done.returncode, site.deliveries) == (78, [])
    assert done.stderr == "memwatchd: a simulated machine sends no notifications: leave out --demo and --replay\n"


def test_flapping_use_sends_one_alert_at_most(tmp_path: Path) -> None:
    """Use crosses the critical threshold every 200 ms for 5 s, and is never below it for as long as asked."""
    machine = AlertMachine.of(tmp_path)
    with receiving(200) as site:
        config = quick_config(site).replace('clear_after = "0s"', 'clear_after = "10m"')
        with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
            size_kib = daemon.snapshot()["pools"][0]["size_bytes"] // 1024
            for number in range(25):
                machine.set_available(int(size_kib * (0.04 if number % 2 else 0.06)))
                time.sleep(0.2)
            wait_until(lambda: site.deliveries)

    assert events_of(site) == ["pressure.critical"]


def test_changes_from_other_origins_and_proxies_are_rejected(tmp_path: Path) -> None:
    """Pages of other sites and clients behind a proxy may read but not change anything."""
    with running_daemon(tmp_path) as daemon:
        foreign = get(daemon.port, "/api/v1/silences?seconds=60", {"Origin": "http://evil.example"}, method="POST")
        proxied = get(daemon.port, "/api/v1/silences?seconds=60", {"X-Forwarded-For": "192.0.2.1"}, method="POST")
        looked = get(daemon.port, "/api/v1/silences", {"X-Forwarded-For": "192.0.2.1"})

    assert (foreign.status, proxied.status, looked.status) == (403, 403, 200)
    assert "use the socket file" in proxied.json["detail"]


def test_receiver_that_answers_410_is_shown_as_disabled(tmp_path: Path) -> None:
    """The page and the API show that nothing more is sent."""
    with receiving(410) as site, running_daemon(tmp_path, config=quick_config(site)) as daemon:
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        daemon.wait_for("/api/v1/receivers", lambda found: found[0]["disabled"])
        wait_until(
            lambda: "Disabled until its configuration changes or memwatchd restarts." in daemon.get("/alerts").text
        )
