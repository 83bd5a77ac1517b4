"""Figures in the text of /metrics that several tests add up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from opentelemetry.sdk.metrics.export import Metric
from prometheus_client.parser import text_string_to_metric_families

# Series of a machine: without a GPU, with one, and for each of more.
NO_GPU, ONE_GPU = 150, 240
HOST, PER_GPU = 141, 60
# A limit of a cgroup is a share and a pressure target; there are 64 at most.
PER_LIMIT = 14
LIMITS = re.compile(r'^memwatch_share_limit_bytes\{.*kind="gpu_limit"', re.MULTILINE)

Points = dict[tuple[tuple[str, str], ...], float]


def count_series(exposition: str) -> int:
    return sum(not line.startswith("#") for line in exposition.splitlines())


def permitted_series(exposition: str) -> int:
    """Return the permitted number of series of the machine with these metrics."""
    gpus, limits = exposition.count("\nmemwatch_device_info{"), len(LIMITS.findall(exposition))
    return {0: NO_GPU, 1: ONE_GPU}.get(gpus, HOST + PER_GPU * gpus) + PER_LIMIT * limits


def contents_and_sizes(exposition: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sum of the contents of each pool, and the sizes of the pools."""
    contents: Counter[str] = Counter()
    sizes: dict[str, float] = {}
    for family in families_of(exposition):
        for sample in family.samples:
            if sample.name == "memwatch_pool_contents_bytes":
                contents[sample.labels["pool"]] += int(sample.value)
            if sample.name == "memwatch_pool_size_bytes":
                sizes[sample.labels["pool"]] = sample.value
    return dict(contents), sizes


@lru_cache(maxsize=4)
def families_of(exposition: str) -> list[Any]:
    """Return the parsed families. Several questions about one exposition follow each other."""
    return list(text_string_to_metric_families(exposition))


def points_of(metrics: Iterator[Metric], name: str) -> Points:
    """Return the values of a pushed metric by its attributes; no two points have the same."""
    points: list[Any] = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
    found = {tuple(sorted(point.attributes.items())): point.value for point in points}
    assert len(found) == len(points), f"points of {name} with the same attributes: {points}"
    return found


def merge_expositions(expositions: dict[str, str]) -> str:
    """Return one exposition with all samples, each with its machine as a label, and each family's HELP once."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for machine, exposition in expositions.items():
        family = ""
        for line in exposition.splitlines():
            if line.startswith("#"):
                kind, family = line.split()[1:3]
                assert heads.setdefault(family, {}).setdefault(kind, line) == line, f"{machine}: {line}"
            else:
                samples.setdefault(family, []).append(_with_label(line, machine))
    return "".join(
        f"{line}\n" for family, head in heads.items() for line in (*head.values(), *samples.get(family, ()))
    )


def _with_label(sample: str, machine: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{machine="{machine}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{machine="{machine}"}} {value}'
