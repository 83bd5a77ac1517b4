"""The daemon's machines as targets of Prometheus's file_sd."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from memwatch.cli.address import Address, parse_url

Json = dict[str, Any]
METRICS = "/metrics"


class ScrapeTargets(NamedTuple):
    """Groups of targets as file_sd reads them, and the names of machines that Prometheus cannot reach."""

    groups: list[Json]
    left_out: list[str]


def build_targets(machines: Iterable[Json], own: Address) -> ScrapeTargets:
    """Return a group for each machine. `own`: the address by which this command reaches the daemon.

    A socket file cannot be scraped.
    """
    groups, left_out = [], []
    for one in sorted(machines, key=lambda machine: (not machine["is_self"], str(machine["name"]))):
        address = own if one["is_self"] else parse_url(one["url"])
        if address.scheme == "unix":
            left_out.append(str(one["name"]))
        else:
            groups.append(group_of(one, address))
    return ScrapeTargets(groups, left_out)


def group_of(machine: Json, address: Address) -> Json:
    """Return one machine as a group: its address without scheme and path, which are labels of Prometheus."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    labels = {} if machine["is_self"] else {"neighbour": machine["name"]}
    if address.scheme != "http":
        labels["__scheme__"] = address.scheme
    if address.prefix:
        labels["__metrics_path__"] = address.prefix + METRICS
    return {"targets": [f"{host}:{address.port}"], "labels": labels}
