"""Memory by owner (unit, container, pod, job, user): sums over all processes of each, device memory included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Protocol, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Pool, Process, Share, Words, name_accelerators, refuse_negative

OwnerKind = Literal["unit", "container", "pod", "job", "user"]
OWNER_KINDS: tuple[OwnerKind, ...] = get_args(OwnerKind)

# The kind of device is put in.
BEYOND = "does not include {} memory"
CHARGED = "includes {} memory"
PERHAPS_BEYOND = "may not include all {} memory"


# Between a name and the scope in which it is unique: "ollama.service in lxc/101", "train.service in user/1000".
# Names of units have no blanks.
WITHIN = " in "
NO_NAMES: Mapping[str, str] = {}
NO_CAPS: Mapping[str, int] = {}


def is_qualified(name: str | None) -> bool:
    """Return True if a unit or job belongs to a container or to a user manager, not to the host's systemd."""
    return name is not None and WITHIN in name


def plain_name(name: str) -> str:
    """Return the name without its scopes."""
    return name.partition(WITHIN)[0]


def describe_home(unit: str | None, container: str | None) -> str | None:
    """Return the owner to show for a process: the container, but a unit inside it, which names it as well."""
    return unit if is_qualified(unit) else container or unit


def find_home(unit: Words | None, container: Words | None, names: Mapping[str, str] = NO_NAMES) -> Words | None:
    """Return the owner to show, by `names` of containers where they are known."""
    if isinstance(container, Absent) or isinstance(unit, Absent):
        return container or unit
    return names.get(container or "") or describe_home(unit, container)


class Owner(Struct, frozen=True):
    """Sum over the processes of one unit, container, … (`kind`) in the process table.

    `name` is None for processes without an owner of this kind. `cgroup_bytes` is the usage of the owner's cgroup,
    page cache included; None if it has no cgroup.
    """

    kind: OwnerKind
    name: Words | None
    processes: int
    rss_bytes: int
    cgroup_bytes: Bytes | None = None

    def __post_init__(self) -> None:
        refuse_negative(self, ("processes", "rss_bytes"), "owner", self.name)


class KernelHeld(Struct, frozen=True):
    """Device memory of one owner by pool or share, as the kernel charges it to the owner's cgroup (dmem)."""

    kind: OwnerKind
    name: str
    device_bytes: Mapping[str, Bytes]


class OwnerTotal(Struct, frozen=True):
    """All processes of one unit, container, pod, job or user, whether listed or not, with their device memory.

    `cgroup_note`: what `cgroup_bytes` does or does not include. `device_bytes` are sums over processes.
    """

    name: Annotated[Words | None, Doc("Null: processes without such an owner, or that are not visible.")]
    processes: int
    rss_bytes: Bytes
    footprint_bytes: Bytes
    footprint_low_bytes: int = 0
    footprint_high_bytes: Bytes = Absent.NOT_AVAILABLE
    device_bytes: Mapping[str, Bytes] = field(default_factory=dict)
    cgroup_bytes: Annotated[
        Bytes | None, Doc("memory.current of the owner's cgroup, page cache included; null if it has none.")
    ] = None
    cgroup_note: Annotated[
        str | None,
        Doc(
            "How cgroup_bytes relates to GPU memory; null without either.",
            examples=("does not include GPU memory",),
        ),
    ] = None
    cgroup_device_bytes: Annotated[
        Mapping[str, Bytes],
        Doc("Device memory that the kernel charges to the owner's cgroup, by pool or share (dmem)."),
    ] = field(default_factory=dict)
    visible: Annotated[bool, Doc("False for the processes that only a driver lists, together.")] = True
    container_name: Annotated[
        str | None,
        Doc("Name, if a container runtime is configured or on a Kubernetes node; null for owners of another kind."),
    ] = None
    pod_name: Annotated[
        str | None,
        Doc("Namespace and name of the pod on a Kubernetes node; null for owners of another kind."),
    ] = None


def sum_owners(processes: Iterable[Process]) -> tuple[Owner, ...]:
    """Sum a complete list of processes by owner, the largest of each kind first, without cgroup figures.

    Processes without a resident set are skipped: only a driver's list has them, not the process table.
    """
    listed = [(process, process.rss_bytes) for process in processes if not isinstance(process.rss_bytes, Absent)]
    owners: list[Owner] = []
    for kind in OWNER_KINDS:
        sums: dict[Words | None, tuple[int, int]] = {}
        for process, rss in listed:
            count, size = sums.get(getattr(process, kind), (0, 0))
            sums[getattr(process, kind)] = (count + 1, size + rss)
        if set(sums) - {None}:
            found = [Owner(kind, name, count, size) for name, (count, size) in sums.items()]
            owners += sorted(found, key=lambda owner: -owner.rss_bytes)
    return tuple(owners)


def subtract(owners: Sequence[Owner], ended: Sequence[Process]) -> tuple[Owner, ...]:
    """Return the owners without these processes, which the sums contain."""
    found = []
    for owner in owners:
        gone = [one for one in ended if getattr(one, owner.kind) == owner.name]
        sizes = [one.rss_bytes for one in gone if not isinstance(one.rss_bytes, Absent)]
        if not gone:
            found.append(owner)
        elif owner.processes > len(gone):
            rss = max(0, owner.rss_bytes - sum(sizes))
            found.append(replace(owner, processes=owner.processes - len(gone), rss_bytes=rss))
    return tuple(found)


def build_totals(
    owners: Iterable[Owner],
    processes: Iterable[Process],
    kind: OwnerKind,
    kernel_held: Iterable[KernelHeld] = (),
    is_charged: bool = False,
    caps: Mapping[str, int] = NO_CAPS,
) -> list[OwnerTotal]:
    """Return the owners of one kind, the largest first. Processes without an owner form the last entry.

    `is_charged`: the kernel charges GPU memory to cgroups. `caps`: as of `find_caps`.
    """
    by_kernel: dict[Words | None, Mapping[str, Bytes]] = {
        one.name: one.device_bytes for one in kernel_held if one.kind == kind
    }
    holders: dict[Words | None, list[Process]] = {}
    ghosts = []
    for process in processes:
        if not process.visible:
            ghosts.append(process)
        elif process.device_bytes:
            holders.setdefault(getattr(process, kind), []).append(process)
    totals = [
        _build_total(owner, holders.get(owner.name, ()), by_kernel.get(owner.name, {}), is_charged, caps)
        for owner in owners
        if owner.kind == kind
    ]
    totals += [_build_ghost_total(ghosts)] if ghosts else []
    return sorted(totals, key=lambda total: (total.name is None, -total.footprint_low_bytes, str(total.name)))


def find_caps(processes: Iterable[Process], pools: Iterable[Pool], shares: Iterable[Share]) -> Mapping[str, int]:
    """Return the use of each pool and share of which processes together hold more: they share buffers."""
    sums = Counter[str]()
    for process in processes:
        for place, figure in process.device_bytes.items():
            sums[place] += figure if isinstance(figure, int) else 0
    places: list[Pool | Share] = [*pools, *shares] if sums else []
    used = {one.id: one.used_bytes for one in places}
    return {place: most for place, most in used.items() if isinstance(most, int) and sums.get(place, 0) > most}


def _build_total(
    owner: Owner,
    holders: Sequence[Process],
    by_kernel: Mapping[str, Bytes],
    is_charged: bool,
    caps: Mapping[str, int],
) -> OwnerTotal:
    """`holders`: its processes with device memory."""
    held = _device_bytes(holders)
    beyond = sum(
        figure - caps[place]
        for place, figure in held.items()
        if place in caps and isinstance(figure, int) and figure > caps[place]
    )
    low = owner.rss_bytes + sum(_beyond_rss(process, process.footprint_low_bytes) for process in holders)
    low = max(owner.rss_bytes, low - beyond)
    highs = [process.footprint_high_bytes for process in holders]
    unknown = next((figure for figure in highs if isinstance(figure, Absent)), None)
    high = unknown or max(low, owner.rss_bytes + sum(map(_beyond_rss, holders, highs)) - beyond)
    return OwnerTotal(
        owner.name,
        owner.processes,
        owner.rss_bytes,
        footprint_bytes=low if low == high else unknown or Absent.NOT_SUPPORTED,
        footprint_low_bytes=low,
        footprint_high_bytes=high,
        device_bytes={
            place: figure if isinstance(figure, Absent) else min(figure, caps.get(place, figure))
            for place, figure in held.items()
        },
        cgroup_bytes=owner.cgroup_bytes,
        cgroup_note=_build_note(holders, held, is_charged)
        if isinstance(owner.cgroup_bytes, int) and held
        else None,
        cgroup_device_bytes=by_kernel,
    )


def _build_ghost_total(ghosts: Sequence[Process]) -> OwnerTotal:
    lows = [process.footprint_low_bytes for process in ghosts]
    return OwnerTotal(
        Absent.NOT_AVAILABLE,
        len(ghosts),
        Absent.NOT_AVAILABLE,
        footprint_bytes=Absent.NOT_AVAILABLE,
        footprint_low_bytes=sum(low for low in lows if isinstance(low, int)),
        footprint_high_bytes=Absent.NOT_AVAILABLE,
        device_bytes=_device_bytes(ghosts),
        visible=False,
    )


def _beyond_rss(process: Process, footprint: Bytes) -> int:
    if isinstance(footprint, Absent) or isinstance(process.rss_bytes, Absent):
        return 0
    return max(0, footprint - process.rss_bytes)


def _device_bytes(holders: Sequence[Process]) -> Mapping[str, Bytes]:
    """Sum by pool or share. If the part of one process is unknown, so is the sum."""
    sums: Counter[str] = Counter()
    unknown: dict[str, Absent] = {}
    for process in holders:
        for place, figure in process.device_bytes.items():
            if isinstance(figure, Absent):
                unknown[place] = figure
            else:
                sums[place] += figure
    return {**sums, **unknown}


def _build_note(holders: Sequence[Process], places: Iterable[str], is_charged: bool) -> str:
    """Drivers do not charge their allocations to cgroups; a cgroup counts only what is also in the resident set.

    A kernel with a `gpu` line in memory.stat charges them: then `cgroup_bytes` contains them.
    """
    perhaps = PERHAPS_BEYOND if all(process.footprint_range for process in holders) else BEYOND
    return (CHARGED if is_charged else perhaps).format(name_accelerators(places))


# Search of processes by any of their names.


class FoundProcesses(Struct, frozen=True):
    """The largest processes that were found, and the number of all."""

    processes: tuple[Process, ...]
    count: int


class ProcessSearch(Protocol):
    """Search of the processes that a snapshot does not list: smaller ones, without memory of a device."""

    def find(self, words: str, names: Mapping[str, str], max_count: int) -> FoundProcesses:
        """Return the processes whose text contains `words`, in lower case. `names`: those of containers by id."""

    def by_pid(self, pid: int) -> Process | None:
        """Return one of them, None if it is not among them."""


def search_text(pid: int, texts: tuple[Words | None, ...], names: Mapping[str, str]) -> str:
    """Return the text in which a search looks: the number, the known texts, and names of containers."""
    known = [text for text in texts if isinstance(text, str)]
    return " ".join([str(pid), *known, *(names[text] for text in known if text in names)]).lower()


def searched_texts(process: Process) -> tuple[Words | None, ...]:
    """Return the texts of a process that a search compares. The command line is one where it is shown."""
    owners = (process.user, process.unit, process.container, process.pod, process.job)
    return (process.title, process.name, *owners, process.command)
