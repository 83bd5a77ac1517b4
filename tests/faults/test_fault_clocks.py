"""Test clock steps and suspend, simulated at libc: intervals are not affected."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fault_oracle import back_in_time, survived
from msgspec import Struct

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, get, running_daemon
from support.libc_faults import LibcFaults
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

HOUR, DAY = 3600, 86_400


class Clocked(Struct, frozen=True):
    """A daemon with adjustable clocks, critical memory and one delivered alert."""

    faults: LibcFaults
    machine: AlertMachine
    site: Site
    daemon: RunningDaemon
    watchdog: socket.socket

    def events(self, kind: str) -> list[Any]:
        return [event for event in self.daemon.get("/api/v1/events").json if event["kind"] == kind]

    def wait_for(self, kind: str, count: int) -> None:
        wait_until(lambda: len(self.events(kind)) >= count)

    def wait_until_fed(self, times: int) -> None:
        """A step of the clock would end the notifications for an hour or days."""
        for _ in range(times):
            wait_until(self.fed, describe=lambda: "no watchdog notification")

    def fed(self) -> int:
        """Return the number of watchdog messages since the last call."""
        messages = []
        with suppress(BlockingIOError):
            while True:
                messages.append(self.watchdog.recv(4096))
        return sum(b"WATCHDOG=1" in message for message in messages)


@contextmanager
def clocked(tmp_path: Path) -> Iterator[Clocked]:
    faults, machine = LibcFaults.of(tmp_path), AlertMachine.of(tmp_path)
    state = f"--state-dir={tmp_path / 'state'}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as watchdog, receiving(200) as site:
        watchdog.bind(str(tmp_path / "notify"))
        watchdog.setblocking(False)
        environ = {**faults.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
        with running_daemon(
            tmp_path, *machine.arguments, state, config=quick_config(site), environ=environ
        ) as daemon:
            machine.fill()
            wait_for_deliveries(site, 1)
            yield Clocked(faults, machine, site, daemon, watchdog)


def delivered_events(site: Site) -> list[str]:
    return [json.loads(delivery.body)["event"] for delivery in site.deliveries]


def test_clock_step_ends_no_alert_and_moves_no_history(tmp_path: Path) -> None:
    """Steps two days forward, an hour back, to 1970 and to now while an alert fires; then a start in 1970."""
    with clocked(tmp_path) as one:
        for wanted in (2 * DAY, -HOUR, -int(time.time()) + HOUR, 0):
            with survived(one.daemon):
                before = len(one.events("clock"))
                one.faults.set_wall_clock(wanted)
                one.wait_for("clock", before + 1)
                one.fed()
                one.wait_until_fed(3)
            assert [alert["state"] for alert in one.daemon.get("/api/v1/alerts").json] == ["firing"]
            assert_in_order(one.daemon)
        assert delivered_events(one.site) == ["pressure.critical"]
        assert one.events("suspend") == []
        one.machine.empty()
        resolved = wait_for_deliveries(one.site, 2)[1]
        one.machine.fill()
        wait_for_deliveries(one.site, 3)
        one.daemon.process.kill()
        one.daemon.process.wait(MAX_WAIT_SECONDS)

        one.faults.set_wall_clock(-int(time.time()) + HOUR)
        arguments = [*one.machine.arguments, f"--state-dir={tmp_path / 'state'}"]
        with back_in_time(
            tmp_path, *arguments, config=quick_config(one.site), environ=one.faults.environ
        ) as daemon:
            assert [alert["state"] for alert in daemon.get("/api/v1/alerts").json] == ["firing"]
            assert_in_order(daemon, least=3)
            time.sleep(1.0)
    assert abs(int(resolved.headers["webhook-timestamp"]) - time.time()) < 60
    assert delivered_events(one.site)[:3] == ["pressure.critical", "pressure.resolved", "pressure.critical"]
    assert len({delivery.headers["webhook-id"] for delivery in one.site.deliveries}) == 3


def test_wall_clock_that_is_set_neither_extends_nor_shortens_a_silence(tmp_path: Path) -> None:
    """Set two days back, a silence of some seconds still ends. Set two days forward, one of an hour continues."""
    with clocked(tmp_path) as one:
        silence(one.daemon, 5, "short")
        silence(one.daemon, HOUR, "long")
        one.faults.set_wall_clock(-2 * DAY)
        one.wait_for("clock", 1)
        one.daemon.wait_for("/api/v1/silences", lambda found: [each["comment"] for each in found] == ["long"])
        one.faults.set_wall_clock(2 * DAY)
        one.wait_for("clock", 2)
        (alert,) = one.daemon.get("/api/v1/alerts").json
        (left,) = one.daemon.get("/api/v1/silences").json
        unix = one.daemon.snapshot()["unix"]
        assert one.daemon.terminate() == 0

        arguments = [*one.machine.arguments, f"--state-dir={tmp_path / 'state'}"]
        one.faults.set_wall_clock(0)
        with running_daemon(
            tmp_path, *arguments, config=quick_config(one.site), environ=one.faults.environ
        ) as daemon:
            (restored,) = daemon.get("/api/v1/silences").json

    assert alert["silenced"] is True
    assert HOUR - 60 < left["until_unix"] - unix <= HOUR
    assert abs(left["until_unix"] - left["created_unix"] - HOUR) < 0.001
    assert abs(restored["until_unix"] - left["until_unix"] + 2 * DAY) < 1


def test_wall_clock_that_is_behind_after_a_reboot_extends_no_silence(tmp_path: Path) -> None:
    """Rebooted with a clock two days behind: at most the whole duration, and a restart does not begin it again."""
    faults, machine, state = LibcFaults.of(tmp_path), AlertMachine.of(tmp_path), tmp_path / "state"
    boot_id = machine.folder / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    ends: list[float] = []
    for boot, wall_seconds in (("first", 0), ("second", -2 * DAY), ("second", -4 * DAY)):
        boot_id.write_text(f"{boot}\n")
        faults.set_wall_clock(wall_seconds)
        with running_daemon(tmp_path, *machine.arguments, f"--state-dir={state}", environ=faults.environ) as daemon:
            if not ends:
                silence(daemon, HOUR, "loading")
            (found,) = daemon.get("/api/v1/silences").json
            ends.append(found["until_unix"] - wall_seconds)
            wait_until(partial(is_saved, state, boot))
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.process.wait(MAX_WAIT_SECONDS)

    first, second, restarted = ends
    assert first < second < first + 60
    assert abs(restarted - second) < 1.0


def is_saved(state: Path, boot: str) -> bool:
    """Check that the silences are on disk, with their end in this boot. memwatchd locks the database."""
    saved = f'"boot_id": "{boot}", "silences": [{{'.encode()
    return any(saved in file.read_bytes() for file in state.glob("outbox.sqlite*"))


def silence(daemon: RunningDaemon, seconds: int, comment: str) -> None:
    path = f"/api/v1/silences?seconds={seconds}&target=ram&comment={comment}"
    assert get(daemon.port, path, method="POST").status == 200


def assert_in_order(daemon: RunningDaemon, least: int = 1) -> None:
    """Timestamps of the history ascend, whatever the wall clock shows."""
    known = times_known(daemon, daemon.snapshot()["unix"] - HOUR)
    assert len(known) >= least
    assert known == sorted(set(known))
    assert known[-1] <= daemon.snapshot()["unix"] + 1


def times_known(daemon: RunningDaemon, since: float) -> list[float]:
    path = f"/api/v1/history?series=pool.ram.used_bytes&points=2000&from={since}"
    (series,) = daemon.get(path).json["series"]
    return [at for at, most in zip(series["unix"], series["max"], strict=True) if most is not None]


def test_suspend_of_an_hour_is_a_gap_and_no_trend(tmp_path: Path) -> None:
    """Boot time and wall clock advance, monotonic time does not: an event, no forecast across it, watchdog fed."""
    with clocked(tmp_path) as one:
        one.machine.empty()
        one.daemon.wait_for("/api/v1/alerts", lambda alerts: alerts == [])
        one.fed()
        with survived(one.daemon):
            one.faults.suspend(HOUR)
            one.machine.set_available(36_000_000)
            one.wait_for("suspend", 1)
            one.fed()
            one.wait_until_fed(3)
        (slept,) = one.events("suspend")
        forecasts = [pressure["seconds_to_full"] for pressure in one.daemon.get("/api/v1/pressure").json]
        known = times_known(one.daemon, one.daemon.snapshot()["unix"] - 2 * HOUR)
        clock = one.events("clock")

    assert slept["text"] == "machine suspended for 3600 s"
    assert clock == []
    assert forecasts == [None] * len(forecasts)
    assert max(late - early for early, late in itertools.pairwise(known)) >= HOUR - 10
