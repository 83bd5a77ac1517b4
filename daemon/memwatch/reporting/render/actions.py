"""Steps that free memory where it is short, with what each frees and the level that follows.

Data for any display. Pure functions. memwatchd performs none of them: it shows a command to copy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Bytes, PoolKind, Process, Share, ShareKind, known_or, sum_figures
from memwatch.core.owners import find_home, is_qualified
from memwatch.core.pressure.judge import base_level, level_after_fall
from memwatch.core.processes.growth import key_of
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render import words
from memwatch.reporting.render.memory_map import GPU_MEMORY

MAX_ACTIONS = 2
# The manager of a user's services, as a unit has it: "train.service in user/1000".
OF_USER = re.compile(r" in user/\d+$")
INIT = 1
# Unit of all jobs of Slurm: with cgroup v2 (cgroup.conf(5)), perhaps after the name of the node, and with v1, where
# only other hierarchies than that of systemd have a folder for each job.
SLURM_UNITS = ("slurmstepd.scope", "slurmd.service")
# Scopes that container runtimes create, and the command of each.
RUNTIMES = {"docker-": "docker", "libpod-": "podman"}


class Freed(Struct, frozen=True):
    """Memory that comes back: at least and at most this much. `high_bytes` is absent without an upper bound."""

    low_bytes: int
    high_bytes: Bytes

    @property
    def text(self) -> str:
        """Format it: "37.0 GiB", "69.0 – 69.5 GiB", "≥ 5.0 GiB"."""
        return words.between(self.low_bytes, self.high_bytes)


class Action(Struct, frozen=True):
    """One step. `stop`: stop a process, its service or its container. `option`: start a model server with less.

    `target`: the pool or limit where memory comes back. `command`: text to copy, None where none is certain.
    `ratio_after` and `level_after`: use of the target by at least `freed.low_bytes` less, None if it is not known.
    The level is left only some points below its threshold; `is_held`: it is above that of the use for this reason.
    `on_gpus`: the number of GPUs with memory that it frees, and all of that, if they are several: `freed` is a part
    of it.
    """

    kind: Literal["stop", "option"]
    subject: str
    process: Process | None
    owner: Annotated[str, Doc("User and service, for people; empty for an option.")]
    command: str | None
    target: str
    freed: Freed
    ratio_after: float | None
    level_after: Level | None
    others: Annotated[
        int, Doc("Further processes that the command ends: those of the same container or service.")
    ] = 0
    on_gpus: tuple[int, Freed] | None = None
    is_held: bool = False

    @property
    def outcome(self) -> str:
        """Return what follows: "→ 61.7%, medium", "→ 93.8%, still critical". Empty if it is not known."""
        if self.ratio_after is None or self.level_after is None:
            return ""
        return f"→ {words.ratio(self.ratio_after)}, {'still ' * self.is_held}{self.level_after.label}"


def list_actions(snapshot: Snapshot, worst: Pressure | None, growing: Sequence[Process] = ()) -> tuple[Action, ...]:
    """Return what frees memory of the worst target, the cause first. Empty if nothing is short or known.

    `growing`: processes that grow now, fastest first. One that is not in the snapshot has ended and is skipped.
    """
    if worst is None or worst.level is Level.LOW or words.is_recovering(worst):
        return ()
    culprit = _find_culprit(snapshot, worst, growing)
    stops = [_stop(culprit, snapshot, worst)] if culprit else []
    return (*stops, *_list_options(snapshot, worst))[:MAX_ACTIONS]


def _find_culprit(snapshot: Snapshot, worst: Pressure, growing: Sequence[Process]) -> Process | None:
    """Return the fastest growing process of the target; from high on, without one, its largest holder."""
    listed = {key_of(one): one for one in snapshot.processes if one.pid != INIT}
    here = [listed[key] for key in map(key_of, growing) if key in listed]
    found = next((one for one in here if measure_held([one], snapshot, worst.target).low_bytes), None)
    if found or worst.level < Level.HIGH:
        return found
    held = {one.pid: measure_held([one], snapshot, worst.target).low_bytes for one in listed.values()}
    largest = max(listed.values(), key=lambda one: held[one.pid], default=None)
    return largest if largest and held[largest.pid] else None


def _stop(culprit: Process, snapshot: Snapshot, worst: Pressure) -> Action:
    command, members = find_command(culprit, snapshot)
    owner, freed = describe_owner(culprit, snapshot), measure_held(members, snapshot, worst.target)
    action = _build(worst, "stop", culprit.title, culprit, owner, command, freed)
    return replace(action, others=len(members) - 1, on_gpus=_measure_gpus(members, snapshot, worst.target))


def _measure_gpus(members: Sequence[Process], snapshot: Snapshot, target: str) -> tuple[int, Freed] | None:
    """Return how many GPUs these processes hold memory of, and how much: None if the target has all of it."""
    if _holds_resident(snapshot, target):
        return None
    pools = [one.id for one in snapshot.pools if one.kind in GPU_MEMORY]
    held = [one for one in (measure_held(members, snapshot, pool) for pool in pools) if one.low_bytes]
    if len(held) < 2:
        return None
    high = sum_figures([one.high_bytes for one in held])
    return len(held), Freed(sum(one.low_bytes for one in held), high)


def find_command(process: Process, snapshot: Snapshot) -> tuple[str | None, Sequence[Process]]:
    """Return the command that stops a process for good, by its owner, and the listed processes that it ends.

    A supervisor would start a killed process of a pod, a container or a service again, and Slurm would count its
    job as failed. No command is certain for a process of another PID namespace, or of a pod whose name is not
    known, and none but kill for a container of an unknown runtime, a job of another scheduler, or a user's service.
    """
    if not process.visible:
        return None, (process,)
    processes, unit, container, job = snapshot.processes, process.unit, process.container, process.job
    is_of_host = isinstance(unit, str) and not is_qualified(unit)
    if isinstance(process.pod, str):
        namespace, _, pod = snapshot.pod_names.get(process.pod, "").partition("/")
        command = f"kubectl delete pod --namespace {shlex.quote(namespace)} {shlex.quote(pod)}" if pod else None
        return command, [one for one in processes if one.pod == process.pod]
    if is_of_host and str(unit).endswith(SLURM_UNITS) and isinstance(job, str) and not is_qualified(job):
        return f"scancel {shlex.quote(job)}", [one for one in processes if one.job == job]
    runtime = next((name for start, name in RUNTIMES.items() if str(unit).startswith(start)), None)
    if runtime and is_of_host and isinstance(container, str):
        members = [one for one in processes if one.container == container]
        return f"{runtime} stop {shlex.quote(container)}", members
    if is_of_host and str(unit).endswith(".service") and not container and process.job is None:
        members = [one for one in processes if one.unit == unit and one.container == container]
        return f"systemctl stop {shlex.quote(str(unit))}", members
    return f"kill {process.pid}", (process,)


def describe_owner(process: Process, snapshot: Snapshot) -> str:
    """Return the user and the container or service of a process: "ada, session-7". Unknown parts are left out.

    The manager of a service is that of the user who is named before it.
    """
    home = find_home(process.unit, process.container, snapshot.container_names)
    if isinstance(home, str) and isinstance(process.user, str):
        home = OF_USER.sub("", home)
    known = [one for one in (process.user, home) if isinstance(one, str) and one]
    return ", ".join(one.removesuffix(".scope").removesuffix(".service") for one in known)


def measure_held(processes: Iterable[Process], snapshot: Snapshot, target: str) -> Freed:
    """Return the memory of a pool or limit that comes back when these processes end.

    GPU memory counts where it lies within the target. Resident memory counts in System RAM, and in a limit of
    which it is certain that it contains all processes. Of several processes, the largest resident set is the
    lower bound: they may share pages.
    """
    found = list(processes)
    devices = [held for one in found for place, held in one.device_bytes.items() if _is_in(place, target, snapshot)]
    known = sum(one for one in devices if isinstance(one, int))
    sets = [one.rss_bytes for one in found] if _holds_resident(snapshot, target) else []
    sizes = [one for one in sets if isinstance(one, int)]
    may_overlap = any(one.footprint_range for one in found) and bool(sizes)
    low = max(known, *sizes) if may_overlap else known + max(sizes, default=0)
    high: Bytes = known + sum(sizes)
    unknown = next((one for one in (*devices, *sets) if isinstance(one, Absent)), None)
    return Freed(low, high if unknown is None else unknown)


def _is_in(place: str, target: str, snapshot: Snapshot) -> bool:
    within = {share.id: share.within for share in snapshot.shares}
    while place != target and place in within:
        place = within[place]
    return place == target


def _holds_resident(snapshot: Snapshot, target: str) -> bool:
    if any(pool.id == target and pool.kind is PoolKind.SYSTEM_RAM for pool in snapshot.pools):
        return True
    limit = _find_share(snapshot, target)
    is_own = limit is not None and limit.kind is ShareKind.CGROUP and snapshot.machine.in_container
    return is_own and not snapshot.machine.sees_all_processes


def _find_share(snapshot: Snapshot, target: str) -> Share | None:
    return next((one for one in snapshot.shares if one.id == target), None)


def _list_options(snapshot: Snapshot, worst: Pressure) -> Iterator[Action]:
    """Yield the options of model servers that would leave memory of the target, the largest effect first."""
    if not snapshot.engines:
        return
    from memwatch.planning.device_totals import find_lower_fraction  # the planner is loaded only if a server runs

    found = [(find_lower_fraction(engine, snapshot), engine) for engine in snapshot.engines]
    lower = [(one, engine) for one, engine in found if one and one.pool.id == worst.target]
    for one, engine in sorted(lower, key=lambda pair: -pair[0].freed_bytes):
        process = _find_process(engine, snapshot)
        if process is None:
            continue
        subject = f"{engine.title} at {one.fraction:g}"
        freed = Freed(one.freed_bytes, one.freed_bytes)
        yield _build(worst, "option", subject, process, "", f"{one.option} {one.fraction:g}", freed)


def _find_process(engine: Engine, snapshot: Snapshot) -> Process | None:
    return next((one for one in snapshot.processes if one.pid == engine.pid), None)


def _build(
    worst: Pressure,
    kind: Literal["stop", "option"],
    subject: str,
    process: Process,
    owner: str,
    command: str | None,
    freed: Freed,
) -> Action:
    after = _ratio_after(worst, freed.low_bytes)
    level = None if after is None else _level_after(worst, after)
    is_held = (
        level is not None
        and after is not None
        and not isinstance(worst.thresholds, Absent)
        and level > base_level(after, worst.thresholds)
    )
    return Action(kind, subject, process, owner, command, worst.target, freed, after, level, is_held=is_held)


def _level_after(worst: Pressure, after: float) -> Level | None:
    """Return the level that use falls to, with hysteresis. Levels that only signals ask for end with them."""
    if isinstance(worst.thresholds, Absent):
        return None
    held = [one.level for one in worst.reasons if one.signal == "util" and one.level is not None]
    margin = known_or(worst.clear_margin, 0.0)  # early development versions do not send it
    return level_after_fall(max([worst.base_level, *held]), after, worst.thresholds, margin)


def _ratio_after(worst: Pressure, freed: int) -> float | None:
    if isinstance(worst.size_bytes, Absent) or worst.size_bytes <= worst.resident_bytes:
        return None
    return max(0.0, worst.ratio - freed / (worst.size_bytes - worst.resident_bytes))
