"""Everybody's findings as one picture: what only several sources together can say is said here. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

from msgspec.structs import replace

from memwatch.accounting import amd, apple, drm, npu, tegra
from memwatch.accounting.driver_errors import with_logged
from memwatch.accounting.lxcfs import with_both_scopes
from memwatch.accounting.relations import with_holdings
from memwatch.attribution import with_zram
from memwatch.collector import Findings
from memwatch.holding import Holding
from memwatch.model import Share
from memwatch.snapshot import Node, merge_nodes

# What a collector may find, and what stands where it has found nothing: the same objects every time.
NAMES = Findings.__struct_fields__
EMPTY = tuple(getattr(Findings(), name) for name in NAMES)
LISTS = tuple(name for name, empty in zip(NAMES, EMPTY, strict=True) if empty == ())
figures_of = attrgetter(*NAMES)

# What one collector found, by the names of the fields.
Said = list[tuple[str, Any]]
# One node for each id.
MergeNodes = Callable[[list[Node]], tuple[Node, ...]]

# Each maker's PCI vendor id, and who accounts for its GPUs: given all findings and the first free number.
# NVIDIA's are `tegra`'s, which leaves what is no Tegra to `nvidia`.
MAKERS: tuple[tuple[str, Callable[[Findings, int], Sequence[Holding]]], ...] = (
    ("10de", tegra.holdings_of),
    ("1002", amd.holdings_of),
    ("8086", drm.holdings_of),
    ("106b", apple.holdings_of),
)


class Composer:
    """Adds findings up, time after time. What a collector says again is not looked through again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Findings, Said]] = {}
        self._nodes: tuple[list[Node], tuple[Node, ...]] = [], ()

    def composed(self, findings: Sequence[Findings]) -> Findings:
        """The findings of all collectors, added up and then put into relation."""
        everybody = []
        for number, found in enumerate(findings):
            known = self._known.get(number)
            if known is None or known[0] is not found:
                known = self._known[number] = found, said_by(found)
            if known[1]:
                everybody.append(known[1])
        return composed(everybody, self._merged_nodes)

    def _merged_nodes(self, nodes: list[Node]) -> tuple[Node, ...]:
        """They are read every five seconds and more rarely, and take a third of the time of adding up."""
        before, merged = self._nodes
        if len(nodes) != len(before) or not all(map(is_, nodes, before)):
            merged = merge_nodes(nodes)
            self._nodes = nodes, merged
        return merged


def said_by(found: Findings) -> Said:
    """What a collector found, without what it has nothing to do with."""
    return [
        (name, value)
        for name, value, empty in zip(NAMES, figures_of(found), EMPTY, strict=True)
        if value is not empty
    ]


def composed(everybody: Iterable[Said], merged_nodes: MergeNodes) -> Findings:
    whole = with_both_scopes(merged(everybody, merged_nodes))
    whole = with_holdings(whole, holdings_of(whole), npu.found_in(whole))
    devices = with_logged(whole.devices, whole.kernel_log) if whole.kernel_log else whole.devices
    shares = without_lost(whole.shares, {pool.id for pool in whole.pools})
    if (devices, shares) == (whole.devices, whole.shares):
        return whole
    return replace(whole, devices=devices, shares=shares)


def merged(everybody: Iterable[Said], merged_nodes: MergeNodes) -> Findings:
    """Everything that was found, side by side: lists one behind the other, of single things the first."""
    said: dict[str, list[Any]] = {}
    for one in everybody:
        for name, value in one:
            said.setdefault(name, []).append(value)
    whole: dict[str, Any] = {name: values[0] for name, values in said.items() if name not in LISTS}
    whole |= {name: tuple(one for part in said[name] for one in part) for name in LISTS if name in said}
    whole["pools"] = tuple(with_zram(pool, whole.get("zram")) for pool in whole.get("pools", ()))
    whole["nodes"] = merged_nodes(list(whole.get("nodes", ())))
    whole["machine"] = tegra.machine_of(whole.get("machine"), whole.get("tegra"))
    whole["stale"] = frozenset().union(*said.get("stale", ()))
    whole.pop("rejected", None)  # is one collector's own business
    return Findings(**whole)


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
