"""The law of one answer: every surface reports the same figure of the same thing, or says that it does not know it.

A cell is a quantity of an object: the size of a pool, the headroom of a device, the footprint of a process. The
truth is the snapshot. A surface (`support.surfaces`) shows cells: bytes, or the text of the one formatter.
tests/not_shown.toml lists the quantities that a surface does not show, with the reason. It may only shrink.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from memwatch.cli.terminal.figures import pair_words
from memwatch.core.backends.devices import UNIFIED, compute_capacity, read_system_ram
from memwatch.core.model import Absent, Device, Process
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render import words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).parents[1] / "not_shown.toml"
MACHINE, CPU = "machine", "cpu"
GIB = 1 << 30


class Cell(NamedTuple):
    """A quantity of an object. Objects: ids of pools, shares and devices, PIDs, `PID/place`, "machine", "cpu"."""

    object: str
    quantity: str


class Range(NamedTuple):
    """The bounds of a footprint."""

    low: Any
    high: Any


class Shown(NamedTuple):
    """A figure with both its bytes and its text, as on a page."""

    bytes: Any
    text: str


Cells = dict[Cell, Any]
KINDS = {
    "size": "pool size",
    "used": "pool used",
    "available": "pool available",
    "share used": "share used",
    "limit": "share limit",
    "footprint": "process footprint",
    "held": "process device bytes",
}


def name_of(cell: Cell) -> str:
    """Return a quantity with its kind of object, as in the table: "device headroom"."""
    if cell.object in (MACHINE, CPU):
        return f"{cell.object} {cell.quantity}"
    return KINDS.get(cell.quantity, f"device {cell.quantity}")


def truth(snapshot: Snapshot) -> Cells:
    """Return all cells of a machine."""
    found: Cells = {
        Cell(MACHINE, "name"): snapshot.machine.name,
        Cell(MACHINE, "architecture"): snapshot.machine.architecture,
    }
    for pool in snapshot.pools:
        found[Cell(pool.id, "size")] = pool.size_bytes
        found[Cell(pool.id, "used")] = pool.used_bytes
        found[Cell(pool.id, "available")] = pool.available_bytes
    for share in snapshot.shares:
        found[Cell(share.id, "share used")] = share.used_bytes
        found[Cell(share.id, "limit")] = share.limit_bytes
    for device in snapshot.devices:
        found |= _of_device(device, snapshot)
    capacity, now, after = read_system_ram(snapshot).room
    found |= {Cell(CPU, "capacity"): capacity, Cell(CPU, "headroom"): now, Cell(CPU, "after reclaim"): after}
    for process in snapshot.processes:
        found[Cell(str(process.pid), "footprint")] = footprint_of(process)
        for place, held in process.device_bytes.items():
            found[Cell(f"{process.pid}/{place}", "held")] = held
    return found


def _of_device(device: Device, snapshot: Snapshot) -> Cells:
    return {
        Cell(device.id, "architecture"): device.architecture.value,
        Cell(device.id, "unified"): UNIFIED.get(device.architecture, Absent.NOT_AVAILABLE),
        Cell(device.id, "capacity"): compute_capacity(device, snapshot),
        Cell(device.id, "headroom"): device.headroom_bytes,
        Cell(device.id, "after reclaim"): device.headroom_after_reclaim_bytes,
    }


def footprint_of(process: Process) -> Any:
    low, high = process.footprint_low_bytes, process.footprint_high_bytes
    return Range(low, high) if low != high else low


def is_same(known: Any, shown: Any, whole: Any = None) -> bool:
    """Return True if a surface shows a known value: itself, or its text. `whole`: the size of its pool or limit."""
    if isinstance(shown, Shown):
        return is_same(known, shown.bytes) and shown.text in texts_of(known, whole)
    if isinstance(shown, bool) or isinstance(known, bool):
        return shown is known
    if isinstance(shown, str):
        return shown in texts_of(known, whole)
    if isinstance(shown, float):  # Home Assistant's unit
        return isinstance(known, int) and shown == round(known / GIB, 2)
    return type(shown) is type(known) and shown == known


def texts_of(known: Any, whole: Any) -> tuple[str, ...]:
    """Return the texts of a value: alone, in the unit of its whole, or a word."""
    if isinstance(known, Absent):
        return words.absent(known), words.ABSENT_WORDS[known], words.DASH
    if isinstance(known, str):
        return known, words.architecture(known)
    if isinstance(known, Range):
        return (words.between(known.low, known.high),)
    within = [pair_words(known, whole).partition(" / ")[0]] if whole else []
    within += [words.size_within(known, whole)] if whole and known <= whole else []
    return words.size(known), *within


class Comparison(Struct):
    """Result over machines.

    `compared`: number of cells by surface. `not_shown`: known cells that a surface has no value of, by surface and
    quantity. `differences`: sentences.
    """

    compared: Counter[str] = field(default_factory=Counter)
    not_shown: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, machine: str, surface: str, known: Cells, shown: Cells) -> None:
        """Compare a surface of a machine with the truth."""
        for cell in shown.keys() - known.keys():
            self.differences.append(f"{machine}: {surface} shows {cell}, and there is no such thing")
        for cell, value in known.items():
            if cell in shown and is_same(value, shown[cell], whole_of(cell, known)):
                self.compared[surface] += 1
            elif cell in shown:
                self.differences.append(
                    f"{machine}: {surface} shows {cell.object} {cell.quantity} as {shown[cell]!r}, not {value!r}"
                )
            elif not isinstance(value, Absent):
                self.not_shown[surface, name_of(cell)] += 1


def whole_of(cell: Cell, known: Cells) -> Any:
    found = known.get(Cell(cell.object, "limit" if cell.quantity == "share used" else "size"))
    return found if isinstance(found, int) else None


def read_table() -> Mapping[str, Mapping[str, str]]:
    """Return the reasons by surface, and by quantity or kind of object."""
    return tomllib.loads(TABLE.read_text())


def complaints(found: Comparison, table: Mapping[str, Mapping[str, str]], *, every: bool) -> Iterator[str]:
    """Yield a sentence for each difference and gap. `every`: all machines were compared: each entry is needed."""
    yield from found.differences
    needed = set()
    for (surface, quantity), count in sorted(found.not_shown.items()):
        entries = {quantity, quantity.partition(" ")[0]} & table.get(surface, {}).keys()
        needed |= {(surface, entry) for entry in entries}
        if not entries:
            yield f"{surface} does not show {quantity} of {count} objects: show it, or add why to {TABLE.name}"
    for surface, gaps in table.items() if every else ():
        for entry in sorted(gaps.keys() - {one for where, one in needed if where == surface}):
            yield f"{TABLE.name}: {surface} shows {entry} of every object: remove the entry"
