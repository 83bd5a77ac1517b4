"""Everybody's findings as one picture: what only several collectors together can say is said here. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_not
from typing import Any

from msgspec.structs import replace

from memwatch.accounting import amd, apple, drm, npu, nvidia, tegra
from memwatch.accounting.device_memory import Holding
from memwatch.accounting.driver_errors import with_logged
from memwatch.accounting.lxcfs import with_both_scopes
from memwatch.accounting.relations import with_holdings
from memwatch.accounting.zram import with_zram
from memwatch.findings import Findings
from memwatch.model import Share
from memwatch.snapshot import Node, merge_nodes

# What a collector may find, and what stands where it has found nothing: the same objects every time.
NAMES = Findings.__struct_fields__
EMPTY = tuple(getattr(Findings(), name) for name in NAMES)
LISTS = tuple(name for name, empty in zip(NAMES, EMPTY, strict=True) if empty == ())
figures_of = attrgetter(*NAMES)

# Each maker's PCI vendor id, and who accounts for its GPUs: given all findings and the first free number.
MAKERS: tuple[tuple[str, Callable[[Findings, int], Sequence[Holding]]], ...] = (
    ("10de", nvidia.holdings_of),
    ("1002", amd.holdings_of),
    ("8086", drm.holdings_of),
    ("106b", apple.holdings_of),
)


class Composer:
    """Adds findings up, time after time. A field of which nobody says anything new is not added up again."""

    def __init__(self) -> None:
        self._findings: tuple[Findings, ...] = ()
        self._said: list[Mapping[str, Any]] = []
        self._sums: dict[str, Any] = {}
        self._nodes: tuple[tuple[Node, ...], tuple[Node, ...]] = (), ()

    def composed(self, findings: Sequence[Findings]) -> Findings:
        """The findings of all collectors, added up and then put into relation."""
        names = self._new_names(tuple(findings))
        try:
            for name in names:
                self._add_up(name, [said[name] for said in self._said if name in said])
        except BaseException:
            self._findings = ()  # what could not be added up is new the next time as well
            raise
        sums = dict(self._sums)
        sums["pools"] = tuple([with_zram(pool, sums.get("zram")) for pool in sums.get("pools", ())])
        sums["nodes"] = self._merged_nodes(sums.get("nodes", ()))
        sums["machine"] = tegra.machine_of(sums.get("machine"), sums.get("tegra"))
        return related(Findings(**sums))

    def _new_names(self, findings: tuple[Findings, ...]) -> set[str]:
        """The fields of which a collector says something else than the time before."""
        if len(findings) != len(self._findings):
            self._findings, self._said, self._sums = (Findings(),) * len(findings), [{}] * len(findings), {}
        names: set[str] = set()
        for number in compress(range(len(findings)), map(is_not, findings, self._findings)):
            before, now = self._said[number], said_by(findings[number])
            names.update(before, now)
            self._said[number] = now
        self._findings = findings
        return names

    def _add_up(self, name: str, values: Sequence[Any]) -> None:
        """Everything that was found, side by side: lists one behind the other, of single things the first."""
        self._sums.pop(name, None)
        if not values or name == "rejected":  # which is one collector's own business
            return
        if name == "stale":
            self._sums[name] = frozenset(chain.from_iterable(values))
        else:
            self._sums[name] = tuple(chain.from_iterable(values)) if name in LISTS else values[0]

    def _merged_nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """They are read every five seconds and more rarely, and take a third of the time of adding up."""
        before, merged = self._nodes
        if nodes is not before:
            merged = merge_nodes(nodes)
            self._nodes = nodes, merged
        return merged


def said_by(found: Findings) -> Mapping[str, Any]:
    """What a collector found, without what it has nothing to do with."""
    values = figures_of(found)
    return dict(compress(zip(NAMES, values, strict=True), map(is_not, values, EMPTY)))


def related(whole: Findings) -> Findings:
    """What one collector says, in the light of what others say."""
    whole = with_both_scopes(whole)
    whole = with_holdings(whole, holdings_of(whole), npu.found_in(whole))
    devices = with_logged(whole.devices, whole.kernel_log) if whole.kernel_log else whole.devices
    shares = without_lost(whole.shares, {pool.id for pool in whole.pools})
    if (devices, shares) == (whole.devices, whole.shares):
        return whole
    return replace(whole, devices=devices, shares=shares)


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
