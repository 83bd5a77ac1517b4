"""Everybody's findings as one picture: what only several sources together can say is said here. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from memwatch.accounting import amd, apple, drm, tegra
from memwatch.accounting.driver_errors import with_logged
from memwatch.accounting.relations import with_holdings
from memwatch.attribution import with_zram
from memwatch.collector import READINGS, Findings
from memwatch.holding import Holding
from memwatch.model import Share
from memwatch.snapshot import merge_nodes

T = TypeVar("T")

# Each maker's PCI vendor id, and who accounts for its GPUs: given all findings and the first free number.
# NVIDIA's are `tegra`'s, which leaves what is no Tegra to `nvidia`.
MAKERS: tuple[tuple[str, Callable[[Findings, int], list[Holding]]], ...] = (
    ("10de", tegra.holdings_of),
    ("1002", amd.holdings_of),
    ("8086", drm.holdings_of),
    ("106b", apple.holdings_of),
)


def composed(findings: Sequence[Findings]) -> Findings:
    """The findings of all collectors, added up and then put into relation."""
    whole = merged(findings)
    whole = with_holdings(whole, holdings_of(whole))
    devices = with_logged(whole.devices, whole.kernel_log) if whole.kernel_log else whole.devices
    return replace(whole, devices=devices, shares=without_lost(whole.shares, {pool.id for pool in whole.pools}))


def merged(findings: Sequence[Findings]) -> Findings:
    """Everything that was found, side by side."""
    zram = _first([found.zram for found in findings])
    pools = tuple(with_zram(pool, zram) for found in findings for pool in found.pools)
    readings: dict[str, Any] = {name: _first([getattr(found, name) for found in findings]) for name in READINGS}
    return Findings(
        pools=pools,
        shares=tuple(share for found in findings for share in found.shares),
        devices=tuple(device for found in findings for device in found.devices),
        processes=tuple(process for found in findings for process in found.processes),
        process_scan=_first([found.process_scan for found in findings]),
        container_names=_first([found.container_names for found in findings]),
        owners=tuple(owner for found in findings for owner in found.owners),
        machine=tegra.machine_of(_first([found.machine for found in findings]), readings["tegra"]),
        swap=_first([found.swap for found in findings]),
        zram=zram,
        squeezed=_first([found.squeezed for found in findings]),
        stalls=_first([found.stalls for found in findings]),
        nodes=merge_nodes([node for found in findings for node in found.nodes]),
        kernel=_first([found.kernel for found in findings]),
        cgroup_oom_kills_total=_first([found.cgroup_oom_kills_total for found in findings]),
        kernel_log=_first([found.kernel_log for found in findings]),
        pci_gpus=_first([found.pci_gpus for found in findings]),
        stale=frozenset().union(*[found.stale for found in findings]),
        **readings,
    )


def _first(found: Sequence[T | None]) -> T | None:
    return next((one for one in found if one is not None), None)


def holdings_of(found: Findings) -> list[Holding]:
    """What every GPU adds. Numbers count through the makers, and leave room for GPUs whose driver is silent yet."""
    holdings: list[Holding] = []
    first = 0
    for vendor, of_maker in MAKERS:
        own = of_maker(found, first)
        holdings += own
        first += max(len(own), (found.pci_gpus or {}).get(vendor, 0))
    return holdings


def without_lost(shares: tuple[Share, ...], pool_ids: set[str]) -> tuple[Share, ...]:
    """The shares that lie, by whatever way, within one of these pools; a share is nothing without its pool."""
    places = set(pool_ids)
    while True:
        inside = {share.id for share in shares if share.within in places} - places
        if not inside:
            return tuple(share for share in shares if share.id in places)
        places |= inside
