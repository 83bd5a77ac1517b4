"""Receivers added, removed and changed by a reload: no restart needed, no notification sent twice."""

from __future__ import annotations

import errno
import json
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from memwatchd.daemon import Daemon
from memwatchd.settings.schema import Settings
from support.alert_machine import AlertMachine, quick_config, send_test, wait_for_deliveries
from support.daemon_process import RunningDaemon, get, running_daemon
from support.settings_sample import settings_from
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving
from support.webhook_samples import SECRET, ids

MIB = 1 << 20
OTHER_SECRET = "whsec_" + "QUJD" * 11


def reload_with(daemon: RunningDaemon, folder: Path, config: str) -> None:
    """Write new settings, reload, and wait until they are in effect."""
    changes = daemon.read_log().count("→")
    (folder / "memwatchd.toml").write_text(config)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.read_log().count("→") > changes)
    daemon.get("/healthz")  # answered by the thread that reads the settings, so after the reload


@contextmanager
def firing(folder: Path) -> Iterator[tuple[AlertMachine, RunningDaemon, Site]]:
    """Run a daemon whose only receiver was notified of an alert."""
    machine = AlertMachine.of(folder)
    with receiving() as site, running_daemon(folder, *machine.arguments, config=quick_config(site)) as daemon:
        machine.fill()
        wait_for_deliveries(site, 1)
        yield machine, daemon, site


def pass_ticks(daemon: RunningDaemon, number: int = 3) -> None:
    seq = daemon.snapshot()["seq"] + number
    daemon.wait_for("/api/v1/snapshot", lambda found: found["seq"] >= seq)


def test_added_receiver_is_notified_and_removed_one_is_not(tmp_path: Path) -> None:
    """From none to one, to two, to another one. Counters of a remaining receiver continue."""
    with receiving() as first, receiving() as second, running_daemon(tmp_path) as daemon:

        def notified_by_test() -> list[str]:
            notified: list[str] = send_test(daemon).json["receivers"]
            return notified

        reload_with(daemon, tmp_path, quick_config(first))
        assert notified_by_test() == ["site0"]
        wait_for_deliveries(first, 1)
        reload_with(daemon, tmp_path, quick_config(first, second))
        assert notified_by_test() == ["site0", "site1"]
        wait_for_deliveries(first, 2)
        wait_for_deliveries(second, 1)
        counted = 'memwatch_notifications_total{outcome="delivered",receiver="site0"} 2.0'
        wait_until(lambda: counted in daemon.get("/metrics").text)
        assert 'memwatch_notification_latency_seconds_count{receiver="site0"} 2.0' in daemon.get("/metrics").text
        reload_with(daemon, tmp_path, quick_config(second).replace("site0", "site1"))
        assert notified_by_test() == ["site1"]
        wait_for_deliveries(second, 2)
        wait_until(lambda: counted.replace("site0", "site1") in daemon.get("/metrics").text)
        metrics, log = daemon.get("/metrics").text, daemon.read_log()

    assert len(first.deliveries) == 2
    assert "site0" not in metrics
    assert "receiver removed or changed: site0; notifications dropped: 0" in log
    assert "at the next start" not in log


def test_queued_notification_goes_to_the_new_url_at_once(tmp_path: Path) -> None:
    """Its id is kept, so that duplicates can be recognized. The old URL receives nothing more."""
    machine = AlertMachine.of(tmp_path)
    with (
        receiving(503) as old,
        receiving() as new,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(old)) as daemon,
    ):
        machine.fill()
        wait_for_deliveries(old, 1)
        wait_until(lambda: "503" in daemon.get("/api/v1/receivers").json[0]["failure"])
        reload_with(daemon, tmp_path, quick_config(new))
        wait_for_deliveries(new, 1)
        machine.empty()
        wait_for_deliveries(new, 2)

    assert ids(new)[0] == ids(old)[0]
    assert [json.loads(one.body)["event"] for one in new.deliveries] == ["pressure.critical", "pressure.resolved"]
    assert len(old.deliveries) == 1


def test_replaced_alertmanager_gets_firing_alerts_at_once(tmp_path: Path) -> None:
    """Not only at the next repetition: the new one has received nothing yet."""
    machine = AlertMachine.of(tmp_path)
    with receiving() as old, receiving() as new:
        before, after = (
            f'{quick_config()}[[alerts.alertmanagers]]\nname = "am"\nurl = "{site.url}"\n' for site in (old, new)
        )
        with running_daemon(tmp_path, *machine.arguments, config=before) as daemon:
            machine.fill()
            wait_for_deliveries(old, 1)
            daemon.wait_for("/api/v1/receivers", lambda found: found[0]["pending"] == 0)
            reload_with(daemon, tmp_path, after)
            deliveries = wait_for_deliveries(new, 1)

    assert [one["labels"]["alertname"] for one in json.loads(deliveries[0].body)] == [
        one["labels"]["alertname"] for one in json.loads(old.deliveries[0].body)
    ]
    assert len(old.deliveries) == 1


def test_added_receiver_gets_a_firing_alert_once(tmp_path: Path) -> None:
    """With the start time of the alert. The other receiver is not notified again, and both get the resolution."""
    with firing(tmp_path) as (machine, daemon, first), receiving() as second:
        reload_with(daemon, tmp_path, quick_config(first, second))
        wait_for_deliveries(second, 1)
        reload_with(daemon, tmp_path, quick_config(first, second, extra="\n[history]\nlength = '20m'\n"))
        machine.empty()
        wait_for_deliveries(second, 2)
        wait_for_deliveries(first, 2)

    deliveries = [[json.loads(one.body) for one in site.deliveries] for site in (first, second)]
    events = [[one["event"] for one in bodies] for bodies in deliveries]
    assert events == [["pressure.critical", "pressure.resolved"]] * 2
    early, late = (bodies[0] for bodies in deliveries)
    assert late["unix"] > early["unix"]
    assert {**late, "id": 0, "time": 0, "unix": 0, "top": 0} == {**early, "id": 0, "time": 0, "unix": 0, "top": 0}


def test_receiver_added_during_a_silence_is_notified_at_its_end(tmp_path: Path) -> None:
    """Not before, and receivers that were notified earlier are not notified again."""
    with firing(tmp_path) as (_, daemon, first), receiving() as second:
        (made,) = get(daemon.port, "/api/v1/silences?seconds=600&target=ram", method="POST").json
        reload_with(daemon, tmp_path, quick_config(first, second))
        pass_ticks(daemon)
        in_silence = len(second.deliveries)
        get(daemon.port, f"/api/v1/silences/{made['id']}", method="DELETE")
        deliveries = wait_for_deliveries(second, 1)
        pass_ticks(daemon)

    assert in_silence == 0
    assert [json.loads(one.body)["event"] for one in deliveries] == ["pressure.critical"]
    assert (len(first.deliveries), len(second.deliveries)) == (1, 1)


def test_receiver_added_by_a_restart_gets_firing_alerts(tmp_path: Path) -> None:
    """The alert outlives the daemon: a receiver that was notified earlier is not notified again."""
    machine = AlertMachine.of(tmp_path)
    state = f"--state-dir={tmp_path / 'state'}"
    with receiving() as first, receiving() as second:
        with running_daemon(tmp_path, *machine.arguments, state, config=quick_config(first)) as daemon:
            machine.fill()
            wait_for_deliveries(first, 1)
            daemon.wait_for("/api/v1/receivers", lambda found: found[0]["pending"] == 0)
            assert daemon.terminate() == 0
        config = quick_config(first, second)
        with running_daemon(tmp_path, *machine.arguments, state, config=config) as daemon:
            wait_for_deliveries(second, 1)
            daemon.wait_for("/api/v1/receivers", lambda found: found[1]["pending"] == 0)
            assert daemon.terminate() == 0
        with running_daemon(tmp_path, *machine.arguments, state, config=config):
            machine.empty()
            wait_for_deliveries(first, 2)
            wait_for_deliveries(second, 2)

    deliveries = [[json.loads(one.body)["event"] for one in site.deliveries] for site in (first, second)]
    assert deliveries == [["pressure.critical", "pressure.resolved"]] * 2


def test_receiver_with_added_events_gets_their_firing_alerts(tmp_path: Path) -> None:
    """Its name and queue are kept, but it was never notified of this alert."""
    machine = AlertMachine.of(tmp_path)
    with receiving() as first, receiving() as second:
        more = quick_config(first, second)
        less = f'{more}events = ["device.lost"]\n'
        with running_daemon(tmp_path, *machine.arguments, config=less) as daemon:
            machine.fill()
            wait_for_deliveries(first, 1)
            reload_with(daemon, tmp_path, more)
            deliveries = wait_for_deliveries(second, 1)

    assert json.loads(deliveries[0].body)["event"] == "pressure.critical"
    assert len(first.deliveries) == 1


def test_notification_in_flight_during_a_reload_is_not_sent_again(tmp_path: Path) -> None:
    """The response of a slow receiver counts even if its settings change meanwhile."""
    machine = AlertMachine.of(tmp_path)
    with receiving() as site, running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon:
        site.may_answer.clear()
        send_test(daemon)
        wait_for_deliveries(site, 1)
        reload_with(daemon, tmp_path, quick_config(site).replace(SECRET, OTHER_SECRET))
        site.may_answer.set()
        daemon.wait_for("/api/v1/receivers", lambda found: found[0]["pending"] == 0)
        send_test(daemon)
        first, second = wait_for_deliveries(site, 2)
        Webhook(SECRET).verify(first.body, first.headers)
        Webhook(OTHER_SECRET).verify(second.body, second.headers)

    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert len(site.deliveries) == 2


def test_queue_of_a_removed_receiver_is_dropped(tmp_path: Path) -> None:
    """With a warning, and on disk as well. The same applies if the type of a receiver changes."""
    arguments = (*AlertMachine.of(tmp_path).arguments, f"--state-dir={tmp_path / 'state'}")
    with receiving(503) as site, running_daemon(tmp_path, *arguments, config=quick_config(site, site)) as daemon:
        send_test(daemon)
        wait_for_deliveries(site, 2)
        alertmanager = f'[[alerts.alertmanagers]]\nname = "site1"\nurl = "{site.url}"\n'
        reload_with(daemon, tmp_path, alertmanager)
        wait_until(lambda: "memwatch_outbox_durable 1.0" in daemon.get("/metrics").text)
        log, pending = daemon.read_log(), daemon.get("/api/v1/receivers").json[0]["pending"]
        assert daemon.terminate() == 0
    with running_daemon(tmp_path, *arguments) as again:
        later = again.read_log()

    assert "WARNING receiver removed or changed: site0; notifications dropped: 1" in log
    assert "WARNING receiver removed or changed: site1; notifications dropped: 1" in log
    assert pending == 0
    assert "no longer" not in later


@pytest.mark.long
def test_receivers_without_a_thread_are_notified_once_it_starts(tmp_path: Path) -> None:
    """The reload still ends for systemd, later reloads work, and no receiver stays without a thread."""
    path = str(tmp_path / "notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        receiving() as site,
        running_daemon(tmp_path, environ={"NOTIFY_SOCKET": path}) as daemon,
    ):
        manager.bind(path)
        manager.settimeout(MAX_WAIT_SECONDS)
        sizes = Path(f"/proc/{daemon.pid}/statm").read_text().split()
        room = int(sizes[0]) * resource.getpagesize() + 4 * MIB  # too little for a stack, enough for the rest
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        reload_with(daemon, tmp_path, quick_config(*[site] * 8))
        wait_until(lambda: "webhook-site7 cannot start a thread, retrying" in daemon.read_log())
        reload_with(daemon, tmp_path, quick_config(*[site] * 9))
        received = [manager.recv(4096).decode() for _ in range(20)]
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_until(lambda: "webhook-site8 has started its thread" in daemon.read_log())
        send_test(daemon)
        wait_for_deliveries(site, 9)
        log = daemon.read_log()

    about_state = [line for text in received for line in text.splitlines() if line in ("READY=1", "RELOADING=1")]
    assert about_state == ["RELOADING=1", "READY=1"] * 2
    assert log.count("webhook-site7 cannot start a thread") == 1
    assert "sample skipped" not in log


def test_failed_reload_keeps_the_old_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any error, systemd is notified of the end of the reload, and the next reload works."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    first, second = (settings_from(tmp_path, f"[history]\nlength = '{minutes}m'\n") for minutes in (20, 40))
    answers: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), MemoryError()]

    def load(_had_file: bool) -> Settings:
        if answers:
            raise answers.pop(0)
        return second

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, caplog.at_level(logging.INFO):
        manager.bind(path)
        manager.settimeout(MAX_WAIT_SECONDS)
        daemon = Daemon(first, load)
        for _ in range(2):
            daemon.reload()
            assert daemon.settings is first
        daemon.reload()
        daemon.stop()
        received = "\n".join(manager.recv(4096).decode() for _ in range(7)).splitlines()

    assert daemon.settings is second
    assert [line for line in received if line in ("READY=1", "RELOADING=1")] == ["RELOADING=1", "READY=1"] * 3
    assert received[-1] == "STOPPING=1"
    assert "reload failed, keeping the old settings: [Errno 24] Too many open files" in caplog.messages
    assert "reload failed, keeping the old settings: MemoryError" in caplog.messages
