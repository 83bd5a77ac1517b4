"""Everybody's findings as one picture: what only several sources together can say is said here. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from memwatch.accounting import account, device_bytes_by_pid
from memwatch.attribution import with_zram
from memwatch.collector import Findings, aged_device, aged_pool, aged_share
from memwatch.model import Absent, Bytes, PoolKind, Process, Share
from memwatch.nvml.reading import NvmlReading
from memwatch.snapshot import Machine, merge_nodes

T = TypeVar("T")


def composed(findings: Sequence[Findings]) -> Findings:
    """The findings of all collectors, added up and then put into relation."""
    whole = merged(findings)
    if whole.nvml is not None:
        whole = with_gpus(whole, whole.nvml)
    return replace(whole, shares=without_lost(whole.shares, {pool.id for pool in whole.pools}))


def merged(findings: Sequence[Findings]) -> Findings:
    """Everything that was found, side by side."""
    zram = _first([found.zram for found in findings])
    pools = tuple(with_zram(pool, zram) for found in findings for pool in found.pools)
    shares = tuple(share for found in findings for share in found.shares)
    return Findings(
        pools=pools,
        shares=shares,
        devices=tuple(device for found in findings for device in found.devices),
        processes=tuple(process for found in findings for process in found.processes),
        process_scan=_first([found.process_scan for found in findings]),
        machine=_first([found.machine for found in findings]),
        swap=_first([found.swap for found in findings]),
        zram=zram,
        stalls=_first([found.stalls for found in findings]),
        nodes=merge_nodes([node for found in findings for node in found.nodes]),
        kernel=_first([found.kernel for found in findings]),
        nvml=_first([found.nvml for found in findings]),
        nvml_is_stale=any(found.nvml_is_stale for found in findings),
    )


def _first(found: Sequence[T | None]) -> T | None:
    return next((one for one in found if one is not None), None)


def without_lost(shares: tuple[Share, ...], pool_ids: set[str]) -> tuple[Share, ...]:
    """The shares that lie, by whatever way, within one of these pools; a share is nothing without its pool."""
    places = set(pool_ids)
    while True:
        inside = {share.id for share in shares if share.within in places} - places
        if not inside:
            return tuple(share for share in shares if share.id in places)
        places |= inside


def with_gpus(found: Findings, reading: NvmlReading) -> Findings:
    """The machine with its GPUs. Where their source is silent they stay, without figures."""
    accounts = account(found.pools, found.nodes, found.machine or Machine(), reading)
    whole = replace(
        found,
        pools=accounts.pools,
        shares=found.shares + accounts.shares,
        devices=found.devices + accounts.devices,
        machine=accounts.machine,
    )
    if not found.nvml_is_stale:
        return replace(whole, processes=with_device_bytes(found.processes, device_bytes_by_pid(reading, accounts)))
    known = {pool.id for pool in found.pools}
    return replace(
        whole,
        pools=tuple(
            aged_pool(pool)
            if pool.id not in known
            else replace(pool, unattributed_bytes=Absent.STALE, contents=())
            if pool.kind is PoolKind.SYSTEM_RAM and accounts.machine.architecture == "unified"
            else pool
            for pool in whole.pools
        ),
        shares=found.shares + tuple(aged_share(share) for share in accounts.shares),
        devices=found.devices + tuple(aged_device(device) for device in accounts.devices),
    )


def with_device_bytes(processes: Sequence[Process], held: Mapping[int, Mapping[str, Bytes]]) -> tuple[Process, ...]:
    """Processes with what they hold of GPUs. Memory from cudaMalloc is in no process's resident set."""
    return tuple(
        _with_device_bytes(process, held[process.pid]) if process.pid in held else process for process in processes
    )


def _with_device_bytes(process: Process, held: Mapping[str, Bytes]) -> Process:
    footprint: Bytes = process.rss_bytes
    for figure in held.values():
        if isinstance(footprint, Absent) or isinstance(figure, Absent):
            return replace(process, device_bytes=held)
        footprint += figure
    return replace(process, device_bytes=held, footprint_bytes=footprint, footprint_basis="rss + device")
