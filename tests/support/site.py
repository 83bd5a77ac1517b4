"""The pages and the API of a daemon in the process of the test, for any snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import generate_latest

from memwatch.core.snapshot import Snapshot
from memwatch_web.api_app import create_api
from memwatch_web.asgi.routes import METRICS, is_of_api
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatch_web.pages_app import create_pages_app
from memwatchd.web_app import create_page_services, create_services
from support.machine_exports import Source, machine_daemon
from support.paths import MACHINES

ANY_MACHINE = Source(MACHINES / "headless-server")


class Site:
    """Applications of one daemon. `show` publishes a snapshot in place of the daemon's."""

    def __init__(self, daemon: Any) -> None:
        services = create_services(daemon)
        self._daemon = daemon
        self._exporter = daemon.exporter()
        self._apps = (
            create_pages_app(create_page_services(daemon, services)),
            create_api(services, MetricsEndpoint(daemon.monitor, lambda: self._exporter)),
        )

    def show(self, snapshot: Snapshot) -> None:
        self._daemon.monitor.publisher.latest = snapshot
        self._daemon.clock.now = snapshot.monotonic

    def get(self, path: str) -> str:
        """Return the body of an answer. Raises AssertionError unless it is 200."""
        if path == METRICS:
            return str(self._exporter.render(self._daemon.latest, generate_latest).decode())
        return asyncio.run(self._get(path))

    async def _get(self, target: str) -> str:
        url, sent = urlsplit(target), list[MutableMapping[str, Any]]()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": "GET",
            "path": url.path,
            "query_string": url.query.encode(),
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 6360),
        }
        await self._apps[is_of_api(url.path)](scope, receive, send)
        body = b"".join(one.get("body", b"") for one in sent)
        assert sent[0]["status"] == 200, (target, sent[0]["status"], body[:300])
        return body.decode()


@contextmanager
def any_site(**environ: str) -> Iterator[Site]:
    """Yield the site of a daemon without a machine. `environ`: its settings."""
    with machine_daemon(ANY_MACHINE, frozenset(), **environ) as daemon:
        yield Site(daemon)
