"""One call at a program's start that logs its machine: pools, visible GPUs, limits, and settings to change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from memwatch.core.listing import first_of
from memwatch.core.model import Absent, Bytes, Device, Share
from memwatch.core.units import size
from memwatch.library.advice import advice_for, with_visible_gpus
from memwatch.library.daemon_client import daemon
from memwatch.library.device_selection import hidden_devices
from memwatch.library.guard import limit_bytes
from memwatch.library.host import own_limit
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine
from memwatch.library.memory_tree import name_gpus
from memwatch.library.program_safety import never_raise
from memwatch.library.reporter import reporter
from memwatch.library.stage_log import write_line

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
        yield f"  {pool.label} {size(pool.size_bytes)}: {_size(pool.available_bytes)} available"
        yield from _list_shares(pool.id, here, "    ")
    yield from _list_gpus(here)
    yield from _list_limits()
    yield from _list_settings(here, environ)


def _source(here: Machine) -> str:
    return f"from memwatchd at {daemon.url}" if here.from_daemon else "read directly"


def _list_shares(place: str, here: Machine, indent: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for share in here.shares:
        if share.within == place and share.id not in seen:
            yield f"{indent}of which {share.label}: {_size(share.used_bytes)}{_limit_of(share)}"
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
    now, most = _size(device.headroom_bytes), _size(device.headroom_after_reclaim_bytes)
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


def _size(figure: Bytes) -> str:
    return f"— {figure.value.replace('_', ' ')}" if isinstance(figure, Absent) else size(figure)
