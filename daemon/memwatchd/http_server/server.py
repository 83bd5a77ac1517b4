"""Web server: uvicorn without its ten wake-ups a second, stopped by the daemon, and TLS on counted connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import uvicorn

from memwatch.core.linux.host_names import OwnNames
from memwatch.core.model import RAM
from memwatch.core.snapshot import Level, Snapshot
from memwatch_monitor.feature import Feature
from memwatch_web.asgi.access import AccessControl, response_headers
from memwatch_web.asgi.lazy_app import AppLoader, LazyApp
from memwatch_web.asgi.routes import METRICS
from memwatch_web.metrics.endpoint import MetricsEndpoint, MetricsFastPath
from memwatchd import wiring
from memwatchd.daemon import Daemon
from memwatchd.http_server.limits import Connections, Limits, StreamCount, no_streams
from memwatchd.http_server.protocol import AtOnce, http_protocol
from memwatchd.liveness import EVENT_LOOP, LoopPing, ThreadLog, TickCheck

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from memwatch_web.api.services import Services

log = logging.getLogger(__name__)

# The limits depend on parts of uvicorn that any release may change. tests/unit/http_server check each limit with
# the release that pyproject.toml pins.
TESTED_UVICORN = "0.54"
KEEP_ALIVE_SECONDS = 75
GRACEFUL_SECONDS = 3
REPEAT_SECONDS = 60.0
# Backlog of a listening socket, and connections accepted per wake-up of the event loop before closed ones are
# handled. asyncio uses one number for both, uvicorn's is 2,048: a flood would take every descriptor before a limit
# applies. With `ulimit -n 64` and 46 descriptors in use, 4 and 8 were too many: asyncio then accepts nothing for a
# second. 8 would serve 7,600 new connections a second, 2 serve 6,100.
BACKLOG, ACCEPT_AT_ONCE = 1024, 2
NOTHING: Mapping[bytes, AtOnce] = MappingProxyType({})


class CountedProtocol(Protocol):
    """HTTP protocol that counts a connection before it is made."""

    def accept(self, transport: asyncio.Transport) -> None: ...
    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class TlsProtocol(asyncio.Protocol):
    """Passes a connection to `http` when TLS is established.

    With `ssl=` in `create_server`, asyncio reports a connection only after its handshake: 512 silent clients took
    all descriptors before a limit applied.
    """

    def __init__(self, http: CountedProtocol, context: ssl.SSLContext, handshake_seconds: float) -> None:
        self._http = http
        self._context = context
        self._seconds = handshake_seconds
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._http.accept(transport)
        if not transport.is_closing():
            self._handshake = asyncio.get_running_loop().create_task(self._start(transport))

    def data_received(self, data: bytes) -> None:
        """Keep a request that arrives together with the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._http.connection_lost(exc)

    async def _start(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except OSError as error:
            self.connection_lost(error)
            return
        if secured is None:  # closed during the handshake (CPython 3.10 to 3.13)
            self.connection_lost(None)
        elif not self._is_lost:
            self._hand_over(secured)

    def _hand_over(self, secured: asyncio.Transport) -> None:
        secured.set_protocol(cast("asyncio.Protocol", self._http))
        self._http.connection_made(secured)
        if self._early:
            self._http.data_received(b"".join(self._early))


class LimitsError(Exception):
    """The limits on requests and connections may not be in force."""


def require_tested_uvicorn() -> None:
    if not uvicorn.__version__.startswith(f"{TESTED_UVICORN}."):
        raise LimitsError(
            f"the limits for clients are tested with uvicorn {TESTED_UVICORN} only, and this is "
            f"{uvicorn.__version__}; reinstall memwatchd, which brings a version that pyproject.toml allows"
        )


class Server(uvicorn.Server):
    """uvicorn's server without polling. Call `stop` in the event loop's thread."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        at_once: Mapping[bytes, AtOnce] = NOTHING,
        simulated: bool = False,
        streams: StreamCount = no_streams,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=http_protocol(limits, Connections(limits, streams), at_once, simulated),
            ws="none",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",  # it logs up to three warnings for every malformed request
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=ACCEPT_AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )
        super().__init__(config)
        self._leave = asyncio.Event()
        self._tls = tls
        self._receive_seconds = limits.receive_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving: plain HTTP on Unix sockets, TLS on TCP sockets if configured."""
        listeners = sockets or []
        tls = self._tls
        secured = [] if tls is None else [one for one in listeners if one.family != socket.AF_UNIX]
        await super().startup([one for one in listeners if one not in secured])
        if tls is not None:
            for listener in secured:
                await self._serve_tls(listener, tls)
        for listener in listeners:
            listener.listen(BACKLOG)

    async def _serve_tls(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Accept without `ssl=`, which would report a connection only after its handshake."""
        server = await asyncio.get_running_loop().create_server(
            lambda: TlsProtocol(self._protocol(), context, self._receive_seconds),
            sock=listener,
            backlog=ACCEPT_AT_ONCE,
        )
        self.servers.append(server)

    def _protocol(self) -> Any:  # noqa: ANN401  the protocol of `http_protocol`, which uvicorn does not type
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def stop(self) -> None:
        self.should_exit = True
        self._leave.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield

    async def main_loop(self) -> None:
        await self._leave.wait()


def use_date_headers(server: Server, date_headers: list[tuple[bytes, bytes]], simulated: bool) -> None:
    """Send `date_headers` with every response. The owner of the list updates the date in it."""
    marks = [(name.encode(), value.encode()) for name, value in response_headers(simulated)]
    date_headers[:] = [(b"date", b""), *marks]
    server.server_state.default_headers = date_headers


class LoopErrorLog:
    """Log errors of the event loop in one line without traceback, the same line at most once a minute.

    Out of descriptors, CPython 3.11 reports up to 2,048 errors a second.
    """

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context["message"] if error is None else f"{context['message']}: {type(error).__name__}: {error}"
        if self._logged.get(text, -math.inf) <= loop.time() - REPEAT_SECONDS:
            self._logged = {text: loop.time(), **dict(list(self._logged.items())[-100:])}
            log.error("%s", text)
            log.debug("traceback of this error", exc_info=error)


async def serve(daemon: Daemon, sockets: list[socket.socket]) -> bool:
    """Serve requests and tick until SIGTERM or SIGINT. Return False if the tick thread ended before.

    Raise LimitsError if the limits are not tested with this uvicorn.
    """
    require_tested_uvicorn()
    loop = asyncio.get_running_loop()
    dates: list[tuple[bytes, bytes]] = []
    metrics_endpoint = MetricsEndpoint(daemon.monitor, daemon.exporter, daemon.latest_scrape)
    lazy_app = create_lazy_app(daemon, metrics_endpoint)
    daemon.on_leaving.append(lazy_app.close)
    simulated = daemon.monitor.simulated
    access = AccessControl(
        lazy_app, daemon.web_options, dates, simulated, OwnNames(daemon.roots), daemon.callers, daemon.failed_logins
    )
    server = Server(
        access,
        Limits(),
        daemon.tls,
        {METRICS.encode(): MetricsFastPath(access, metrics_endpoint, dates)},
        simulated,
        daemon.broker.count,
    )
    loop.set_exception_handler(LoopErrorLog())
    use_date_headers(server, dates, simulated)
    answer_signals(loop, daemon, server)
    tick_check = TickCheck(loop, daemon.monitor, daemon.is_ticking, lambda: leave(daemon, server))
    daemon.monitor.features.add(Streams(loop, daemon, lazy_app, tick_check))
    daemon.monitor.features.call("serve", loop)
    daemon.start_ticking()
    log.info("listening on %s", ", ".join(wiring.list_addresses(sockets, "https" if daemon.tls else "http")))
    daemon.ready()
    tick_check.schedule()
    await server.serve(sockets=sockets)
    return not tick_check.has_ended


class Streams(Feature):
    """Publishes each tick to clients and systemd, and checks event loop and delivery, in the ticks' thread."""

    name = "streams"

    def __init__(
        self, loop: asyncio.AbstractEventLoop, daemon: Daemon, lazy_app: LazyApp, tick_check: TickCheck
    ) -> None:
        self._loop, self._daemon, self._lazy_app = loop, daemon, lazy_app
        self._thread_log, self._ping = ThreadLog(), LoopPing(loop, tick_check.on_ping)

    def on_publish(self, snapshot: Snapshot) -> None:
        loop, daemon = self._loop, self._daemon
        if daemon.broker.streams and not loop.is_closed():
            loop.call_soon_threadsafe(daemon.broker.wake)
        if not self._lazy_app.is_prepared and is_tight(snapshot) and not loop.is_closed():
            self._lazy_app.prepare_soon(loop)
        states = daemon.thread_states()
        self._thread_log.update({EVENT_LOOP: self._ping.state(), **states})
        if self._ping.is_answered:
            daemon.report_alive(snapshot, states)
        self._ping.send()


def create_lazy_app(daemon: Daemon, metrics_endpoint: MetricsEndpoint) -> LazyApp:
    @cache
    def services() -> Services:
        from memwatchd.web_app import create_services

        return create_services(daemon)

    def make_api() -> ASGIApp:
        leave_out_pydantic_1()
        from memwatch_web.api_app import create_api

        return create_api(services(), metrics_endpoint)

    def make_pages() -> ASGIApp:
        from memwatch_web.pages_app import create_pages_app
        from memwatchd.web_app import create_page_services

        return create_pages_app(create_page_services(daemon, services()))

    metrics = AppLoader("the metrics", metrics_endpoint.prepare, is_light=True)
    pages = AppLoader("the pages", make_pages)
    return LazyApp(daemon.monitor, metrics, pages, AppLoader("the API", make_api))


def leave_out_pydantic_1() -> None:
    """Let FastAPI take Pydantic 1 for absent: to check that no model is one of it, it loads 2 MiB (0.165)."""
    sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type]  # makes `import` raise ImportError


def is_tight(snapshot: Snapshot) -> bool:
    """True if System RAM gets scarce. VRAM is often full on purpose, and the daemon needs none of it."""
    return any(verdict.level >= Level.HIGH and verdict.target == RAM for verdict in snapshot.pressure)


def answer_signals(loop: asyncio.AbstractEventLoop, daemon: Daemon, server: Server) -> None:
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, leave, daemon, server)
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)


def leave(daemon: Daemon, server: Server) -> None:
    log.info("memwatchd is stopping")
    daemon.stop_ticking()
    daemon.broker.close()
    for callback in (*daemon.on_leaving, *(feature.leave for feature in daemon.monitor.features)):
        callback()
    server.stop()
