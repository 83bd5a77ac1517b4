"""The thread that pushes metrics over OTLP/HTTP with OpenTelemetry's SDK."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import requests
from msgspec import Struct
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from memwatch.core.http import Admit
from memwatch.core.runtime.failure_log import FailureLog
from memwatch.core.runtime.worker import Worker
from memwatch.monitor.feature import Feature
from memwatchd.otlp.deadline_adapter import DeadlineAdapter

if TYPE_CHECKING:
    import asyncio
    import ssl

log: logging.Logger = logging.getLogger(__name__)

# The SDK retries within this time; after it the next interval has newer values.
TIMEOUT_SECONDS = 10.0
STOP_SECONDS = 1.0


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
