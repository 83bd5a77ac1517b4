"""Comparisons of all surfaces, on committed and on generated machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memwatch.core.snapshot import Snapshot
from support.generated.choices import RandomChoices
from support.generated.machine import draw_machine, tick
from support.machine_exports import export_of, read_alone
from support.one_answer import Comparison, truth
from support.site import any_site
from support.surfaces import ALONE, SURFACES, View

# Off by default; without it /metrics has no processes.
PROCESS_METRICS = {"MEMWATCHD_PROCESSES_METRICS": "true"}
# A tick to another machine has no larger figure.
MAX_FIGURE = 1 << 60


class Case(NamedTuple):
    """A machine: its snapshot by a daemon, and as the library reads it alone, if it has files."""

    name: str
    snapshot: Snapshot
    alone: Snapshot | None = None


def compare(machines: Iterable[Case]) -> Comparison:
    """Compare all surfaces of these machines."""
    found = Comparison()
    with any_site(**PROCESS_METRICS) as site:
        for name, snapshot, alone in machines:
            site.show(snapshot)
            view, known = View(snapshot, site.get, alone), truth(snapshot)
            for surface, show in SURFACES.items():
                if alone is not None or surface not in ALONE:
                    found.add(name, surface, known, show(view))
    return found


def committed(names: Iterable[str]) -> Iterator[Case]:
    for name in names:
        yield Case(name, export_of(name).snapshot, read_alone(name))


def generated(seeds: Iterable[int]) -> Iterator[Case]:
    """Yield generated machines, without those of an EiB, or with a PID that both /proc and a driver list."""
    for seed in seeds:
        snapshot = tick(draw_machine(RandomChoices(seed))).snapshot
        pids = Counter(one.pid for one in snapshot.processes)
        figures = [value for value in truth(snapshot).values() if isinstance(value, int)]
        if max(pids.values(), default=1) == 1 and max(figures, default=0) < MAX_FIGURE:
            yield Case(f"seed {seed}", snapshot)
