"""Candidates to make room: models, servers, services, containers and programs. A process is in one at most.

None that is protected, and none that asks. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.engines import MAPPING
from memwatch.core.engines.records import Engine
from memwatch.core.engines.unload import find_unload, write_unload
from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Bytes, Process, Words, sum_figures
from memwatch.core.processes.protected import is_protected
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.actions import find_command

MAX_NAMED = 3
# A model whose server unloads it and stays; servers without requests, of unknown use, and with requests.
StepKind = Literal["model", "idle_engine", "engine", "busy_engine", "program"]
# In this order they go. The last two by the bytes that have to be built up again.
RANKS: Mapping[StepKind, int] = {"model": 0, "idle_engine": 1, "engine": 2, "busy_engine": 3, "program": 3}
NOT_REPORTED = "its use is not reported"


class Asker(Struct, frozen=True):
    """The processes that ask, with the unit and the container that they are in: none of them is a step."""

    pids: frozenset[int] = frozenset()
    unit: Words | None = None
    container: Words | None = None


NO_ASKER = Asker()


class Candidate(Struct, frozen=True):
    """A step that has not been taken. `sure`: members as far as it is certain that their memory comes back."""

    kind: StepKind
    subject: str
    members: tuple[Process, ...]
    sure: tuple[Process, ...]
    command: str | None
    hint: str = ""
    state: str = ""
    reload_bytes: Bytes = Absent.NOT_SUPPORTED

    @property
    def process(self) -> Process:
        return max(self.members, key=lambda one: (_least(one), -one.pid))

    @property
    def cost(self) -> tuple[int, int, int]:
        """Order of the steps: by kind, then by the weights to load again, of others by their memory."""
        held = sum(map(_least, self.members))
        return (
            RANKS[self.kind],
            held if isinstance(self.reload_bytes, Absent) else self.reload_bytes,
            self.process.pid,
        )


def _least(process: Process) -> int:
    least = process.footprint_low_bytes
    return least if isinstance(least, int) else 0


def list_candidates(snapshot: Snapshot, asker: Asker = NO_ASKER) -> list[Candidate]:
    """Return all that may go: each listed process in at most one of them, and none that is protected."""
    allowed = {one.pid: one for one in snapshot.processes if not is_protected(one)}
    found: dict[str, Candidate] = {}
    taken: set[int] = set()
    for engine in snapshot.engines:
        one = _runner_of(engine, snapshot)
        if one is not None and one.command and taken.isdisjoint(member.pid for member in one.members):
            found[one.command] = one
            taken |= {member.pid for member in one.members}
    for process in snapshot.processes:
        if process.pid not in taken and process.visible:
            one = _owner_of(process, snapshot, taken)
            found.setdefault(one.command or str(process.pid), one)
            taken |= {member.pid for member in one.members}
    return [one for one in found.values() if _may_go(one, allowed, asker)]


def _may_go(one: Candidate, allowed: Mapping[int, Process], asker: Asker) -> bool:
    """Check that no member is protected or asks, also not as another process of the unit or container."""
    if not all(member.pid in allowed and member.pid not in asker.pids for member in one.members):
        return False
    if one.kind == "model" or (one.command or "").startswith("kill "):
        return True
    homes = [(member.unit, member.container) for member in one.members]
    own = (asker.unit, asker.container)
    return not any(isinstance(word, str) and word in homes[0] for word in own)


def _runner_of(engine: Engine, snapshot: Snapshot) -> Candidate | None:
    """Return the models of a server that are unloaded while it runs, with the processes that end for certain."""
    members = [one for one in snapshot.processes if one.pid in engine.pids and one.pid != engine.pid]
    unload = find_unload(engine)
    if unload is None or not unload.ends_runner or not members or engine.sleeping is True:
        return None
    command = write_unload(engine, unload, _container_prefix(members[0], snapshot))
    kind, state = _use_of(engine)
    chosen: StepKind = kind if kind == "busy_engine" else "model"
    return _of_engines([engine], members, command, "", chosen, state) if command else None


def _container_prefix(process: Process, snapshot: Snapshot) -> str:
    """Return the command that runs others in the container of a process: that which stops it names the runtime."""
    command = find_command(process, snapshot)[0] or ""
    runtime, stop, name = command.partition(" stop ")
    return f"{runtime} exec {name}" if stop and process.container else ""


def _owner_of(process: Process, snapshot: Snapshot, taken: set[int]) -> Candidate:
    """Return what ends with a process: its service or container, its server, or itself."""
    command, listed = find_command(process, snapshot)
    engines = [one for one in snapshot.engines if process.pid in one.pids]
    members = [one for one in listed if one.pid not in taken]
    if engines and (command or "").startswith("kill "):
        members = [one for one in snapshot.processes if one.pid in engines[0].pids and one.pid not in taken]
        command = " ".join(["kill", *(str(one.pid) for one in members)])
    pids = {one.pid for one in members}
    served = [one for one in snapshot.engines if not pids.isdisjoint(one.pids)]
    if not served:
        largest = max(members, key=lambda one: (_least(one), -one.pid))
        return Candidate("program", largest.title, tuple(members), tuple(members), command)
    uses = [_use_of(one) for one in served]
    kind, state = max(uses, key=lambda one: RANKS[one[0]])
    return _of_engines(served, members, command, _own_way(served, process), kind, state)


def _of_engines(
    engines: Sequence[Engine],
    members: Sequence[Process],
    command: str | None,
    hint: str,
    kind: StepKind,
    state: str,
) -> Candidate:
    """Weights that are mapped from a file are page cache, which counts as available: they are not certain."""
    engines = sorted(engines, key=lambda one: one.id)
    mapped = {pid for one in engines if one.kind in MAPPING for pid in one.pids}
    sure = tuple(replace(one, rss_bytes=0, footprint_range=None) if one.pid in mapped else one for one in members)
    names = [_title_of(one) for one in engines]
    subject = some_of(names, MAX_NAMED)
    weights = sum_figures(one.weights_bytes for one in engines)
    return Candidate(kind, subject, tuple(members), sure, command, hint, state, weights)


def _title_of(engine: Engine) -> str:
    model = "" if isinstance(engine.model, Absent) else engine.model.rpartition("/")[2]
    return f"{engine.title} {model}".strip()


def _use_of(engine: Engine) -> tuple[StepKind, str]:
    """Return the kind of a server by its use now, and the use as words."""
    running, waiting = engine.requests_running, engine.requests_waiting
    if engine.sleeping is True:
        return "idle_engine", "asleep"
    if isinstance(running, Absent):
        return "engine", NOT_REPORTED
    total = running + (waiting if isinstance(waiting, int) else 0)
    return (
        ("busy_engine", f"{total} {'request' if total == 1 else 'requests'}")
        if total
        else ("idle_engine", "no requests now")
    )


def _own_way(engines: Sequence[Engine], process: Process) -> str:
    """Return the own way of a server to release memory, as a sentence. Its effect is not known before."""
    home = " ".join(one for one in (process.unit, process.container) if isinstance(one, str))
    unload = find_unload(engines[0], home)
    command = write_unload(engines[0], unload) if unload and len(engines) == 1 else None
    if unload is None or command is None:
        return ""
    return f"Or, {unload.needs}: {command}"
