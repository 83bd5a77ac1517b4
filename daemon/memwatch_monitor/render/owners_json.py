"""Memory by owner, growth and PSS of processes as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import HELD_BY_PROCESSES
from memwatch.core.accounting.unattributed import unattributed_bytes as compute_unattributed
from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Pool, Process, ProcessList, Share
from memwatch.core.owners import OwnerKind, OwnerTotal, build_totals, find_caps
from memwatch.core.processes.growth import LeakSuspect, ProcessGrowth
from memwatch.core.processes.process_folder import Pss
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import ABSENT, Json, Shape, Wire
from memwatch.reporting.render.json import relation, unattributed_note

NOT_RECORDED = "This recording has no owners: it contains only the largest processes."
IDENTITY = ("pid", "start_time", "name", "user", "unit", "container")


class Owners(Struct, frozen=True):
    """Memory of all processes by owner, and what of each pool and share has no known holder."""

    by: OwnerKind
    process_list: ProcessList | Absent
    note: Annotated[str | None, Doc("Why the list is partial; null if it is complete.")]
    owners: tuple[OwnerTotal, ...]
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]


class GrowthTimes(Struct, frozen=True):
    """`shift`: from boot time to Unix time. `find_windows`: growth of a process in recent windows."""

    shift: float
    find_windows: Callable[[Process], Mapping[str, Bytes]]


class MeasuredPss(Struct, frozen=True):
    """A process with its proportional set size."""

    process: Process
    pss: Pss


class Growth(Struct, frozen=True):
    """Growth of processes between two times, and suspected leaks."""

    from_: float = field(name="from")
    to: float
    processes: tuple[ProcessGrowth, ...]
    suspects: tuple[LeakSuspect, ...]


def unattributed_bytes(share: Share, snapshot: Snapshot) -> Bytes:
    return compute_unattributed(share, snapshot)


def from_unix(grown: ProcessGrowth, times: GrowthTimes) -> float:
    return grown.from_boottime + times.shift


def since_unix(suspect: LeakSuspect, times: GrowthTimes) -> float:
    return suspect.since_boottime + times.shift


def bytes_per_second(grown: ProcessGrowth, _: GrowthTimes) -> float:
    seconds = grown.to_boottime - grown.from_boottime
    return grown.grown_bytes / seconds if seconds else 0.0


def windows(
    grown: ProcessGrowth, times: GrowthTimes
) -> Annotated[Mapping[str, Bytes], Doc("Growth by window in seconds.", examples=({"60": 0, "600": 1048576},))]:
    return times.find_windows(grown.process)


PSS_FIELDS = ("pss_bytes", "rss_bytes", "anonymous_bytes", "file_bytes", "shared_memory_bytes", "swap_bytes")
OWNERS = Wire(
    (
        Shape(Owners),
        Shape(OwnerTotal, "Owner"),
        Shape(
            Pool,
            "Remainder",
            further=(unattributed_note,),
            order=("id", "label", "used_bytes", "unattributed_bytes", "overlap", ABSENT, "unattributed_note"),
        ),
        Shape(
            Share,
            "ShareRemainder",
            further=(relation, unattributed_bytes),
            order=("id", "relation", "used_bytes", "unattributed_bytes"),
        ),
        Shape(Growth),
        Shape(
            ProcessGrowth,
            further=(from_unix, ProcessGrowth.grown_bytes, bytes_per_second, windows),
            flat={"process": IDENTITY},
            order=(*IDENTITY, ABSENT, "from_unix", "from_bytes", "to_bytes", "grown_bytes", "bytes_per_second",
                   "whole", "falling", "windows"),
        ),
        Shape(
            LeakSuspect,
            further=(since_unix,),
            flat={"process": IDENTITY},
            order=(*IDENTITY, ABSENT, "since_unix", "grown_bytes", "evidence"),
        ),
        Shape(
            MeasuredPss,
            "Pss",
            flat={"process": IDENTITY[1:], "pss": ("pid", *PSS_FIELDS)},
            order=(*IDENTITY[1:], ABSENT, "pid", *PSS_FIELDS),
        ),
    )
)  # fmt: skip


def owners_json(snapshot: Snapshot, kind: OwnerKind) -> Json:
    """Return the owners of one kind, and the unattributed memory of each pool and share."""
    scan = snapshot.process_scan
    if snapshot.processes and not snapshot.owners and not isinstance(scan, Absent):
        scan = replace(scan, process_list="partial", note=scan.note or NOT_RECORDED)
    owners = Owners(
        kind,
        scan if isinstance(scan, Absent) else scan.process_list,
        None if isinstance(scan, Absent) else scan.note,
        tuple(_with_names(one, kind, snapshot) for one in list_totals(snapshot, kind)),
        snapshot.pools,
        tuple(share for share in snapshot.shares if share.kind in HELD_BY_PROCESSES),
    )
    return OWNERS.encode(owners, snapshot)


def _with_names(total: OwnerTotal, kind: OwnerKind, snapshot: Snapshot) -> OwnerTotal:
    """Return an owner with its names, and without a cgroup with the reason why it has no figure of one."""
    name = str(total.name)
    return replace(
        total,
        cgroup_bytes=Absent.NOT_SUPPORTED if total.cgroup_bytes is None else total.cgroup_bytes,
        container_name=snapshot.container_names.get(name) if kind == "container" else None,
        pod_name=snapshot.pod_names.get(name) if kind == "pod" else None,
    )


def list_totals(snapshot: Snapshot, kind: OwnerKind) -> list[OwnerTotal]:
    """Return the owners of one kind with the memory of their processes and the kernel's own figures."""
    charged = snapshot.machine.charges_gpu_memory
    caps = find_caps(snapshot.processes, snapshot.pools, snapshot.shares)
    return build_totals(snapshot.owners, snapshot.processes, kind, snapshot.kernel_held, charged, caps)
