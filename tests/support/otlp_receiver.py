"""OTLP requests, decoded with the protocol's published messages."""

from __future__ import annotations

import gzip
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from support.webhook_receiver import Delivery


class Push(Struct, frozen=True):
    """One request: attributes of its resource, and metrics by name. Names are unique."""

    resource: dict[str, str]
    metrics: dict[str, Any]

    def points(self, name: str) -> list[Any]:
        metric = self.metrics[name]
        return list(getattr(metric, metric.WhichOneof("data")).data_points)


def read_push(delivery: Delivery) -> Push:
    """Decode a request as a receiver does."""
    assert delivery.headers["content-type"] == "application/x-protobuf"
    assert delivery.headers["content-encoding"] == "gzip"
    request = ExportMetricsServiceRequest.FromString(gzip.decompress(delivery.body))
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    names = [metric.name for metric in scope.metrics]
    assert len(set(names)) == len(names)
    return Push(attributes_of(resource.resource), dict(zip(names, scope.metrics, strict=True)))


def attributes_of(holder: Any) -> dict[str, str]:
    """Return the attributes of a resource or a point."""
    return {one.key: one.value.string_value for one in holder.attributes}
