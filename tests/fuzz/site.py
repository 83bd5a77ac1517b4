"""The daemon's whole web side in this process: the real application on a simulated machine, without sockets."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cache
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import ASGIApp, Scope

from fuzz.oracle import as_file
from memwatch_web.asgi.access import AccessControl, WebOptions
from memwatch_web.asgi.auth import FailedLogins
from memwatch_web.asgi.caller import CallerLookup
from memwatch_web.asgi.login import Login, parse_token
from memwatch_web.asgi.routes import METRICS
from memwatch_web.metrics.endpoint import MetricsEndpoint, MetricsFastPath
from memwatchd.daemon import Daemon
from memwatchd.http_server.limits import Limits
from memwatchd.http_server.server import Server, create_lazy_app, use_date_headers
from memwatchd.settings.load import load
from memwatchd.settings.schema import Settings
from support.open_things import kept_open
from support.paths import MACHINES

MACHINE = MACHINES / "strix-halo"
# Valid statuses: success, errors of the request, or temporarily unavailable.
RIGHT = {100, 200, 204, 206, 303, 304, 307, *range(400, 432), 503}


class Complaints(logging.Handler):
    """Handler that records log messages with a traceback, which are internal errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class Site(Struct, frozen=True):
    """Web side of a daemon. `loop` advances only while it is run."""

    loop: asyncio.AbstractEventLoop
    app: ASGIApp
    server: Server
    complaints: Complaints

    def connection(self) -> Any:
        protocol: Any = self.server._protocol()
        return protocol


@cache
def site(token: str = "") -> Site:
    """Return the web side of a daemon, which requires the token if one is given."""
    with kept_open():
        return _site(token)


def _site(token: str) -> Site:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    daemon = Daemon(settings(), lambda _: settings())
    daemon.sampler.start()
    daemon.first_tick()
    daemon.sampler.stop()
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    options = replace(daemon.web_options(), login=Login(parse_token(token) if token else None))
    return Site(loop, *loop.run_until_complete(started(daemon, options)), complaints)


async def started(daemon: Daemon, options: WebOptions) -> tuple[ASGIApp, Server]:
    dates = list[tuple[bytes, bytes]]()
    metrics_endpoint = MetricsEndpoint(daemon.monitor, daemon.exporter)
    lazy_app = create_lazy_app(daemon, metrics_endpoint)
    app = AccessControl(lazy_app, lambda: options, dates, callers=OwnUser(), failures=no_limit())
    server = Server(app, Limits(), at_once={METRICS.encode(): MetricsFastPath(app, metrics_endpoint, dates)})
    server.config.load()
    use_date_headers(server, dates, simulated=False)
    server.lifespan = server.config.lifespan_class(server.config)
    for part in lazy_app._parts:
        await part.prepare()
    return app, server


def no_limit() -> FailedLogins:
    """Return a table in which a minute passes at every look, so that equal requests get equal answers."""
    return FailedLogins(count(0.0, 60.0).__next__)


class OwnUser(CallerLookup):
    """Lookup that finds the user of this process: these requests come from no socket."""

    async def uid(self, scope: Scope) -> int | None:  # noqa: ARG002
        return os.geteuid()


def settings() -> Settings:
    with as_file(b"[processes]\ntop = 50\n", ".toml") as path:
        roots = {"procfs": MACHINE / "proc", "sysfs": MACHINE / "sys", "rootfs": MACHINE / "root"}
        return load({"config": str(path), **{flag: str(folder) for flag, folder in roots.items()}}, {})
