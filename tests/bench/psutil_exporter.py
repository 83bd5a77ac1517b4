"""Simple exporter with prometheus_client and psutil, as a peer for the bench."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import psutil
from prometheus_client import REGISTRY, Metric, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Memory(Collector):
    def collect(self) -> Iterator[Metric]:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        for name in ("total", "available", "used", "free", "cached", "buffers", "shared", "slab"):
            yield GaugeMetricFamily(f"memory_{name}_bytes", f"psutil {name}", value=getattr(memory, name))
        yield GaugeMetricFamily("swap_total_bytes", "psutil swap total", value=swap.total)
        yield GaugeMetricFamily("swap_used_bytes", "psutil swap used", value=swap.used)


if __name__ == "__main__":
    REGISTRY.register(Memory())
    start_http_server(int(sys.argv[1]), addr="127.0.0.1")
    threading.Event().wait()
