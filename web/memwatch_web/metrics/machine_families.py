"""Metrics of the machine: pools, shares, other memory, devices, pressure, and the kernel's own signs of it.

Processes follow, and their owners: the largest units, containers, pods, jobs and users.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from memwatch.core.accounting.driver_errors import unassigned_errors
from memwatch.core.accounting.leased import held_by_pool
from memwatch.core.model import STALLED, Absent, Bytes, Device, Pool, Process, Share, ShareKind, sum_figures
from memwatch.core.owners import OWNER_KINDS, OwnerKind, OwnerTotal, build_totals, find_caps, find_home
from memwatch.core.pressure.oom_kills import SCOPES
from memwatch.core.snapshot import (
    Kernel,
    Level,
    Node,
    PsiLine,
    Snapshot,
    Swap,
    Tegrastats,
    ZfsCache,
    Zram,
)
from memwatch.reporting.incidents.readings import build_frame, find_places, size_in
from memwatch.reporting.render.summary import by_footprint
from memwatch_monitor.between_scrapes import LevelTimes, TargetTimes
from memwatch_web.metrics.samples import (
    FigureRow,
    PairFamily,
    RowFamily,
    Value,
    counter,
    find_devices,
    gauge,
    gauges,
    head_of,
    info,
    read_docs,
    words,
)

POOL, DEVICE, NODE = ("pool", "kind", "device"), ("device",), ("node",)
SHARE = ("share", "kind", "within", "device")
TARGET, OWNER = ("target", "device"), ("kind", "name")

# Fields of a record with a family each.
POOL_FIELDS = ("size_bytes", "used_bytes", "available_bytes", "free_bytes", "unattributed_bytes")
ACTIVITY = ("busy_ratio", "memory_busy_ratio", "temperature_celsius", "power_watts")


def pool_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    devices = find_devices(snapshot)
    rows = [((pool.id, pool.kind.value, devices.get(pool.id, "")), pool) for pool in snapshot.pools]
    yield from gauges("pool_", Pool, POOL_FIELDS, rows, POOL)
    held = held_by_pool(snapshot.leases, snapshot.shares) if snapshot.leases else {}
    text = "Available memory of a pool that is leased to programs that have not allocated it yet, in bytes."
    yield gauge("pool_leased_bytes", text, [(values, held.get(pool.id, 0)) for values, pool in rows], POOL)
    parts = [
        ((pool, part.kind, device), part.size_bytes) for (pool, _, device), one in rows for part in one.contents
    ]
    text = "Contents of a pool in bytes. The contents of a pool add up to its size."
    yield gauge("pool_contents_bytes", text, parts, ("pool", "content", "device"))


def share_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    rows = [((s.id, s.kind.value, s.within, s.device or ""), s) for s in snapshot.shares]
    yield from gauges("share_", Share, ("used_bytes", "limit_bytes"), rows, SHARE)
    cgroups = [(values, s) for values, s in rows if s.kind is ShareKind.CGROUP and isinstance(s.limit_bytes, int)]
    text = "1 if the kernel slows the processes of a cgroup at its limit (memory.high), 0 if it kills them."
    yield gauge("share_limit_throttles", text, [(values, int(s.limit_throttles)) for values, s in cgroups], SHARE)


def swap_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    """Yield swap and compressed memory. zram and zswap are part of the kernel's memory in System RAM."""
    if not isinstance(swap := snapshot.swap, Absent):
        yield from gauges("swap_", Swap, ("size_bytes", "used_bytes"), [((), swap)])
        yield from gauges("", Swap, ("zswap_stored_bytes", "zswap_memory_bytes"), [((), swap)])
    if not isinstance(zram := snapshot.zram, Absent):
        yield from gauges("zram_", Zram, ("stored_bytes", "memory_bytes"), [((), zram)])


def pinned_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    """Yield memory that the kernel cannot reclaim, and ZFS's cache, which it can."""
    yield from gauges("", Kernel, ("mlocked_bytes", "unevictable_bytes"), [((), snapshot.kernel)])
    if not isinstance(cache := snapshot.zfs_cache, Absent):
        texts = read_docs(ZfsCache)
        yield gauge("zfs_cache_bytes", texts["size_bytes"], [((), cache.size_bytes)])
        yield from gauges("zfs_cache_", ZfsCache, ("minimum_bytes",), [((), cache)])


def device_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    """Yield identity, headroom, utilization, sensors and errors of devices."""
    devices = snapshot.devices
    rows = [((device.id,), device) for device in devices]
    names = ("device", "vendor", "name", "uuid", "pci", "driver", "architecture")
    identities = [(d.id, d.vendor, d.name, d.uuid, d.pci, d.driver, d.architecture.value) for d in devices]
    yield info("device", "Identity of a device.", identities, names)
    up = [(key, int(one.state == "ok")) for key, one in rows if one.state != STALLED]
    text = "1 if a device responds, 0 if it is lost, missing or needs a reset; absent if its collector is stalled."
    yield gauge("device_up", text, up, DEVICE)
    yield from gauges("device_", Device, ("headroom_bytes", "headroom_after_reclaim_bytes"), rows, DEVICE)
    frees = [((device.id, api), size) for device in devices for api, size in device.api_free_bytes.items()]
    text = "Free memory of a device in bytes, as reported by an API such as CUDA."
    yield gauge("device_api_free_bytes", text, frees, ("device", "api"))
    complete = [
        (key, int(one.process_list == "complete")) for key, one in rows if isinstance(one.process_list, str)
    ]
    text = "1 if all processes that hold memory of a device are visible, 0 if some are hidden."
    yield gauge("device_process_list_complete", text, complete, DEVICE)
    yield from gauges("device_", Device, ACTIVITY, rows, DEVICE)
    clocks = [
        ((device.id, name), hertz)
        for device in devices
        if not isinstance(device.clock_hertz, Absent)
        for name, hertz in device.clock_hertz.items()
    ]
    yield gauge("device_clock_hertz", "Frequency of a clock of a device in hertz.", clocks, ("device", "clock"))
    reasons = [
        ((device.id, reason), 1)
        for device in devices
        if not isinstance(device.throttled, Absent)
        for reason in device.throttled
    ]
    text = "1 for each reason that lowers the clocks of a device now."
    yield gauge("device_throttled", text, reasons, ("device", "reason"))
    yield from driver_error_families(snapshot)


def driver_error_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    labels = ("device", "kind")
    log = snapshot.kernel_log
    others = () if isinstance(log, Absent) else unassigned_errors(snapshot.devices, log)
    errors = [((device.id, kind), count) for device in snapshot.devices for kind, count in device.errors.items()]
    errors += [((one.place, one.kind), one.count) for one in others]
    yield counter("driver_memory_errors", "Total memory errors reported by a driver, by kind.", errors, labels)
    seen = [((device.id, kind), at) for device in snapshot.devices for kind, at in device.errors_seen_unix.items()]
    seen += [((one.place, one.kind), one.last_seen_unix) for one in others]
    text = "Unix time of the last memory error reported by a driver, by kind."
    yield gauge("driver_memory_error_last_seen_timestamp_seconds", text, seen, labels)


def pressure_families(snapshot: Snapshot, levels: LevelTimes | None) -> Iterator[RowFamily]:
    devices, judged = find_devices(snapshot), snapshot.pressure

    keyed = [((one.target, devices.get(one.target, "")), one) for one in judged]
    text = "Pressure level of a target: 0 OK (low), 1 medium, 2 high, 3 critical."
    yield gauge("pressure_level", text, [(key, int(one.level)) for key, one in keyed], TARGET)
    yield gauge(
        "pressure",
        "1 for the current level of a target, 0 for the other levels.",
        [((*key, level.word), int(one.level == level)) for key, one in keyed for level in Level],
        (*TARGET, "level"),
    )
    text = "Used fraction of the judged memory of a target, without resident memory; above 1 if over budget."
    yield gauge("pressure_ratio", text, [(key, one.ratio) for key, one in keyed], TARGET)
    yield gauge(
        "pressure_reason",
        "1 for each signal that supports the current level of a target.",
        [((*key, reason.signal), 1) for key, one in keyed for reason in one.reasons],
        (*TARGET, "signal"),
    )
    text = "Forecast of the time until a target is full, in seconds."
    yield gauge("time_to_full_seconds", text, [(key, one.seconds_to_full) for key, one in keyed], TARGET)
    if levels is not None:
        yield from level_families(levels.times(snapshot.monotonic), devices)


def level_families(times: Mapping[str, TargetTimes], devices: Mapping[str, str]) -> Iterator[RowFamily]:
    """Yield counters that include levels between two scrapes."""
    keys = {target: (target, devices.get(target, "")) for target in times}
    seconds = [
        ((*keys[target], level.word), one.seconds[level]) for target, one in times.items() for level in Level
    ]
    text = "Total time of a target at each level since the daemon started, in seconds."
    yield counter("pressure_seconds", text, seconds, (*TARGET, "level"))
    changes = [(keys[target], one.changes) for target, one in times.items()]
    yield counter("pressure_changes", "Total changes of the level of a target.", changes, TARGET)


def kernel_families(snapshot: Snapshot, scopes: Mapping[str, int]) -> Iterator[RowFamily]:
    """Yield the kernel's figures. `scopes`: OOM kills by scope, empty if none is known."""
    yield from psi_families(snapshot)
    yield from gauges(
        "",
        Node,
        ("largest_free_block_bytes", "free_large_blocks_bytes"),
        [((str(node.id),), node) for node in snapshot.nodes],
        NODE,
    )
    if not isinstance(tegrastats := snapshot.tegrastats, Absent):
        yield from gauges(
            "tegrastats_", Tegrastats, ("largest_free_block_bytes", "largest_free_blocks"), [((), tegrastats)]
        )
    counts: Mapping[str, Value] = scopes or {"unknown": snapshot.kernel.oom_kills_total}
    text = (
        "Total processes killed by the kernel OOM killer since boot: for lack of System RAM (machine), at the "
        "limit of a cgroup, or unknown."
    )
    kills = [((scope,), counts.get(scope, 0)) for scope in SCOPES]
    is_known = not isinstance(snapshot.kernel.oom_kills_total, Absent)
    yield counter("kernel_oom_kills", text, kills if is_known else [], ("scope",))


def psi_families(snapshot: Snapshot) -> Iterator[RowFamily]:
    psi = snapshot.psi
    if isinstance(psi, Absent):
        return
    kinds: dict[str, PsiLine] = {"some": psi.some}
    if not isinstance(psi.full, Absent):
        kinds["full"] = psi.full
    windows = {"10s": "ratio_10s", "60s": "ratio_60s", "300s": "ratio_300s"}
    yield gauge(
        "psi_stall_ratio",
        "Fraction of time tasks stalled on memory (PSI), by window, 0–1.",
        [((kind, window), getattr(line, name)) for kind, line in kinds.items() for window, name in windows.items()],
        ("kind", "window"),
    )
    totals = [((kind,), line.total_seconds) for kind, line in kinds.items()]
    text = "Total time tasks stalled on memory since boot (PSI), in seconds."
    yield counter("psi_stalled_seconds", text, totals, ("kind",))


OWNER = ("kind", "name")
DEFAULT_OWNERS = 8
# An owner that was among the largest keeps its series for this long, so that series do not come and go.
KEEP_SECONDS = 600.0
# Names of the samples that are not one owner. No unit, container, pod, job or user has a name in parentheses.
OTHERS, NO_OWNER, NOT_VISIBLE, NOT_KNOWN = "(others)", "(none)", "(not visible)", "(not known)"
# Of the process in the name of a holder; its user chooses it.
MAX_NAME_LENGTH = 64


class OwnerSample(Struct, frozen=True):
    """Figures of one owner, or of several together."""

    labels: Mapping[str, str]
    resident_bytes: Bytes
    device_bytes: Mapping[str, Bytes]
    footprint_bytes: Bytes


class ChosenOwners(NamedTuple):
    """Owners of one kind: those that are exported one by one, and the others."""

    kind: OwnerKind
    shown: Sequence[OwnerTotal]
    others: Sequence[OwnerTotal]


class OwnerSelection:
    """Selects the largest owners of each kind, and those that were among them in the last ten minutes.

    Totals of unchanged processes are kept: with 500 containers they take 12 ms.
    """

    def __init__(self) -> None:
        self._among_largest: dict[tuple[str, str], float] = {}
        self._totals: dict[OwnerKind, list[OwnerTotal]] = {}
        self._of: tuple[object, object, object] = (None, None, None)
        self._holds_devices = False
        # Of the last choice: totals and maximum, the owners that were among the largest, and the result.
        self._choice: tuple[object, int, Sequence[tuple[str, str]], list[ChosenOwners]] = (None, 0, (), [])

    def choose(self, snapshot: Snapshot, most: int) -> list[ChosenOwners]:
        """Return the owners of each kind that processes have; `most`: how many of the largest."""
        now, totals = snapshot.monotonic, self.totals(snapshot)
        known, known_most, largest, chosen = self._choice
        # An owner that was among the largest, and is not anymore, ends by time.
        if known is totals and known_most == most and len(largest) == len(self._among_largest):
            self._among_largest = dict.fromkeys(largest, now)
            return chosen
        self.forget(now)
        chosen = [
            ChosenOwners(kind, *self.select(kind, of_kind, now, most))
            for kind, of_kind in totals.items()
            if any(total.visible for total in of_kind)
        ]
        largest = [key for key, at in self._among_largest.items() if at == now]
        self._choice = totals, most, largest, chosen
        return chosen

    def totals(self, snapshot: Snapshot) -> Mapping[OwnerKind, Sequence[OwnerTotal]]:
        """Return the owners of each kind, the largest first."""
        owners, processes = snapshot.owners, snapshot.processes
        if self._of[1] is not processes:
            self._holds_devices = any(process.device_bytes for process in processes)
        caps = find_caps(processes, snapshot.pools, snapshot.shares) if self._holds_devices else {}
        if self._of[0] is not owners or self._of[1] is not processes or self._of[2] != caps:
            self._of = owners, processes, caps
            self._totals = {kind: build_totals(owners, processes, kind, caps=caps) for kind in OWNER_KINDS}
        return self._totals

    def select(
        self, kind: OwnerKind, totals: Sequence[OwnerTotal], now: float, most: int
    ) -> tuple[list[OwnerTotal], list[OwnerTotal]]:
        """Return the owners to export one by one, and the others. At most 2 × `most` are exported.

        `totals`: the largest first. `now`: monotonic seconds.
        """
        named = [total for total in totals if isinstance(total.name, str)]
        for total in named[:most]:
            self._among_largest[kind, str(total.name)] = now
        kept = [total for total in named[most:] if self._is_recent(kind, total, now)][:most]
        exported = {str(total.name) for total in (*named[:most], *kept)}
        shown = [total for total in totals if not isinstance(total.name, str) or total.name in exported]
        return shown, [total for total in named if total.name not in exported]

    def forget(self, now: float) -> None:
        """Drop the owners that were among the largest too long ago."""
        self._among_largest = {key: at for key, at in self._among_largest.items() if 0 <= now - at <= KEEP_SECONDS}

    def _is_recent(self, kind: OwnerKind, total: OwnerTotal, now: float) -> bool:
        return now - self._among_largest.get((kind, str(total.name)), -math.inf) <= KEEP_SECONDS


def owner_families(snapshot: Snapshot, chosen: Sequence[ChosenOwners]) -> Iterator[RowFamily]:
    """Yield the memory of owners, of each kind the largest one by one."""
    samples = [sample for one in chosen for sample in owner_samples(snapshot, one)]
    text = "Resident memory (RSS) of the processes of an owner, in bytes. Sum over one kind only."
    yield _family("resident", text, OWNER, [(one.labels, one.resident_bytes) for one in samples])
    devices = find_devices(snapshot)
    held = [
        ({**one.labels, "within": place, "device": devices.get(place, "")}, figure)
        for one in samples
        for place, figure in one.device_bytes.items()
    ]
    text = "Device memory of an owner by pool or share, in bytes. It may also be resident."
    yield _family("device", text, (*OWNER, "within", "device"), held)
    # Equal to the resident memory on a machine without devices.
    footprints = samples if snapshot.devices else ()
    text = "Memory of an owner in bytes: resident and device memory, no byte counted twice. Only with devices."
    yield _family("footprint", text, OWNER, [(one.labels, one.footprint_bytes) for one in footprints])


def owner_samples(snapshot: Snapshot, chosen: ChosenOwners) -> list[OwnerSample]:
    kind, shown, others = chosen
    samples, taken = [], {OTHERS}
    for total in shown:
        labels = _labels(snapshot, kind, total)
        if labels["name"] in taken:  # two containers with one name
            labels = {"kind": kind, "name": str(total.name)}
        taken.add(labels["name"])
        samples.append(OwnerSample(labels, total.rss_bytes, total.device_bytes, total.footprint_bytes))
    return samples + ([_sum_others(kind, others)] if others else [])


def _labels(snapshot: Snapshot, kind: OwnerKind, total: OwnerTotal) -> dict[str, str]:
    """Return the labels of an owner; for a pod or a container of Kubernetes also those of kube-state-metrics."""
    if total.name is None:
        return {"kind": kind, "name": NO_OWNER}
    if isinstance(total.name, Absent):
        return {"kind": kind, "name": NOT_KNOWN if total.visible else NOT_VISIBLE}
    names = {"pod": snapshot.pod_names, "container": snapshot.container_names}.get(kind, {})
    name = names.get(total.name, total.name)
    # Nested containers of LXC, whose names no runtime reports, have a "/" as well.
    is_of_pod = total.name in names and "/" in name
    parts = dict(zip(("namespace", "pod", "container"), name.split("/"), strict=False)) if is_of_pod else {}
    return {"kind": kind, "name": name, **parts}


def _sum_others(kind: OwnerKind, others: Iterable[OwnerTotal]) -> OwnerSample:
    others = list(others)
    places = dict.fromkeys(place for other in others for place in other.device_bytes)
    return OwnerSample(
        {"kind": kind, "name": OTHERS},
        sum_figures([other.rss_bytes for other in others]),
        {
            place: sum_figures([other.device_bytes[place] for other in others if place in other.device_bytes])
            for place in places
        },
        sum_figures([other.footprint_bytes for other in others]),
    )


def _family(
    what: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Mapping[str, str], Bytes]]
) -> RowFamily:
    """Return a gauge. `labels`: those of each sample; samples of Kubernetes have more."""
    known: list[FigureRow] = [
        (tuple(pairs.items()), figure) for pairs, figure in rows if not isinstance(figure, Absent)
    ]
    return PairFamily(head_of("gauge", f"owner_{what}_bytes", text), known, labels)


def holder_families(snapshot: Snapshot, shows_processes: bool) -> Iterator[RowFamily]:
    """Yield the largest holder of each pool above OK, for the texts of alerts: at most one sample for a pool.

    It has no name that other metrics do not have: of a process only with `shows_processes`, else of a container.
    """
    raised = {one.target for one in snapshot.pressure if one.level > Level.LOW}
    rows = list_holders(snapshot, raised, shows_processes) if raised else ()
    text = "Largest holder of a pool whose level is above OK; the name of a process only if processes are exported."
    yield info("pool_top_holder", text, [row for row in rows if any(row[1:])], ("pool", "name", "unit"))


def list_holders(
    snapshot: Snapshot, raised: Container[str], shows_processes: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield each of these pools with the name and the unit of its largest holder."""
    frame = build_frame(0.0, snapshot)
    visible = [process for process in snapshot.processes if process.visible]
    for pool in snapshot.pools:
        if pool.id in raised:
            places = find_places(frame, pool.id)
            sizes = [(size, process) for process in visible if (size := size_in(process, places))]
            if sizes:
                _, process = max(sizes, key=lambda found: found[0])
                yield (pool.id, *name_holder(process, snapshot, shows_processes))


def name_holder(process: Process, snapshot: Snapshot, shows_process: bool) -> tuple[str, str]:
    """Return name and unit. Without the name of the process, a container needs no unit: its scope has its id."""
    unit, home = words(process.unit), words(find_home(process.unit, process.container, snapshot.container_names))
    if shows_process:
        return words(process.name)[:MAX_NAME_LENGTH], unit
    return ("", unit) if home == unit else (home, "")


def ghost_families(snapshot: Snapshot) -> Iterator[RowFamily]:
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


def process_families(snapshot: Snapshot, max_processes: int) -> Iterator[RowFamily]:
    """Yield the largest processes. A snapshot has more: it includes every process that holds GPU memory."""
    largest = by_footprint(snapshot.processes)[:max_processes]
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
