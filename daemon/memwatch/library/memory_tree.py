"""Memory of this machine and process as one dictionary, with shares nested in the pools that contain them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from memwatch.core.model import Absent, Bytes, Pool, Share
from memwatch.core.printable import printable
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.wire import Shape, known
from memwatch.library.device_selection import hidden_devices
from memwatch.library.frameworks import pools, read_stats
from memwatch.library.guard import limit_bytes
from memwatch.library.host import own_limit, rss_bytes
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine
from memwatch.library.memory_pool import MemoryPool, PoolStats
from memwatch.library.program_safety import never_raise
from memwatch.library.visible_gpus import CUDA, HIP, MPS, XPU, DeviceError, find_visible_gpus

Json = dict[str, Any]


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
