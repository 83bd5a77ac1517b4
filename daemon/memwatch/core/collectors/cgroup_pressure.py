"""The cgroup that stalls on memory at its own limit while the machine has enough (PSI)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroup_mounts import find_unified_tree, list_children
from memwatch.core.linux.files import Roots, kept_file, read_once
from memwatch.core.linux.memory_events import parse_waiting
from memwatch.core.printable import printable
from memwatch.core.snapshot import SHORT_USED, CgroupPressure

# The machine is searched only above this stall ratio and while it is not short: 500 cgroups take 15 ms.
MIN_WAITING_RATIO = 0.03
MAX_GROUPS = 500
# Intervals between two checks for stalls, and between two searches.
CALM_SECONDS, SEARCH_SECONDS = 5.0, 1.0
# A group is reported if at least this part of the stall time is its own, and for as long as PSI is judged.
MIN_SHARE_OF_WAITING = 0.5
NAMED_SECONDS = 10.0

_DESCENDANTS = re.compile(rb"^nr_descendants (\d{1,10})$", re.MULTILINE)
_SIZES = re.compile(rb"^MemTotal: +(\d{1,19}) kB\n(?:.*\n)*?MemAvailable: +(\d{1,19}) kB\n", re.MULTILINE)


def parse_used(meminfo: bytes) -> float:
    """Return the used fraction of memory, 0 to 1; 1 if MemAvailable is missing or inconsistent."""
    found = _SIZES.search(meminfo)
    size, available = (int(found[1]), int(found[2])) if found else (0, 0)
    return 1.0 - available / size if size and available <= size else 1.0


def find_worst(before: Mapping[str, float], now: Mapping[str, float], seconds: float) -> CgroupPressure | None:
    """Return the innermost group with most of the stall time between two reads. `/` is the whole machine."""
    risen = {path: waited - before[path] for path, waited in now.items() if path in before}
    whole, path = risen.get("/", 0.0), "/"
    if whole <= MIN_WAITING_RATIO * seconds:
        return None
    while True:
        inside = {child: rise for child, rise in risen.items() if child != "/" and parent_of(child) == path}
        worst = max(inside, key=lambda child: inside[child], default=None)
        if worst is None or inside[worst] < MIN_SHARE_OF_WAITING * whole:
            break
        path = worst
    return None if path == "/" else CgroupPressure(printable(path), min(1.0, risen[path] / seconds))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Collector(BaseCollector):
    """Searches only while tasks stall on memory and the machine has enough of it.

    The tick looks for stalls, so that no thread wakes up for one file. A search is left to the thread.
    """

    name = "cgroup_pressure"
    may_block = True
    about = "Finds the cgroup that stalls on memory while the machine has enough. Searches only then."

    def __init__(self, roots: Roots, clock: Callable[[], float] = time.monotonic) -> None:
        self.period_seconds: float = CALM_SECONDS
        self._waiting = kept_file(roots.procfs / "pressure/memory", 256)
        self._meminfo = roots.procfs / "meminfo"
        self._root = find_unified_tree(roots, ", and version 1 has no PSI").folder
        self._clock = clock
        self._waited: tuple[float, float] | None = None
        self._looked: tuple[float, float | None, bool] | None = None
        self._before: tuple[float, Mapping[str, float]] | None = None
        self._named: tuple[float, CgroupPressure] | None = None
        self._left_out: dict[str, int] = {"cgroup_pressure": 0}

    def send_request(self) -> bool:
        """Look for stalls, and return False if a search is due."""
        self._looked = None
        with suppress(OSError):  # the thread reports it
            self._looked = self._look()
        return self._looked is not None and not self._looked[2]

    def has_answer(self, seconds: float) -> bool:  # noqa: ARG002  it is a `NonBlockingCollector`
        return True

    def collect(self) -> Findings:
        (now, waited, is_due), self._looked = self._looked or self._look(), None
        if waited is not None and is_due:
            self._search(now, waited)
            self.period_seconds = SEARCH_SECONDS
        else:
            self._before, self.period_seconds = None, CALM_SECONDS
        fresh = self._named is not None and now - self._named[0] < NAMED_SECONDS
        named = self._named[1] if fresh and self._named else None
        return Findings(cgroup_pressure=named, left_out=self._left_out)

    def close(self) -> None:
        self._waiting.close()

    def _look(self) -> tuple[float, float | None, bool]:
        """Return the time, the stall time, and whether a search is due."""
        now, waited = self._clock(), parse_waiting(self._waiting.read())
        return now, waited, waited is not None and self._is_search_due(now, waited)

    def _search(self, now: float, waited: float) -> None:
        found = {"/": waited, **dict(waiting_groups(self._root))}
        if (left_out := self._count_left_out(len(found) - 1)) != self._left_out["cgroup_pressure"]:
            self._left_out = {"cgroup_pressure": left_out}
        before, self._before = self._before, (now, found)
        worst = find_worst(before[1], found, now - before[0]) if before and now > before[0] else None
        self._named = (now, worst) if worst else self._named

    def _count_left_out(self, groups: int) -> int:
        """Return the number of groups that were not read, as the kernel counts them. Read only at the maximum."""
        if groups < MAX_GROUPS:
            return 0
        whole = _DESCENDANTS.search(read_once(self._root / "cgroup.stat") or b"")
        return max(0, int(whole[1]) - groups) if whole else 0

    def _is_search_due(self, now: float, waited: float) -> bool:
        before, self._waited = self._waited, (now, waited)
        if before is None or waited - before[1] < MIN_WAITING_RATIO * (now - before[0]):
            return False
        return parse_used(read_once(self._meminfo) or b"") < SHORT_USED


def waiting_groups(root: Path) -> Iterator[tuple[str, float]]:
    """Yield the stall time of every group, outer groups first, at most `MAX_GROUPS`."""
    folders, read = [root], 0
    for folder in folders:
        for child, _ in list_children(folder, MAX_GROUPS):
            waited = parse_waiting(read_once(child / "memory.pressure") or b"")
            if waited is not None:
                folders.append(child)
                yield f"/{child.relative_to(root)}", waited
            read += 1
            if read >= MAX_GROUPS:
                return
