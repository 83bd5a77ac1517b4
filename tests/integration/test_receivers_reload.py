"""Receivers that come, go and change while the daemon runs: nothing waits for a restart, nothing is told twice."""

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
from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, get, running_daemon
from support.settings_sample import settings_from
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving
from support.webhook_samples import SECRET, ids

MIB = 1 << 20
OTHER_SECRET = "whsec_" + "QUJD" * 11


def use(daemon: RunningDaemon, folder: Path, config: str) -> None:
    """Write other settings, have them read, and wait until they are in force."""
    changes = daemon.log.read_text().count("→")
    (folder / "memwatchd.toml").write_text(config)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.log.read_text().count("→") > changes)
    daemon.get("/healthz")  # answered by the thread that reads the settings: afterwards


@contextmanager
def firing(folder: Path) -> Iterator[tuple[AlertMachine, RunningDaemon, Site]]:
    """A daemon whose one receiver has heard of an alert."""
    machine = AlertMachine.of(folder)
    with receiving() as site, running_daemon(folder, *machine.arguments, config=quick_config(site)) as daemon:
        machine.fill()
        wait_for_deliveries(site, 1)
        yield machine, daemon, site


def pass_ticks(daemon: RunningDaemon, number: int = 3) -> None:
    seq = daemon.snapshot()["seq"] + number
    daemon.wait_for("/api/v1/snapshot", lambda found: found["seq"] >= seq)


def test_a_receiver_that_is_added_is_told_and_one_that_is_removed_is_not(tmp_path: Path) -> None:
    """From none to one, to two, to another one; what is counted of who stays goes on."""
    with receiving() as first, receiving() as second, running_daemon(tmp_path) as daemon:

        def test() -> list[str]:
            told: list[str] = get(daemon.port, "/api/v1/alerts/test", method="POST").json["receivers"]
            return told

        use(daemon, tmp_path, quick_config(first))
        assert test() == ["site0"]
        wait_for_deliveries(first, 1)
        use(daemon, tmp_path, quick_config(first, second))
        assert test() == ["site0", "site1"]
        wait_for_deliveries(first, 2)
        wait_for_deliveries(second, 1)
        counted = 'memwatch_notifications_total{outcome="delivered",receiver="site0"} 2.0'
        wait_until(lambda: counted in daemon.get("/metrics").text)
        use(daemon, tmp_path, quick_config(second).replace("site0", "site1"))
        assert test() == ["site1"]
        wait_for_deliveries(second, 2)
        wait_until(lambda: counted.replace("site0", "site1") in daemon.get("/metrics").text)
        metrics, log = daemon.get("/metrics").text, daemon.log.read_text()

    assert len(first.deliveries) == 2
    assert "site0" not in metrics
    assert "receiver removed or changed: site0; notifications dropped: 0" in log
    assert "at the next start" not in log


def test_what_waits_goes_to_the_new_address_at_once(tmp_path: Path) -> None:
    """Its id stays, so whoever may have heard of it before knows it again; the old address hears nothing more."""
    machine = AlertMachine.of(tmp_path)
    with (
        receiving(503) as old,
        receiving() as new,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(old)) as daemon,
    ):
        machine.fill()
        wait_for_deliveries(old, 1)
        wait_until(lambda: "503" in daemon.get("/api/v1/receivers").json[0]["failure"])
        use(daemon, tmp_path, quick_config(new))
        wait_for_deliveries(new, 1)
        machine.empty()
        wait_for_deliveries(new, 2)

    assert ids(new)[0] == ids(old)[0]
    assert [json.loads(one.body)["event"] for one in new.deliveries] == ["pressure.critical", "pressure.resolved"]
    assert len(old.deliveries) == 1


def test_an_alertmanager_that_takes_anothers_place_is_told_what_fires(tmp_path: Path) -> None:
    """At once, not when it would have been said again: it has heard nothing yet."""
    machine = AlertMachine.of(tmp_path)
    with receiving() as old, receiving() as new:
        before, after = (
            f'{quick_config()}[[alerts.alertmanagers]]\nname = "am"\nurl = "{site.url}"\n' for site in (old, new)
        )
        with running_daemon(tmp_path, *machine.arguments, config=before) as daemon:
            machine.fill()
            wait_for_deliveries(old, 1)
            daemon.wait_for("/api/v1/receivers", lambda found: found[0]["pending"] == 0)
            use(daemon, tmp_path, after)
            told = wait_for_deliveries(new, 1)

    assert [one["labels"]["alertname"] for one in json.loads(told[0].body)] == [
        one["labels"]["alertname"] for one in json.loads(old.deliveries[0].body)
    ]
    assert len(old.deliveries) == 1


def test_who_comes_while_an_alert_fires_is_told_of_it(tmp_path: Path) -> None:
    """Once, since when it fires as well; who was told before is not told again, and both hear of its end."""
    with firing(tmp_path) as (machine, daemon, first), receiving() as second:
        use(daemon, tmp_path, quick_config(first, second))
        wait_for_deliveries(second, 1)
        use(daemon, tmp_path, quick_config(first, second, extra="\n[history]\nlength = '20m'\n"))
        machine.empty()
        wait_for_deliveries(second, 2)
        wait_for_deliveries(first, 2)

    told = [[json.loads(one.body) for one in site.deliveries] for site in (first, second)]
    assert [[one["event"] for one in bodies] for bodies in told] == [["pressure.critical", "pressure.resolved"]] * 2
    early, late = (bodies[0] for bodies in told)
    assert late["unix"] > early["unix"]
    assert {**late, "id": 0, "time": 0, "unix": 0, "top": 0} == {**early, "id": 0, "time": 0, "unix": 0, "top": 0}


def test_who_comes_during_a_silence_is_told_at_its_end(tmp_path: Path) -> None:
    """Not before, and nobody is told again who knows."""
    with firing(tmp_path) as (_, daemon, first), receiving() as second:
        (made,) = get(daemon.port, "/api/v1/silences?seconds=600&target=ram", method="POST").json
        use(daemon, tmp_path, quick_config(first, second))
        pass_ticks(daemon)
        in_silence = len(second.deliveries)
        get(daemon.port, f"/api/v1/silences/{made['id']}", method="DELETE")
        told = wait_for_deliveries(second, 1)
        pass_ticks(daemon)

    assert in_silence == 0
    assert [json.loads(one.body)["event"] for one in told] == ["pressure.critical"]
    assert (len(first.deliveries), len(second.deliveries)) == (1, 1)


def test_who_comes_with_a_restart_is_told_of_what_fires(tmp_path: Path) -> None:
    """The alert outlives the daemon, so it is not told anew; who has not heard of it is."""
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

    told = [[json.loads(one.body)["event"] for one in site.deliveries] for site in (first, second)]
    assert told == [["pressure.critical", "pressure.resolved"]] * 2


def test_who_wants_to_hear_of_more_is_told_what_of_it_fires(tmp_path: Path) -> None:
    """Its name and its box stay; of the alert that it did not want it has not heard."""
    machine = AlertMachine.of(tmp_path)
    with receiving() as first, receiving() as second:
        more = quick_config(first, second)
        less = f'{more}events = ["device.lost"]\n'
        with running_daemon(tmp_path, *machine.arguments, config=less) as daemon:
            machine.fill()
            wait_for_deliveries(first, 1)
            use(daemon, tmp_path, more)
            told = wait_for_deliveries(second, 1)

    assert json.loads(told[0].body)["event"] == "pressure.critical"
    assert len(first.deliveries) == 1


def test_what_is_on_its_way_is_not_sent_again(tmp_path: Path) -> None:
    """Settings that change while a receiver takes its time: what it answers is heard."""
    with receiving() as site, running_daemon(tmp_path, config=quick_config(site)) as daemon:
        site.may_answer.clear()
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        wait_for_deliveries(site, 1)
        use(daemon, tmp_path, quick_config(site).replace(SECRET, OTHER_SECRET))
        site.may_answer.set()
        daemon.wait_for("/api/v1/receivers", lambda found: found[0]["pending"] == 0)
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        first, second = wait_for_deliveries(site, 2)
        Webhook(SECRET).verify(first.body, first.headers)
        Webhook(OTHER_SECRET).verify(second.body, second.headers)

    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert len(site.deliveries) == 2


def test_what_waited_for_who_is_gone_is_not_kept(tmp_path: Path) -> None:
    """It is dropped, with a warning, on disk as well; so is what waited for a receiver of another sort."""
    state = f"--state-dir={tmp_path / 'state'}"
    with receiving(503) as site, running_daemon(tmp_path, state, config=quick_config(site, site)) as daemon:
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        wait_for_deliveries(site, 2)
        alertmanager = f'[[alerts.alertmanagers]]\nname = "site1"\nurl = "{site.url}"\n'
        use(daemon, tmp_path, alertmanager)
        wait_until(lambda: "memwatch_outbox_durable 1.0" in daemon.get("/metrics").text)
        log, pending = daemon.log.read_text(), daemon.get("/api/v1/receivers").json[0]["pending"]
        assert daemon.terminate() == 0
    with running_daemon(tmp_path, state) as again:
        later = again.log.read_text()

    assert "WARNING receiver removed or changed: site0; notifications dropped: 1" in log
    assert "WARNING receiver removed or changed: site1; notifications dropped: 1" in log
    assert pending == 0
    assert "no longer" not in later


def test_receivers_for_which_there_is_no_thread_are_told_when_there_is(tmp_path: Path) -> None:
    """A reload at the worst time: systemd hears that it is over, later ones work, and nobody stays without."""
    path = str(tmp_path / "notify")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        receiving() as site,
        running_daemon(tmp_path, environ={"NOTIFY_SOCKET": path}) as daemon,
    ):
        manager.bind(path)
        manager.settimeout(60.0)
        sizes = Path(f"/proc/{daemon.pid}/statm").read_text().split()
        room = int(sizes[0]) * resource.getpagesize() + 4 * MIB  # too little for a stack, enough for all else
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
        use(daemon, tmp_path, quick_config(*[site] * 8))
        wait_until(lambda: "webhook-site7 cannot start a thread, retrying" in daemon.log.read_text())
        use(daemon, tmp_path, quick_config(*[site] * 9))
        heard = [manager.recv(4096).decode() for _ in range(20)]
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_until(lambda: "webhook-site8 has started its thread" in daemon.log.read_text())
        get(daemon.port, "/api/v1/alerts/test", method="POST")
        wait_for_deliveries(site, 9)
        log = daemon.log.read_text()

    about_state = [line for text in heard for line in text.splitlines() if line in ("READY=1", "RELOADING=1")]
    assert about_state == ["RELOADING=1", "READY=1"] * 2
    assert log.count("webhook-site7 cannot start a thread") == 1
    assert "sample skipped" not in log


def test_settings_that_cannot_be_taken_up_leave_the_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong when they are read again, systemd hears that it is over, and the next time works."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    first, second = (settings_from(tmp_path, f"[history]\nlength = '{minutes}m'\n") for minutes in (20, 40))
    answers: list[Exception] = [OSError(errno.EMFILE, "Too many open files"), MemoryError()]

    def load() -> Settings:
        if answers:
            raise answers.pop(0)
        return second

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, caplog.at_level(logging.INFO):
        manager.bind(path)
        manager.settimeout(60.0)
        daemon = Daemon(first, load)
        for _ in range(2):
            daemon.reload()
            assert daemon.settings is first
        daemon.reload()
        daemon.stop()
        heard = "\n".join(manager.recv(4096).decode() for _ in range(7)).splitlines()

    assert daemon.settings is second
    assert [line for line in heard if line in ("READY=1", "RELOADING=1")] == ["RELOADING=1", "READY=1"] * 3
    assert heard[-1] == "STOPPING=1"
    assert "reload failed, keeping the old settings: [Errno 24] Too many open files" in caplog.messages
    assert "reload failed, keeping the old settings: MemoryError" in caplog.messages
