"""Metrics of processes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from memwatch.core.model import Absent, Process, sum_figures
from memwatch.core.snapshot import Snapshot
from memwatch_web.metrics.samples import gauge, words


def ghost_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the memory of processes that only a driver lists. At most one sample for each pool and share."""
    ghosts = [process for process in snapshot.processes if not process.visible]
    places = dict.fromkeys(place for ghost in ghosts for place in ghost.device_bytes)
    kept = [((one.pool,), one.held_bytes) for one in snapshot.not_returned]
    text = "Memory in bytes that is still used 30 s after the processes ended that held it."
    yield gauge("memory_not_returned_bytes", text, kept, ("pool",))
    rows = [
        ((place,), sum_figures([ghost.device_bytes[place] for ghost in ghosts if place in ghost.device_bytes]))
        for place in places
    ]
    text = "Device memory in bytes of processes that a driver lists and /proc does not have, by pool or share."
    yield gauge("processes_not_visible_bytes", text, rows, ("where",))


PROCESS = ("pid", "name", "unit", "container")


def process_families(snapshot: Snapshot, max_processes: int) -> Iterator[Metric]:
    """Yield the largest processes. A snapshot has more: it includes every process that holds GPU memory."""

    def size(process: Process) -> int:
        return -1 if isinstance(process.footprint_bytes, Absent) else process.footprint_bytes

    largest = sorted(snapshot.processes, key=size, reverse=True)[:max_processes]
    keys = [(str(one.pid), words(one.name), words(one.unit), words(one.container)) for one in largest]
    found = list(zip(keys, largest, strict=True))
    resident = [(key, process.rss_bytes) for key, process in found]
    text = "Resident memory (RSS) of each of the largest processes in bytes."
    yield gauge("process_resident_bytes", text, resident, PROCESS)
    held = [((*key, place), figure) for key, process in found for place, figure in process.device_bytes.items()]
    text = "Device memory of each of the largest processes in bytes, by pool or share. It may also be resident."
    yield gauge("process_device_bytes", text, held, (*PROCESS, "within"))
    swapped = [(key, process.swap_bytes) for key, process in found]
    yield gauge("process_swap_bytes", "Swap of each of the largest processes in bytes.", swapped, PROCESS)
