"""The law of failures: a collector that fails, or a file that cannot be read, is no evidence of absence.

The figures of the failed collector become absent. Each other figure stays as it is, or says that it is less sure,
by its quality, a note or a sentence. Nothing is counted twice, no limit disappears without a word, and no sentence
says that something does not exist.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import Struct

from memwatch.core.findings import Findings
from memwatch.core.model import Absent
from support.corrupted_machine import CollectedMachine
from support.field_law import Records, changes
from support.machine_exports import folder_of

EVENTS = frozenset({"open", "os.listdir", "os.scandir"})

# Fields that name or describe something: less precise words are no wrong figures.
NAMES = frozenset({"name", "user", "vendor", "driver", "state", "details", "within", "gone", "orphan"})
# A place that is not in use any more by a failed reading; what is left of a pool is "unattributed" by definition.
REMAINDERS = frozenset({"contents", "unattributed_bytes", "overlap"})
# Devices' words that explain a change of what follows from them.
EXPLAINED_BY = ("machine.explanation", "device.notes", "device.process_list", "device.state")
# What can be allocated, and is known: less is on the safe side. So is a smaller footprint without a device.
HEADROOMS = ("headroom", "api_free")
HELD = ("footprint_bytes", "footprint_range", "device_bytes")
DENIAL = re.compile(
    r"\b(?:has no \w+|No GPU|no limit|is not (?!known|read|readable|visible|available|listed|shown|counted)\w+)\b"
)
# Files that every process can read, and two of process 1 and 2, which show if this is a container.
ALWAYS_READ = ("/proc/self/", "/proc/sys/", "/proc/1/cgroup", "/proc/2/stat")


# Needs no file: what it cannot read is not known.
MACHINE = "machine"


class _Denied(Struct):
    """The path that cannot be opened or listed now, and all paths that were; None while nothing is watched."""

    path: str = ""
    seen: dict[str, None] | None = None
    is_installed: bool = False


_denied = _Denied()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _denied.seen is None or event not in EVENTS or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    name = os.fsdecode(arguments[0])
    _denied.seen[name] = None
    if name == _denied.path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)


@contextmanager
def denied(path: str = "") -> Iterator[Collection[str]]:
    """Refuse to open or list this path meanwhile, as for a user without permission. Collect the paths of all files.

    The hook is called by the interpreter before it opens a file; root may read all of them.
    """
    if not _denied.is_installed:
        _denied.is_installed = True
        sys.addaudithook(_audit)
    _denied.path, _denied.seen = path, {}
    try:
        yield _denied.seen
    finally:
        _denied.path, _denied.seen = "", None


class Failure(NamedTuple):
    """A failed collector, or one of its files, and its findings then."""

    collector: str
    how: str
    findings: Findings


class FailingMachine(CollectedMachine):
    """A committed machine, of which one collector or file fails at a time."""

    def __init__(self, name: str) -> None:
        self._paths: dict[str, list[str]] = {}
        super().__init__(name, folder_of(name))

    def _collect(self, name: str) -> Findings:
        """Collect, and keep which files the collector opened at first."""
        if name in self._paths:
            return super()._collect(name)
        with denied() as seen:
            found = super()._collect(name)
        self._paths[name] = [path for path in seen if path.startswith(f"{self._folder}/")]
        return found

    def collectors(self) -> Iterator[Failure]:
        """Yield each collector that found something: it never succeeded, or it did until now."""
        for name, found in self._found.items():
            if found != Findings() and name != MACHINE:
                yield Failure(name, "has never succeeded", Findings())
                yield Failure(name, "fails now", found.as_stale())

    def files(self) -> Iterator[Failure]:
        """Yield each file that a collector reads, without permission. Of numbered ones, such as processes, one."""
        for name, paths in self._paths.items():
            kinds = {re.sub(r"\d+", "N", path.removeprefix(str(self._folder))): path for path in reversed(paths)}
            for path in kinds.values():
                place = path.removeprefix(str(self._folder))
                if not place.startswith(ALWAYS_READ):
                    with denied(path):
                        found = self._collect(name)
                    yield Failure(name, f"may not read {place}", found)

    def complaints(self, failure: Failure) -> Iterator[str]:
        """Yield a sentence for each figure that takes the failure for evidence of absence."""
        found = self._records({failure.collector: failure.findings})
        is_stale = bool(failure.findings.stale)
        own = {share.note or "" for one in self._found.values() for share in one.shares}
        said = "; ".join((*sentences(self.sound), *own))
        for text in (*complaints_about(self.sound, found, is_stale), *denials(found, said)):
            yield f"{self.name}: {failure.collector} {failure.how}: {text}"


def complaints_about(sound: Records, found: Records, is_stale: bool) -> Iterator[str]:
    """Compare the figures of a machine with those after a failure.

    `is_stale`: the collector succeeded before. Otherwise what it would find has no known holder, and is a part of
    what is unattributed.
    """
    if size_of_pools(found) > size_of_pools(sound):
        yield "the pools are larger than before: some memory is counted twice"
    changed = list(changes(sound, found))
    figures = {one.figure for one in changed}
    explained = not figures.isdisjoint(EXPLAINED_BY)
    may_shrink = "process.footprint_basis" in figures or any(one.record not in found for one in changed)
    for one in changed:
        field = one.figure.partition(".")[2]
        if one.is_marked or field in NAMES or (field in REMAINDERS and (explained or not is_stale)):
            continue
        before, after = (records.get(one.record, {}) for records in (sound, found))
        is_less = all(is_lower(before.get(name), after[name]) for name in after if name.startswith(field))
        is_bound = isinstance(after.get("footprint_range"), tuple) and is_lower(None, after["footprint_range"])
        if is_less and (field.startswith(HEADROOMS) or (field in HELD and (may_shrink or is_bound))):
            continue
        figures_of = {name: (before.get(name), after[name]) for name in after if name.startswith(field)}
        yield f"{one.record}: {field} changes without a word (before, after): {figures_of}"


def is_lower(before: Any, after: Any) -> bool:
    """Check for a lower figure, a lower bound, or the same."""
    if isinstance(after, tuple):
        return isinstance(after[-1], Absent) or (isinstance(before, tuple) and all(map(is_lower, before, after)))
    if isinstance(before, int) and isinstance(after, int):
        return after <= before
    return before == after or isinstance(before, Absent) or isinstance(after, Absent) or after is None


def denials(found: Records, said: str) -> Iterator[str]:
    """Yield sentences that say that something does not exist, where nothing said so before."""
    for text in sorted(sentences(found)):
        denial = DENIAL.search(text)
        if denial and denial[0] not in said:
            yield f"says {text!r}"


def size_of_pools(records: Records) -> int:
    kinds = ("system_ram", "vram", "hbm", "carveout")
    sizes = [fields["size_bytes"] for record, fields in records.items() if record.startswith(kinds)]
    return sum(sizes)


def sentences(records: Records) -> set[str]:
    """Return the sentences about devices, shares and the machine."""
    found: set[str] = set()
    for fields in records.values():
        for name in ("explanation", "evidence", "notes", "note"):
            words = fields.get(name) or ()
            found |= (
                set(words.split("; ")) if isinstance(words, str) else set(words if type(words) is tuple else ())
            )
    return found
