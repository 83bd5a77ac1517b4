"""Autopsy of an out-of-memory error: the allocators, other holders, and the size that would have fitted."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct

from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Bytes
from memwatch.core.printable import decode, printable
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.units import size
from memwatch.library.daemon_client import daemon, read_roots
from memwatch.library.frameworks import pools, read_free, read_stats
from memwatch.library.host import PAGE_BYTES, host, own_limit, rss_bytes
from memwatch.library.machine_record import decode_machine
from memwatch.library.memory_pool import CachingPool, MemoryPool, is_framework
from memwatch.library.program_safety import log, never_raise
from memwatch.library.reporter import reporter
from memwatch.planning.arguments import check_folder, refuse
from memwatch.training.oom_errors import find_gpu, find_wanted_bytes, is_out_of_memory

MAX_HOLDERS = 5
# Reading this many takes half a second. With more, the largest are not known.
MAX_READ = 20_000


class Holder(Struct, frozen=True):
    """Another process. `held_bytes`: device memory, or the resident set for System RAM."""

    pid: int
    name: str
    held_bytes: int


@never_raise(Absent.NOT_AVAILABLE)
def find_holders(device: str | None) -> tuple[Holder, ...] | Absent:
    """Return the largest other holders of a GPU's memory, which only the daemon knows, or of System RAM."""
    snapshot = daemon.get("/api/v1/snapshot")
    if snapshot is None:
        return list_resident() if device is None else Absent.NOT_AVAILABLE
    rows = [(one, held_by(one, None)) for one in snapshot["processes"]]
    if device is not None:
        found = decode_machine(snapshot).device(device)
        if found is None:
            return Absent.NOT_AVAILABLE
        within = {share["id"] for share in snapshot["shares"] if share["device"] == found.id}
        places = [set(found.allocates_from), within]
        rows = [(one, held_by(one, places)) for one in snapshot["processes"]]
    holders = [Holder(one["pid"], printable(str(one["name"] or "")), held) for one, held in rows if held]
    return largest(holders)


def held_by(process: Any, places: list[set[str]] | None) -> int:  # noqa: ANN401  JSON
    """Return the resident set, or the bytes in the first of the sets of places that has any."""
    if places is None:
        return process["rss_bytes"] if isinstance(process["rss_bytes"], int) else 0
    for names in places:
        found = [held for name, held in process["device_bytes"].items() if name in names and isinstance(held, int)]
        if found:
            return sum(found)
    return 0


def list_resident() -> tuple[Holder, ...] | Absent:
    folder = read_roots(os.environ)[0]
    pids = [int(name) for name in os.listdir(folder) if name.isdecimal()]
    if len(pids) > MAX_READ:
        return Absent.NOT_AVAILABLE
    return largest([one for one in (read_resident(folder, pid) for pid in pids) if one is not None])


def read_resident(folder: Path, pid: int) -> Holder | None:
    try:
        held = int((folder / str(pid) / "statm").read_bytes().split()[1]) * PAGE_BYTES
        name = decode((folder / str(pid) / "comm").read_bytes().rstrip(b"\n"))
    except (OSError, IndexError, ValueError):
        return None
    return Holder(pid, name, held)


def largest(holders: list[Holder]) -> tuple[Holder, ...]:
    others = [one for one in holders if one.pid != os.getpid() and one.held_bytes]
    return tuple(sorted(others, key=lambda one: -one.held_bytes)[:MAX_HOLDERS])


MAX_ERROR_LENGTH = 500


class PoolAutopsy(Struct, frozen=True):
    """An allocator at the time of the error.

    `unused_bytes`: reserved, not allocated; `split_bytes` of it is in blocks that are partly in use, and cannot be
    released. `would_fit_bytes`: the most that could have been allocated, in one piece if memory is not fragmented.
    """

    name: str
    device: str
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    unused_bytes: Bytes
    split_bytes: Bytes
    free_bytes: Bytes
    would_fit_bytes: Bytes


class Autopsy(Struct, frozen=True):
    """Result of `autopsy`. `holders`: the largest other processes. `device`: the GPU, or None for System RAM."""

    error: str
    unix: float
    pid: int
    device: str | None
    wanted_bytes: Bytes
    would_fit_bytes: Bytes
    rss_bytes: Bytes
    ram_available_bytes: Bytes
    limit_left_bytes: Bytes
    pools: tuple[PoolAutopsy, ...]
    holders: tuple[Holder, ...] | Absent
    file: str | None = None
    snapshot_file: str | None = None

    def __str__(self) -> str:
        return "; ".join(list_parts(self))


@never_raise(None)
def find_folder(folder: object) -> Path | None:
    return check_folder(folder)


@never_raise(None)
def autopsy(error: BaseException | str, folder: str | Path | None = None) -> Autopsy | None:
    """Collect the memory around an out-of-memory error, log it, and send it to the daemon as a mark. Never raises.

    Call it before memory is freed. With a `folder` it is saved there as JSON, with PyTorch's snapshot of its
    allocator (`memwatch autopsy FILE` reads it). Takes some 20 ms, up to two seconds if the daemon is slow.
    What is neither an exception nor its text is one line in the log, as is a folder that cannot be one.
    """
    if not isinstance(error, BaseException | str):
        raise refuse(error, "error", "an exception or its text", "the error of an except block")
    place = find_folder(folder)
    text = printable(str(error)[:MAX_ERROR_LENGTH]) or type(error).__name__
    found = [pool for pool in pools() if is_of_gpu(pool, find_gpu(text))]
    short = pick(found, text, error)
    ram, limit = host.available_bytes(), own_limit()
    result = Autopsy(
        error=text,
        unix=time.time(),
        pid=os.getpid(),
        device=None if short is None else short.device,
        wanted_bytes=find_wanted_bytes(text),
        would_fit_bytes=smaller(ram, None if limit is None else limit.left_bytes) if short is None else fits(short),
        rss_bytes=rss_bytes(),
        ram_available_bytes=ram,
        limit_left_bytes=Absent.NOT_SUPPORTED if limit is None else limit.left_bytes,
        pools=tuple(map(examine, found)),
        holders=find_holders(None if short is None else short.device),
        **({} if place is None else name_files(place)),
    )
    if place is not None:
        save(result)
    log.warning("%s", result)
    reporter.mark(str(result))
    return result


class OomExaminer(ContextDecorator):
    """Result of `autopsy_on_oom`."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and is_out_of_memory(error):
            autopsy(error, self._folder)


def autopsy_on_oom(folder: str | Path | None = None) -> OomExaminer:
    """Call `autopsy` on an out-of-memory error of the block, and raise the error. Also a decorator.

    Raises InvalidInputError for a folder that cannot be one, also if the decorator is written without `()`.
    """
    return OomExaminer(check_folder(folder))


def is_of_gpu(pool: MemoryPool, number: int | None) -> bool:
    return number is None or pool.device.rpartition(":")[2] in (str(number), pool.device)


def pick(found: list[MemoryPool], text: str, error: BaseException | str) -> MemoryPool | None:
    """Return the pool that the error is about: the one in the message, else the only one. None for System RAM."""
    of_python = isinstance(error, MemoryError) and "OutOfMemory" not in type(error).__name__  # not CuPy's
    if of_python or "CPUAllocator" in text or not found:
        return None
    named = [pool for pool in found if is_framework(type(error).__module__, pool.backend_name)]
    return max(named or found, key=lambda pool: known(read_stats(pool).allocated_bytes))


def known(figure: Bytes) -> int:
    return figure if isinstance(figure, int) else 0


def examine(pool: MemoryPool) -> PoolAutopsy:
    stats = read_stats(pool)
    return PoolAutopsy(
        name=printable(pool.backend_name[:80]),
        device=printable(pool.device[:80]),
        allocated_bytes=stats.allocated_bytes,
        reserved_bytes=stats.reserved_bytes,
        unused_bytes=minus(stats.reserved_bytes, stats.allocated_bytes),
        split_bytes=stats.inactive_split_bytes,
        free_bytes=read_free(pool),
        would_fit_bytes=fits(pool),
    )


@never_raise(Absent.NOT_AVAILABLE)
def fits(pool: MemoryPool) -> Bytes:
    return pool.fits() if isinstance(pool, CachingPool) else pool.free()


def minus(one: Bytes, other: Bytes) -> Bytes:
    if isinstance(one, Absent) or isinstance(other, Absent):
        return Absent.NOT_AVAILABLE
    return max(0, one - other)


def smaller(one: Bytes, other: int | None) -> Bytes:
    return one if isinstance(one, Absent) or other is None else min(one, other)


def list_parts(found: Autopsy) -> Iterator[str]:
    """Yield the sentence's parts, the most telling first: a mark has room for 300 characters."""
    wanted = "" if isinstance(found.wanted_bytes, Absent) else f" for {size(found.wanted_bytes)}"
    yield f"out of memory{wanted} on {found.device or 'System RAM'}"
    if isinstance(found.would_fit_bytes, int):
        yield f"would have fitted: {size(found.would_fit_bytes)}"
    for pool in found.pools:
        if isinstance(pool.allocated_bytes, int) and isinstance(pool.unused_bytes, int):
            held = f"{size(pool.allocated_bytes)} allocated, {size(pool.unused_bytes)} reserved and unused"
            yield f"{pool.name} {pool.device}: {held}"
    if found.device is None and isinstance(found.rss_bytes, int):
        yield f"resident: {size(found.rss_bytes)}"
    if isinstance(found.holders, Absent):
        yield "other processes: not known without a daemon"
    elif found.holders:
        yield "others: " + some_of([f"{one.name} {one.pid} {size(one.held_bytes)}" for one in found.holders], 3)
    else:
        yield "no other process"
    if found.file is not None:
        yield f"saved to {found.file}"


def name_files(folder: Path) -> dict[str, Any]:
    """Return the names of the files, and write PyTorch's snapshot. A failure to write is logged."""
    base = folder / f"autopsy-{os.getpid()}-{time.time_ns() // 1_000_000}"
    snapshot = dump_snapshot(base.with_suffix(".pickle"))
    return {"file": str(base.with_suffix(".json")), "snapshot_file": None if snapshot is None else str(snapshot)}


@never_raise(None)
def dump_snapshot(target: Path) -> Path | None:
    """Have PyTorch write its snapshot, if it has one and a GPU is in use."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    dump = getattr(getattr(cuda, "memory", None), "_dump_snapshot", None)
    if cuda is None or dump is None or not cuda.is_initialized():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    dump(str(target))
    return target


@never_raise(None)
def save(found: Autopsy) -> None:
    assert found.file is not None  # noqa: S101  name_files has set it
    target = Path(found.file)
    target.parent.mkdir(parents=True, exist_ok=True)
    written = {"schema": 1, **RECORDS.encode(found)}
    target.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
