"""Test features: one class and one line add one, a failing one takes no other along, none is imported unused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from memwatch.core.clock import SystemClock
from memwatch.core.findings import Findings
from memwatch.core.reading.identity import Identity
from memwatch.core.reading.machine import Additions
from memwatch.core.reading.sampler import Sampler
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Family, Feature, MonitorRules, Tick
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.lazy_app import AppLoader, LazyApp
from memwatchd import features
from memwatchd.daemon import Daemon
from support.monitors import ALWAYS, create_monitor, history
from support.sample_snapshots import calm_workstation
from support.settings_sample import settings_from

OFF = (
    "memwatch_monitor.notify.alertmanager",
    "memwatch_monitor.notify.apprise",
    "memwatch_monitor.notify.sqlite_store",
    "memwatchd.neighbours.follower",
    "memwatchd.neighbours.mdns",
    "memwatchd.otlp",
    "memwatchd.systemd.pressure_sockets",
    "memwatchd.systemd.serve",
    "memwatchd.systemd.serve",
)


class Counting(Feature):
    """All that a new feature needs."""

    name = "counting"

    def __init__(self, monitor: Monitor) -> None:  # noqa: ARG002
        self.ticks, self.has_started, self.has_ended = 0, False, False

    def on_tick(self, tick: Tick) -> None:  # noqa: ARG002
        self.ticks += 1

    def start(self) -> None:
        self.has_started = True

    def close(self) -> None:
        self.has_ended = True

    def families(self) -> Iterable[Family]:
        yield Family("counter", "counted_ticks", "Total ticks.", [((), self.ticks)])

    def routes(self) -> Mapping[str, Callable[[], object]]:
        return {"/api/v1/counted": lambda: {"ticks": self.ticks}}


def test_name_of_the_machine_is_followed_once_a_minute() -> None:
    """DHCP and cloud-init set it after the start of the daemon."""
    reads, renamed = iter(["localhost", "edge-7"]), list[str]()
    feature = features.HostName(lambda: next(reads), renamed.append)
    snapshot = replace(calm_workstation(), host="localhost")
    for seconds in (0.0, 59.0, 60.0, 119.0):
        feature.on_publish(replace(snapshot, monotonic=1000.0 + seconds))
    assert renamed == ["edge-7"]


@pytest.mark.process
def test_new_name_of_the_machine_is_in_snapshots_and_alerts(tmp_path: Path) -> None:
    settings = settings_from(tmp_path, "[web]\nlisten = ['127.0.0.1:6360']\n")
    daemon = Daemon(settings, lambda _: settings)
    before = daemon.monitor.tick()
    daemon.rename("edge-7")
    after = daemon.monitor.tick()
    senders = daemon.live.sender, daemon.monitor.features.get(features.Alerting).sender
    daemon.stop()
    assert before.host != "edge-7"
    assert (after.host, after.boot_id) == ("edge-7", before.boot_id)
    assert [one.instance for one in senders] == ["edge-7:6360"] * 2


@pytest.mark.process
def test_feature_is_added_with_one_class_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwatchd.daemon.FEATURES", (*features.FEATURES, Counting.create))
    settings = settings_from(tmp_path, "[web]\nlisten = ['127.0.0.1:0']\n")
    daemon = Daemon(settings, lambda _: settings)
    daemon.start()
    daemon.first_tick()
    counting = daemon.monitor.features.get(Counting)
    text = daemon.exporter().render(daemon.monitor.tick(), generate_latest).decode()
    unused = AppLoader("pages", lambda: PlainTextResponse())
    status, body = get(LazyApp(daemon.monitor, unused, unused, unused), "/api/v1/counted")
    daemon.stop()

    assert (counting.ticks, counting.has_started, counting.has_ended) == (2, True, True)
    assert "memwatch_counted_ticks_total 2.0\n" in text
    assert (status, json.loads(body)) == (200, {"ticks": 2})


def get(app: ASGIApp, path: str) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        await app({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)

    asyncio.run(ask())
    return sent[0]["status"], sent[1]["body"]


class Failing(Feature):
    """A feature whose every hook fails."""

    name = "failing"

    def on_findings(self, findings: Findings) -> Findings:  # noqa: ARG002
        raise ValueError("no findings")

    def on_additions(self, additions: Additions) -> Additions:  # noqa: ARG002
        raise MemoryError

    def on_tick(self, tick: Tick) -> None:  # noqa: ARG002
        raise OSError("no tick")

    def on_publish(self, snapshot: Snapshot) -> None:  # noqa: ARG002
        raise KeyError("no publication")


def test_failing_feature_is_logged_once_and_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    monitor = Monitor(Sampler([], clock), clock, MonitorRules(interval_seconds=0.001), Identity("host", "boot"))
    monitor.features.add(Failing())
    for kind in ALWAYS:
        monitor.features.add(kind.of(monitor))
    after = Counting(monitor)
    monitor.features.add(after)
    for _ in range(5):
        monitor.tick()

    assert after.ticks == 5
    assert monitor.latest is not None
    assert monitor.latest.seq == 5
    assert len(history(monitor).tiers) >= 1
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [
        "failing failed: ValueError: no findings",
        "failing failed: out of memory",
        "failing failed: OSError: no tick",
        "failing failed: KeyError: 'no publication'",
    ]


def test_features_are_found_by_their_type() -> None:
    clock = SystemClock()
    monitor = create_monitor(Sampler([], clock), clock, MonitorRules(), Identity("host", "boot"))

    assert monitor.features.find(Counting) is None
    with pytest.raises(LookupError):
        monitor.features.get(Counting)


@pytest.mark.process
def test_features_that_are_off_are_not_imported(tmp_path: Path) -> None:
    program = f"""
import json, sys
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from pathlib import Path
settings = load({{"listen": ("127.0.0.1:0",)}}, {{}}, default_file=Path({str(tmp_path / "none")!r}))
daemon = Daemon(settings, lambda _: settings)
daemon.start()
daemon.first_tick()
import memwatchd.http_server.server
print(json.dumps([name for name in {OFF!r} if name in sys.modules]))
daemon.stop()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert json.loads(found.stdout) == []
