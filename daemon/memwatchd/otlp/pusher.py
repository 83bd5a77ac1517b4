"""Thread that pushes metrics over OTLP/HTTP with OpenTelemetry's SDK.

The SDK sends by the HTTP client of webhooks: one deadline from the connection to the answer. The timeout of
requests is for each read. A receiver that sends a byte now and then would hold the thread for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from msgspec import Struct
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from memwatch.core.http import DEFAULT_PORTS, Admit
from memwatch.core.runtime.worker import FailureLog, Worker
from memwatch_monitor.feature import Feature
from memwatch_monitor.notify.http_post import Endpoint, Poster, PostResult

if TYPE_CHECKING:
    import asyncio
    import ssl

log = logging.getLogger(__name__)

# Set by requests for a connection that is kept, and for a body that is decoded. Here neither is.
_OF_REQUESTS = frozenset({"connection", "accept", "accept-encoding"})
# The SDK retries within this time; after it the next interval has newer values.
TIMEOUT_SECONDS = 10.0
STOP_SECONDS = 1.0


class PushFailedError(requests.exceptions.ConnectionError):
    """An attempt without an answer, or with a redirect. The message names no path of the URL."""


class DeadlineAdapter(BaseAdapter):
    """Sends each request on a new connection. `tls` returns the context for https, `admit` checks each connection.

    `failure`: why the last attempt failed, without the URL. The SDK has it only in its log.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext], admit: Admit | None = None) -> None:
        super().__init__()
        self._admit = admit
        self.failure = ""
        self._tls = tls
        self._poster: Poster | None = None
        self._is_closed = False

    def send(  # type: ignore[override]  # the stubs have the proxies of a session, which has none here
        self,
        request: requests.PreparedRequest,
        timeout: float | None = None,
        **_: Any,  # noqa: ANN401
    ) -> requests.Response:
        endpoint = parse_endpoint(str(request.url))
        headers = {name: str(value) for name, value in request.headers.items() if name.lower() not in _OF_REQUESTS}
        body = request.body if isinstance(request.body, bytes) else str(request.body or "").encode()
        result = self._post(endpoint, round(timeout or 0.0, 2), headers, body)
        self.failure = "" if result.success else result.failure
        if result.status is None or 300 <= result.status < 400:
            raise PushFailedError(result.failure)
        return build_response(request, result)

    def _post(self, endpoint: Endpoint, seconds: float, headers: Mapping[str, str], body: bytes) -> PostResult:
        try:
            tls = self._tls() if endpoint.scheme == "https" else None
        except (OSError, ValueError) as error:  # its file may have been replaced
            return PostResult(None, f"its ca_file {error}")
        self._poster = Poster(endpoint, seconds, allow_link_local=True, tls=tls, wall=time.time, admit=self._admit)
        if self._is_closed:
            self._poster.abort()
        return self._poster.post(dict(headers), body)

    def close(self) -> None:
        """End the request in progress."""
        self._is_closed = True
        if self._poster is not None:
            self._poster.abort()


def parse_endpoint(url: str) -> Endpoint:
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    return Endpoint(parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme], path)


def build_response(request: requests.PreparedRequest, result: PostResult) -> requests.Response:
    """Return the answer without its body, which says nothing that is used."""
    response = requests.Response()
    response.status_code, response.reason = result.status or 0, result.failure
    response.request, response.url = request, str(request.url)
    response.headers = CaseInsensitiveDict()
    if result.retry_after_seconds > 0:
        response.headers["Retry-After"] = str(round(result.retry_after_seconds))
    return response


class Target(Struct, frozen=True):
    """Receiver of the pushes. `origin` is its address in the log; the URL may contain a token.

    `tls` returns the context for a receiver with https. `admit` checks each connection before a secret is sent.
    """

    url: str
    origin: str
    interval_seconds: float
    headers: Mapping[str, str]
    tls: Callable[[], ssl.SSLContext]
    admit: Admit | None = None


class Pusher(Feature):
    """Push of a payload each interval. A failed one is not kept: the next has newer values."""

    name = "OTLP"

    def __init__(self, target: Target, payload: Callable[[], MetricsData | None]) -> None:
        self._target, self._payload = target, payload
        self._adapter = DeadlineAdapter(target.tls, target.admit)
        self._exporter = OTLPMetricExporter(
            target.url,
            headers=dict(target.headers),
            timeout=TIMEOUT_SECONDS,
            compression=Compression.Gzip,
            session=create_session(self._adapter),
        )
        silence_sdk()
        self._failures = FailureLog()
        self._failure = ""
        self._stop = threading.Event()
        self._worker = Worker(self._run, "otlp")

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ARG002
        self._worker.begin()

    def failures(self) -> Sequence[str]:
        return [self._failure] if self._failure else []

    def close(self) -> None:
        """End the thread. A push that waits for a retry is given up."""
        self._stop.set()
        self._exporter.shutdown()
        self._worker.join(STOP_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._target.interval_seconds
            try:
                self._push()
            except Exception as error:  # the thread must go on
                log.debug("traceback of the failed push", exc_info=True)
                self._log_failure(f"{type(error).__name__}: {error}")

    def _push(self) -> None:
        payload = self._payload()
        if payload is None:
            return
        self._adapter.failure = ""
        if self._exporter.export(payload) is MetricExportResult.SUCCESS:
            self._failure = ""
            if self._failures.admits_recovery():
                log.warning("%s accepts metrics again", self._target.origin)
        elif not self._stop.is_set():
            self._log_failure(self._adapter.failure or "no answer")

    def _log_failure(self, reason: str) -> None:
        self._failure = f"{self._target.origin} does not accept metrics: {reason}"
        if self._failures.admits(reason):
            log.warning("%s does not accept metrics (%s); check endpoint under [otlp]", self._target.origin, reason)


def create_session(adapter: DeadlineAdapter) -> requests.Session:
    """Return a session without the environment, whose variables would replace `authorization` (a netrc file)."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session


def silence_sdk() -> None:
    """Keep the lines of the SDK off the log: their text contains the URL."""
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    logger.handlers, logger.propagate = [logging.NullHandler()], False
