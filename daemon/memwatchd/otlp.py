"""Metrics over OTLP: the payload of the latest snapshot, with attributes of machine and devices, and its push."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

import requests
from msgspec import Struct
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from memwatch.build_info import __version__
from memwatch.core.http import DEFAULT_PORTS, Admit
from memwatch.core.model import RAM, Device
from memwatch.core.runtime.worker import FailureLog, Worker
from memwatch.core.snapshot import Snapshot
from memwatch_monitor.feature import Feature
from memwatch_monitor.notify.http_post import Endpoint, Poster, PostResult
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.samples import PREFIX, words

if TYPE_CHECKING:
    import asyncio
    import ssl

log = logging.getLogger(__name__)

# Metric families as OTLP metrics of the SDK: under memwatchd's names, and under the conventional ones.

# Names of OpenTelemetry's semantic conventions for metrics of memwatchd: `hw.*` and `system.*`.
#
# The conventions describe GPUs with memory of their own. A GPU that uses System RAM has no `hw.gpu.memory.*`.

Instrument = Literal["counter", "gauge", "updowncounter"]
Labels = Mapping[str, str]

ANY_DEVICE = {"device": ".+"}
SYSTEM_RAM = {"kind": "system_ram"}
GPU = {"hw.type": "gpu"}


class Convention(Struct, frozen=True, kw_only=True):
    """A metric by its conventional name. `where`: a regular expression for each label that must match as a whole.

    `attributes` are those of the labels that are kept, by label; `fixed` attributes are the same for all series.
    """

    source: str
    name: str
    unit: str
    instrument: Instrument
    where: Labels = {}
    attributes: Labels = {}
    fixed: Labels = {}

    def selects(self, labels: Labels) -> bool:
        return all(re.fullmatch(pattern, labels.get(label, "")) for label, pattern in self.where.items())

    def attributes_of(self, labels: Labels) -> dict[str, str]:
        return {attribute: labels[label] for label, attribute in self.attributes.items()} | dict(self.fixed)


def _of_device(source: str, name: str, unit: str, instrument: Instrument, fixed: Labels = GPU) -> Convention:
    return Convention(
        source=PREFIX + source,
        name=name,
        unit=unit,
        instrument=instrument,
        where=ANY_DEVICE,
        attributes={"device": "hw.id"},
        fixed=fixed,
    )


def _of_errors(kind: str, error_type: str) -> Convention:
    fixed = {**GPU, "error.type": error_type}
    found = _of_device("driver_memory_errors_total", "hw.errors", "{error}", "counter", fixed)
    return replace(found, where={**ANY_DEVICE, "kind": kind})


def _of_memory(source: str, name: str, where: Labels, state: str = "") -> Convention:
    fixed = {"system.memory.state": state} if state else {}
    return Convention(
        source=PREFIX + source, name=name, unit="By", instrument="updowncounter", where=where, fixed=fixed
    )


CONVENTIONS: tuple[Convention, ...] = (
    _of_device("pool_size_bytes", "hw.gpu.memory.limit", "By", "updowncounter"),
    _of_device("pool_used_bytes", "hw.gpu.memory.usage", "By", "updowncounter"),
    _of_device("device_busy_ratio", "hw.gpu.utilization", "1", "gauge"),
    _of_device("device_temperature_celsius", "hw.temperature", "Cel", "gauge", {}),
    _of_device("device_power_watts", "hw.power", "W", "gauge"),
    _of_errors("ecc_corrected", "corrected"),
    _of_errors("ecc_uncorrected", "uncorrected"),
    _of_memory("pool_size_bytes", "system.memory.limit", SYSTEM_RAM),
    _of_memory("pool_used_bytes", "system.memory.usage", SYSTEM_RAM, "used"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": RAM, "content": "page_cache"}, "cached"),
    _of_memory("pool_contents_bytes", "system.memory.usage", {"pool": RAM, "content": "free"}, "free"),
    _of_memory("pool_available_bytes", "system.memory.linux.available", SYSTEM_RAM),
    Convention(
        source=PREFIX + "swap_used_bytes",
        name="system.paging.usage",
        unit="By",
        instrument="updowncounter",
        fixed={"system.paging.state": "used"},
    ),
)


def conventions_for(source: str) -> Iterator[Convention]:
    """Yield the conventional names of a metric's samples, none for most."""
    return (one for one in CONVENTIONS if one.source == source)


CUMULATIVE = AggregationTemporality.CUMULATIVE
UCUM = {"bytes": "By", "seconds": "s", "ratio": "1", "celsius": "Cel", "watts": "W", "hertz": "Hz"}
INSTRUMENTS: Mapping[str, Instrument] = {"counter": "counter", "gauge": "gauge", "info": "gauge"}
LIMIT_LABEL = "le"
# Optional in OTLP, and encoded as such; the SDK's types say float.
NOT_KNOWN = cast("float", None)

Attributes = dict[str, str]
Point = tuple[Attributes, float]


class Span(Struct, frozen=True):
    """Times of the samples in nanoseconds: the first push, from which totals count, and the snapshot."""

    start: int
    time: int


def build_payload(
    families: Iterable[Family], span: Span, resource: Mapping[str, str], devices: Mapping[str, Attributes]
) -> MetricsData:
    """Return everything that one push sends. `devices`: attributes of each device, by its id."""
    version = resource.get("service.version", "")
    known = list(families)
    metrics = [*own_metrics(known, span), *conventional_metrics(known, span, devices)]
    scope = ScopeMetrics(InstrumentationScope("memwatchd", version), metrics, "")
    return MetricsData([ResourceMetrics(Resource(dict(resource)), [scope], "")])


def own_metrics(families: Iterable[Family], span: Span) -> Iterator[Metric]:
    """Yield metrics with the names and labels of /metrics. As in Prometheus, an empty label is no label."""
    for family in families:
        unit = UCUM.get(family.unit, "")
        if family.type == "histogram":
            yield _histogram(family, unit, span)
        elif family.samples:
            points = [(_attributes(one), one.value) for one in family.samples]
            name = family.samples[0].name
            yield _metric(name, family.documentation, unit, INSTRUMENTS[family.type], points, span)


def conventional_metrics(
    families: Iterable[Family], span: Span, devices: Mapping[str, Attributes]
) -> Iterator[Metric]:
    """Yield metrics with the names of the semantic conventions, one metric for each name."""
    found: dict[str, tuple[str, Instrument, list[Point]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        for rule in conventions_for(sample.name):
            if rule.selects(sample.labels):
                attributes = rule.attributes_of(sample.labels)
                attributes |= devices.get(attributes.get("hw.id", ""), {})
                found.setdefault(rule.name, (rule.unit, rule.instrument, []))[2].append((attributes, sample.value))
    for name, (unit, instrument, points) in found.items():
        yield _metric(name, "", unit, instrument, points, span)


def _metric(name: str, text: str, unit: str, instrument: Instrument, points: Iterable[Point], span: Span) -> Metric:
    start = None if instrument == "gauge" else span.start
    data = [NumberDataPoint(attributes, start or 0, span.time, value) for attributes, value in points]
    if instrument == "gauge":
        return Metric(name, text, unit, Gauge(data))
    return Metric(name, text, unit, Sum(data, CUMULATIVE, is_monotonic=instrument == "counter"))


def _histogram(family: Family, unit: str, span: Span) -> Metric:
    rows = groupby(family.samples, key=lambda one: {**one.labels, LIMIT_LABEL: ""})
    points = [_histogram_point(list(samples), span) for _, samples in rows]
    return Metric(family.name, family.documentation, unit, Histogram(points, CUMULATIVE))


def _histogram_point(samples: list[Sample], span: Span) -> HistogramDataPoint:
    """Return one series. Buckets count up in Prometheus, and each for itself in OTLP."""
    buckets = [(one.labels[LIMIT_LABEL], int(one.value)) for one in samples if LIMIT_LABEL in one.labels]
    counts = [count for _, count in buckets]
    total = next(one.value for one in samples if one.name.endswith("_sum"))
    return HistogramDataPoint(
        attributes={name: value for name, value in _attributes(samples[0]).items() if name != LIMIT_LABEL},
        start_time_unix_nano=span.start,
        time_unix_nano=span.time,
        count=counts[-1],
        sum=total,
        bucket_counts=[after - before for before, after in zip([0, *counts], counts, strict=False)],
        explicit_bounds=[float(limit) for limit, _ in buckets[:-1]],
        min=NOT_KNOWN,
        max=NOT_KNOWN,
    )


def _attributes(sample: Sample) -> Attributes:
    return {name: value for name, value in sample.labels.items() if value}


class PayloadSource:
    """Payload of each new snapshot. Without a new one there is none, so that no old value looks like a new one."""

    def __init__(
        self, latest: Callable[[], Snapshot | None], exporter: Exporter, labels: Callable[[], Mapping[str, str]]
    ) -> None:
        self._latest, self._exporter, self._labels = latest, exporter, labels
        self._start = time.time_ns()
        self._last: Snapshot | None = None

    def __call__(self) -> MetricsData | None:
        snapshot = self._latest()
        if snapshot is None or snapshot is self._last:
            return None
        self._last = self._exporter.snapshot = snapshot
        span = Span(self._start, max(self._start, int(snapshot.unix * 1e9)))
        devices = {one.id: device_attributes(one) for one in snapshot.devices}
        return build_payload(self._exporter.collect(), span, resource_attributes(snapshot, self._labels()), devices)


def resource_attributes(snapshot: Snapshot, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the identity of the machine and of memwatchd. Labels of [labels] are attributes by their own names."""
    return {
        **labels,
        "host.name": snapshot.host,
        "service.name": "memwatchd",
        "service.instance.id": snapshot.host,
        "service.version": __version__,
    }


def device_attributes(device: Device) -> Attributes:
    found = {
        "hw.name": words(device.name),
        "hw.vendor": words(device.vendor),
        "hw.driver_version": words(device.driver),
    }
    return {name: value for name, value in found.items() if value}


# Thread that pushes over OTLP/HTTP with OpenTelemetry's SDK. The SDK sends by the HTTP client of webhooks: one
# deadline from the connection to the answer. The timeout of requests is for each read. A receiver that sends a byte
# now and then would hold the thread for ever.

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
