"""Memory of this machine and process as one dictionary, and as log lines at a program's start.

Shares are nested in the pools that contain them. The lines have visible GPUs, limits, and settings to change too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from memwatch.core.listing import first_of
from memwatch.core.model import Absent, Bytes, Device, Pool, Share
from memwatch.core.printable import printable
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.units import size
from memwatch.core.wire import Json, Shape, known
from memwatch.library.advice import advice_for, with_visible_gpus
from memwatch.library.daemon_client import daemon
from memwatch.library.device_selection import hidden_devices
from memwatch.library.frameworks import pools, read_stats
from memwatch.library.guard import limit_bytes
from memwatch.library.host import own_limit, rss_bytes
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine
from memwatch.library.memory_pool import MemoryPool, PoolStats, describe_bytes
from memwatch.library.program_safety import never_raise
from memwatch.library.reporter import reporter
from memwatch.library.stage_log import write_line
from memwatch.library.visible_gpus import CUDA, HIP, MPS, XPU, DeviceError, find_visible_gpus


@never_raise(Absent.NOT_AVAILABLE)
def total_bytes(_: PoolStats, pool: MemoryPool) -> Bytes:
    return pool.total()


@never_raise(Absent.NOT_AVAILABLE)
def free_bytes(_: PoolStats, pool: MemoryPool) -> Bytes:
    return pool.free()


STATS = Shape(PoolStats, further=(PoolStats.hit_rate, total_bytes, free_bytes))


def memory_tree() -> Json:
    """Return pools with the shares inside them, GPUs, and this process, as one dictionary for JSON. Never raises.

    Names are those of `/api/v1/snapshot`. An absent value is None, with its reason in the `absent` beside it. Pools
    add up; `shares` are parts of what contains them. `process` has the resident set, the container's limit, and the
    allocators. Takes milliseconds, and the first call up to two seconds as `machine`: not for a training step.
    """
    return _read_tree() or {}


@never_raise(None)
def _read_tree() -> Json:
    return build_tree(machine())


def build_tree(here: Machine) -> Json:
    inside: dict[str, list[Share]] = {}
    for share in here.shares:
        inside.setdefault(share.within, []).append(share)
    tree = {
        "schema": 1,
        **known(host=here.host, name=here.name),
        "architecture": here.architecture,
        "explanation": here.explanation,
        "from_daemon": here.from_daemon,
        "pools": [_pool_json(pool, inside) for pool in here.pools],
        "devices": _devices_json(here, inside),
        "process": process_json(),
    }
    rest = {share.id: share for among in inside.values() for share in among}
    if rest:  # inside something that was not reported
        tree["shares"] = RECORDS.encode_all(rest.values())
    found: Json = json.loads(json.dumps(tree))  # only plain types, also of keys
    return found


def _pool_json(pool: Pool, inside: dict[str, list[Share]]) -> Json:
    return {**RECORDS.encode(pool), "shares": _nest(pool.id, inside)}


def _nest(place: str, inside: dict[str, list[Share]]) -> list[Json]:
    """Return the shares inside a place. Each is taken once, so that a circle ends."""
    return [{**RECORDS.encode(share), "shares": _nest(share.id, inside)} for share in inside.pop(place, ())]


def _devices_json(here: Machine, inside: dict[str, list[Share]]) -> list[Json]:
    hidden, names = hidden_devices(here.devices, here.program), name_gpus(here)
    return [
        {
            **RECORDS.encode(device),
            "names": names.get(device.id, []),
            "hidden_by": hidden.get(device.id),
            "shares": _nest(device.id, inside),
        }
        for device in here.devices
    ]


def name_gpus(here: Machine) -> dict[str, list[str]]:
    """Return the names by which frameworks in this program mean each GPU, such as `cuda:0`."""
    names: dict[str, list[str]] = {}
    for kind in (CUDA, HIP, XPU, MPS):
        try:
            targets = find_visible_gpus(kind, here.devices, here.program).targets
        except DeviceError:
            continue  # the order is not known
        for number, target in enumerate(targets):
            called = "cuda" if kind == HIP else kind  # PyTorch's name
            names.setdefault(target.device.id, []).append(kind if kind == MPS else f"{called}:{number}")
    return names


def process_json() -> Json:
    """Return this process: resident set, the limits that apply to it, and its allocators."""
    limit = own_limit()
    return {
        "pid": os.getpid(),
        **known(rss_bytes=rss_bytes()),
        "limit": None if limit is None else limit._asdict(),
        "guard_limit_bytes": limit_bytes(),
        "allocators": list(allocators_json(pools())),
    }


def allocators_json(found: Iterable[MemoryPool]) -> Iterable[Json]:
    for pool in found:
        yield {
            "name": printable(pool.backend_name[:80]),
            "device": printable(pool.device[:80]),
            **RECORDS.encode(read_stats(pool), pool, STATS),
        }


# Log lines at a start.

MAX_LINES = 40


@never_raise("")
def log_start(name: str = "") -> str:
    """Log and return this program's machine in a few lines, and send a mark to the daemon. Never raises.

    The lines have the pools and what is inside them, the GPUs under the names that this program uses, their
    headroom, the limits that apply, and recommended settings that are not set. `name`: the program's, else that of
    its file. Takes up to two seconds, as `machine`: call it once, before the work.
    """
    title = name or Path(sys.argv[0]).name or "program"
    lines = first_of(list(build_lines(title, machine(), os.environ)), MAX_LINES, "lines")
    for line in lines:
        write_line(line)
    reporter.mark(f"[start] {title}")
    return "\n".join(lines)


def build_lines(title: str, here: Machine, environ: Mapping[str, str]) -> Iterator[str]:
    model = f" ({here.name})" if isinstance(here.name, str) else ""
    yield f"[start] {title} on {here.host}{model}, {_source(here)}"
    for pool in here.pools:
        yield f"  {pool.label} {size(pool.size_bytes)}: {describe_bytes(pool.available_bytes)} available"
        yield from _list_shares(pool.id, here, "    ")
    yield from _list_gpus(here)
    yield from _list_limits()
    yield from _list_settings(here, environ)


def _source(here: Machine) -> str:
    return f"from memwatchd at {daemon.url}" if here.from_daemon else "read directly"


def _list_shares(place: str, here: Machine, indent: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for share in here.shares:
        if share.within == place and share.id not in seen:
            yield f"{indent}of which {share.label}: {describe_bytes(share.used_bytes)}{_limit_of(share)}"
            yield from _list_shares(share.id, here, indent + "  ", seen | {share.id})


def _limit_of(share: Share) -> str:
    return f", limit {size(share.limit_bytes)}" if isinstance(share.limit_bytes, int) else ""


def _list_gpus(here: Machine) -> Iterator[str]:
    hidden, names = hidden_devices(here.devices, here.program), name_gpus(here)
    for device in here.devices:
        if device.id not in hidden:
            called = "/".join(names.get(device.id, ())) or device.id
            yield f"  {called} = {device.name}: {_headroom_of(device)}{_place_of(device, here)}"
            yield from _list_shares(device.id, here, "    ")  # limits of a memory partition
    if hidden:
        yield f"  {len(hidden)} of {len(here.devices)} GPUs are hidden by {next(iter(hidden.values()))}"
    if here.unread:
        yield f"  GPUs are not all known: {here.why_unread}"
    elif not here.devices:
        yield "  no GPU"


def _headroom_of(device: Device) -> str:
    now, most = describe_bytes(device.headroom_bytes), describe_bytes(device.headroom_after_reclaim_bytes)
    return f"{now} headroom" if now == most else f"{now} headroom, {most} after reclaim of page cache"


def _place_of(device: Device, here: Machine) -> str:
    labels = {pool.id: pool.label for pool in here.pools} | {share.id: share.label for share in here.shares}
    found = [labels[place] for place in device.allocates_from if place in labels]
    return f" ({device.architecture.value}, allocates from {', '.join(found)})" if found else ""


def _list_limits() -> Iterator[str]:
    limit, own = own_limit(), limit_bytes()
    if limit is not None:
        yield f"  {limit.name} {size(limit.size_bytes)}: {size(limit.left_bytes)} left"
    if own is not None:
        yield f"  guard limit {size(own)}"


def _list_settings(here: Machine, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield settings to make, and variables that are set and should not be."""
    advice = [one for one in advice_for(with_visible_gpus(here)) if one.certainty in ("recommended", "avoid")]
    new = [one for one in advice if one.environment and one.certainty == "recommended" and one.name not in environ]
    if new:
        yield f"  recommended, not set: {' '.join(f'{one.name}={one.value}' for one in new)}"
    others = [f"{one.name}={one.value}" for one in advice if not one.environment]
    if others:
        yield f"  recommended: {' '.join(others)} (memwatch.advise() has the reasons)"
    for one in advice:
        if one.certainty == "avoid" and one.name in environ:
            yield f"  {one.name} is set: {one.reason}"
