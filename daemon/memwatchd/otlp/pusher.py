"""The thread that pushes metrics over OTLP/HTTP with OpenTelemetry's SDK."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import requests
from msgspec import Struct
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from memwatch.runtime.failure_log import FailureLog
from memwatch.runtime.worker import Worker

log: logging.Logger = logging.getLogger(__name__)

# The SDK retries within this time; after it the next interval has newer values.
TIMEOUT_SECONDS = 10.0
STOP_SECONDS = 1.0
ERRNO = re.compile(r"\[Errno -?[0-9]+\] ([A-Za-z ]+)")


class Target(Struct, frozen=True):
    """Receiver of the pushes. `origin` is its address in the log; the URL may contain a token."""

    url: str
    origin: str
    interval_seconds: float
    headers: Mapping[str, str]
    ca_file: str | None


class Pusher:
    """Push of a payload each interval. A failed one is not kept: the next has newer values."""

    def __init__(self, target: Target, payload: Callable[[], MetricsData | None]) -> None:
        self._target, self._payload = target, payload
        self._exporter = OTLPMetricExporter(
            target.url,
            target.ca_file,
            headers=dict(target.headers),
            timeout=TIMEOUT_SECONDS,
            compression=Compression.Gzip,
            session=create_session(),
        )
        self._reasons = ReasonCollector()
        self._reasons.attach()
        self._failures = FailureLog()
        self._stop = threading.Event()
        self._worker = Worker(self._run, "otlp")

    def start(self) -> None:
        self._worker.begin()

    def stop(self) -> None:
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
        self._reasons.last = ""
        if self._exporter.export(payload) is MetricExportResult.SUCCESS:
            if self._failures.admits_recovery():
                log.warning("%s accepts metrics again", self._target.origin)
        elif not self._stop.is_set():
            self._log_failure(self._reasons.last or "no answer")

    def _log_failure(self, reason: str) -> None:
        if self._failures.admits(reason):
            log.warning("%s does not accept metrics (%s); check endpoint under [otlp]", self._target.origin, reason)


def create_session() -> requests.Session:
    """Return a session without the environment, without redirects, and without reading the body of a response.

    Its variables would replace `ca_file` (REQUESTS_CA_BUNDLE) and `authorization` (a netrc file).
    """
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    session.stream = True
    return session


class ReasonCollector(logging.Handler):
    """Handler that keeps the reason of a failed export, which the SDK only logs, and keeps its lines off the log.

    Their text contains the URL.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def attach(self) -> None:
        logger = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.last = describe(record.args if isinstance(record.args, tuple) else ()) or self.last


def describe(arguments: Iterable[object]) -> str:
    """Return the HTTP status or the cause of a failed connection, from the arguments of a log line."""
    for one in arguments:
        if isinstance(one, int) and not isinstance(one, bool):
            return f"HTTP {one}"
        if isinstance(one, Exception):
            found = ERRNO.search(str(one))
            return found[1].strip() if found else type(one).__name__
    return ""
