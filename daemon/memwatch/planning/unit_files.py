"""Drop-ins for services whose footprint is GPU memory, and a rule for systemd-oomd, as text to review.

The kernel and systemd-oomd choose by memory that is charged to processes and control groups. GPU memory is not, so
they kill others first on unified machines, and gain little by killing its holder on machines with VRAM.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from memwatch.core import units
from memwatch.core.model import Absent, PoolKind, Process, find_root
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import GIB

# Less is a desktop's share: a compositor holds some hundred MiB for each screen.
MIN_DEVICE_BYTES = 2 * GIB
# A limit closer to the machine's size protects nothing.
MAX_LIMIT_RATIO = 0.9
MAX_SCORE = 1000
RULE = "memwatch-gpu"
RULE_FILE = f"/etc/systemd/oomd/rules.d/{RULE}.oomrule"
# Names of services that can be written to a file. A scope ends with its processes, so it has no drop-in.
_SERVICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,200}\.service")
# A user manager and the units in it belong to a user.
_USER_MANAGER = re.compile(r"user@\d+\.service")


class UnitFile(Struct, frozen=True):
    """A file to review, with the path at which systemd reads it."""

    path: str
    text: str


class Footprint(Struct, frozen=True):
    """Memory of a service. `shared_bytes`: GPU memory inside System RAM, which no control group is charged for;
    `vram_bytes`: memory of GPUs outside it."""

    unit: str
    processes: int
    host_bytes: int
    shared_bytes: int
    vram_bytes: int


def build_unit_files(snapshot: Snapshot) -> tuple[UnitFile, ...]:
    """Return a drop-in for each service with GPU memory, and the rule that those on unified machines use."""
    ram = next((pool.size_bytes for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM), None)
    if ram is None:
        return ()
    found = measure_services(snapshot)
    files = [UnitFile(_drop_in_path(one.unit), "\n".join(_drop_in(one, ram)) + "\n") for one in found]
    if any(one.shared_bytes > one.vram_bytes for one in found):
        files.append(UnitFile(RULE_FILE, _RULE_TEXT))
    return tuple(files)


def find_other_holders(snapshot: Snapshot) -> list[str]:
    """Return the units with GPU memory that cannot have a drop-in: containers, sessions, services of users."""
    return sorted(one.unit for one in _measure(snapshot) if not _has_drop_in(one.unit))


def measure_services(snapshot: Snapshot) -> list[Footprint]:
    """Return the services that hold GPU memory, the largest first."""
    found = [one for one in _measure(snapshot) if _has_drop_in(one.unit)]
    return sorted(found, key=lambda one: one.shared_bytes + one.vram_bytes, reverse=True)


def _has_drop_in(unit: str) -> bool:
    return _SERVICE.fullmatch(unit) is not None and _USER_MANAGER.fullmatch(unit) is None


def _measure(snapshot: Snapshot) -> list[Footprint]:
    shared = _places_in_ram(snapshot)
    of_unit: dict[str, list[Process]] = {}
    for process in snapshot.processes:
        if isinstance(process.unit, str):
            of_unit.setdefault(process.unit, []).append(process)
    found = [_add_up(unit, processes, shared) for unit, processes in of_unit.items()]
    return [one for one in found if one.shared_bytes + one.vram_bytes >= MIN_DEVICE_BYTES]


def _add_up(unit: str, processes: list[Process], shared: Mapping[str, bool]) -> Footprint:
    held = [
        (shared[place], size)
        for one in processes
        for place, size in one.device_bytes.items()
        if not isinstance(size, Absent) and place in shared
    ]
    return Footprint(
        unit,
        len(processes),
        sum(one.rss_bytes for one in processes if not isinstance(one.rss_bytes, Absent)),
        sum(size for is_shared, size in held if is_shared),
        sum(size for is_shared, size in held if not is_shared),
    )


def _places_in_ram(snapshot: Snapshot) -> dict[str, bool]:
    """Return for each pool and share if it is inside System RAM."""
    places = {pool.id: pool.kind is PoolKind.SYSTEM_RAM for pool in snapshot.pools}
    within = {share.id: share.within for share in snapshot.shares}
    return places | {share: places.get(find_root(share, within), False) for share in within}


def _drop_in_path(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.d/50-memwatch.conf"


def _drop_in(one: Footprint, ram: int) -> Iterator[str]:
    held = [(one.shared_bytes, "GPU memory inside System RAM"), (one.vram_bytes, "VRAM")]
    parts = [f"{units.size(size)} of {label}" for size, label in held if size]
    processes = "1 process" if one.processes == 1 else f"{one.processes} processes"
    yield f"# {one.unit} holds {' and '.join(parts)}; {units.size(one.host_bytes)} is resident ({processes})."
    yield "# Measured now: review it under full load, then copy it and run systemctl daemon-reload. A service of a"
    yield "# user's manager has its drop-ins in /etc/systemd/user, and can only raise OOMScoreAdjust=."
    yield "[Service]"
    yield from _choice_of_the_kernel(one, ram) if one.shared_bytes > one.vram_bytes else _protection(one)
    if one.processes > 1:
        yield "# If one process is killed, end all: the others would keep their GPU memory. Needs systemd 243."
        yield "OOMPolicy=kill"
    yield from _limit(one, ram)


def _choice_of_the_kernel(one: Footprint, ram: int) -> Iterator[str]:
    score = min(MAX_SCORE, round(MAX_SCORE * one.shared_bytes / ram))
    yield "# The kernel's OOM killer does not count GPU memory. With this score the unit is rated by its real size:"
    yield f"# {units.size(one.shared_bytes)} of {units.size(ram)} is {score} thousandths."
    yield f"OOMScoreAdjust={score}"
    yield "# systemd-oomd kills the unit if its processes stall on memory, by the rule below. Needs systemd 261;"
    yield "# older versions ignore the line with a warning."
    yield f"OOMRules={RULE}"


def _protection(one: Footprint) -> Iterator[str]:
    freed, lost = units.size(one.host_bytes), units.size(one.vram_bytes)
    yield f"# Killing it frees {freed} of System RAM, and loses {lost} of loaded VRAM."
    yield "# systemd-oomd takes other units first. Needs systemd 248."
    yield "ManagedOOMPreference=avoid"
    yield "# The same for the kernel's OOM killer, without making the unit immune."
    yield "OOMScoreAdjust=-250"


def _limit(one: Footprint, ram: int) -> Iterator[str]:
    needed = one.host_bytes + one.shared_bytes + one.vram_bytes
    limit = math.ceil((needed + GIB) / GIB)
    if limit * GIB > MAX_LIMIT_RATIO * ram:
        yield f"# No MemoryMax=: to load the model through System RAM may take {units.size(needed)}."
        return
    yield "# Resident memory, and room to load what is on the GPU once through System RAM. GPU memory itself does"
    yield "# not count towards the limit."
    yield f"MemoryMax={limit}G"


_RULE_TEXT = """\
# Rule of systemd-oomd (systemd 261) for units with OOMRules=memwatch-gpu: kill the whole unit if all its processes
# stall on memory for most of 20 s. On a unified machine that returns its GPU memory to the system.
[Rule]
MemoryPressureAbove=60%
LastingSec=20s
Action=kill-all
"""
