"""Count the files that the main roads through the code enter: `make roads`, or with `--show` their names in order.

A file counts once one of its functions runs during the road, as `sys.setprofile` sees it, in this thread. Each
road is walked twice and the second time is counted, when modules are loaded and caches are filled.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from msgspec import Struct

from memwatch import memory_info
from memwatch.cli import cli
from memwatch.core.findings import Findings
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.processes.unreturned import ReturnChanges
from memwatch_monitor.alert_states import Alerts
from memwatch_monitor.alerts.rules import KERNEL, OOM_KILL
from memwatch_monitor.feature import Tick
from memwatch_monitor.loop import Monitor
from memwatch_monitor.notify.manager import NotificationManager
from memwatch_web.api_app import create_api
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages_app import create_pages_app
from memwatchd.daemon import Daemon
from memwatchd.settings.load import load
from memwatchd.settings.schema import Settings
from memwatchd.web_app import create_page_services, create_services
from scripts.golden import arguments_of
from support.paths import MACHINES

ROOT = Path(__file__).parents[2]
PRODUCT = (f"{ROOT}/daemon/", f"{ROOT}/web/")
MACHINE = MACHINES / "rtx-4090"
WEBHOOK = """
[[alerts.webhooks]]
name = "ops"
url = "http://127.0.0.1:{port}/"
secret = "whsec_YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyBsZW4="
events = ["kernel.oom_kill"]
"""


class Road(Struct):
    """Files and functions that one walk entered."""

    files: list[str] = []
    functions: set[tuple[str, str]] = set()
    calls: int = 0

    def row(self, name: str) -> str:
        return f"{name:24}{len(self.files):6}{len(self.functions):11}{self.calls:8}"


def walk(road: Callable[[], object]) -> Road:
    """Return the files and functions of the product that `road` runs, in order."""
    found = Road([], set())

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(PRODUCT):
            return
        file = path.removeprefix(f"{ROOT}/")
        found.calls += 1
        found.functions.add(
            (file, frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)
        )
        if file not in found.files:
            found.files.append(file)

    sys.setprofile(profile)
    try:
        road()
    finally:
        sys.setprofile(None)
    return found


def get(app: Callable[..., Any], path: str, query: bytes = b"") -> None:
    """Send a GET to an ASGI application and leave its answer."""
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query,
             "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80),
             "client": ("127.0.0.1", 1), "root_path": ""}  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: object) -> None:
        pass

    asyncio.run(app(scope, receive, send))


class Listener(BaseHTTPRequestHandler):
    """A receiver of webhooks."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def options_of(machine: Path) -> dict[str, str]:
    return {
        flag.removeprefix("--"): value for flag, _, value in (one.partition("=") for one in arguments_of(machine))
    }


@contextmanager
def daemon_of(settings: Settings) -> Iterator[Daemon]:
    """Yield a daemon after three ticks, whose threads have not been started."""
    daemon = Daemon(settings, lambda _: settings)
    with ExitStack() as ending:
        ending.callback(daemon.stop)
        for _ in range(3):
            daemon.monitor.tick()
        yield daemon


def roads() -> dict[str, Road]:
    """Walk every road of a daemon on a committed machine, without a state folder and receivers."""
    found: dict[str, Road] = {}
    with daemon_of(load(options_of(MACHINE), {}, default_file=Path("/nonexistent"))) as daemon:
        found["tick"] = walk(daemon.monitor.tick)
        endpoint = MetricsEndpoint(daemon.monitor, daemon.exporter)
        services = create_services(daemon)
        pages, api = create_pages_app(create_page_services(daemon, services)), create_api(services, endpoint)
        for name, target, path, query in (
            ("/metrics", endpoint, "/metrics", b""),
            ("overview", pages, "/", b""),
            ("/api/v1/snapshot", api, "/api/v1/snapshot", b""),
            ("/api/v1/fit", api, "/api/v1/fit", b"bytes=20GiB"),
            ("/history", pages, "/history", b""),
        ):
            get(target, path, query)
            daemon.monitor.tick()
            found[name] = walk(lambda target=target, path=path, query=query: get(target, path, query))  # type: ignore[misc]
    found["webhook"] = walk_alert()
    found["library reading"] = walk(memory_info)
    with redirect_stdout(StringIO()):
        found["memwatch fit"] = walk(lambda: cli.main(["fit", "20GiB"]))
    return found


def walk_alert() -> Road:
    """Walk from a tick with an OOM kill to its webhook, through an outbox on disk."""
    with TemporaryDirectory() as folder, HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = Path(folder) / "memwatchd.toml"
        file.write_text(WEBHOOK.format(port=server.server_port))
        file.chmod(0o600)
        options = {**options_of(MACHINE), "config": str(file), "state_dir": folder}
        with daemon_of(load(options, {})) as daemon:
            found = walk_notification(daemon.monitor)
        server.shutdown()
    return found


def walk_notification(monitor: Monitor) -> Road:
    """Do the work of the tick's, the outbox's and the receiver's thread in this one."""
    alerts, notifications = monitor.features.get(Alerts), monitor.features.get(NotificationManager)
    (receiver,) = notifications.receivers
    receiver._wait = lambda *_: setattr(receiver, "_closing", True)

    def send() -> None:
        snapshot = monitor.latest
        assert snapshot is not None
        alerts.on_tick(
            Tick(monitor.moment(), None, snapshot, NewKills(), ReturnChanges(), Findings(), monitor.rules)
        )
        notifications.on_publish(snapshot)
        notifications.outbox._write()
        receiver._closing = False
        receiver._serve_all()

    for _ in range(2):
        alerts.states = {}  # else the second kill would wait, as it is soon after the first
        monitor.record(OOM_KILL, "the kernel killed a process", KERNEL)
        found = walk(send)
    assert receiver.counts()["delivered"] == 2, receiver.counts()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="roads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--show", action="store_true", help="print the files in the order in which they are entered"
    )
    shows = parser.parse_args(arguments).show
    print(f"{'road':24}{'files':>6}{'functions':>11}{'calls':>8}")
    for name, road in roads().items():
        print(road.row(name))
        if shows:
            print("\n".join(f"    {file}" for file in road.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
