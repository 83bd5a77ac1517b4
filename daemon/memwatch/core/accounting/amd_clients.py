"""Memory of processes on an AMD GPU, merged from sources that are each incomplete. No byte is counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from memwatch.core.accounting.shared_buffers import ClientPart, ClientTotals, sum_parts
from memwatch.core.drivers.amd.records import AmdGpu
from memwatch.core.drivers.amd.smi import SmiProcess
from memwatch.core.drivers.drm.records import DrmClient, DrmReading
from memwatch.core.model import Absent, Bytes

REGIONS = frozenset({"vram", "gtt"})


class ClientMemory(NamedTuple):
    """Bytes of VRAM (or of the carve-out), and of System RAM through GTT."""

    vram: int = 0
    gtt: int = 0


class ClientUsage(Struct, frozen=True):
    """`by_pid`: memory of each process, `most_by_pid` upper bounds of it where its clients may share buffers.

    `total`: each byte once, as processes may share clients. `unread`: regions of a process of which a size cannot
    be read.
    """

    by_pid: Mapping[int, ClientMemory]
    total: ClientMemory | Absent
    are_shared: bool
    unread: Mapping[int, frozenset[str]] = field(default_factory=dict)
    most_by_pid: Mapping[int, ClientMemory] = field(default_factory=dict)


def sum_clients(
    gpu: AmdGpu, drm: DrmReading | Absent, compute_is_gtt: bool, listed: Iterable[SmiProcess] = ()
) -> ClientUsage:
    """Sum the DRM clients and the processes of the compute driver (KFD), which are not all DRM clients.

    Both report most of a ROCm process, so the larger figure counts and never the sum. Processes that AMD's tools
    list (`listed`) count only if no other source reports them. Buffers in the region `cpu` are left out: up to
    Linux 6.12 it also lists a process's own pages, which its resident set contains.
    """
    clients = [] if isinstance(drm, Absent) else [client for client in drm.clients if _belongs_to(client, gpu)]
    vram = _sum_region(clients, "vram", gpu.vram.used_bytes)
    gtt = _sum_region(clients, "gtt", gpu.gtt.used_bytes)
    pids = dict.fromkeys(pid for client in clients for pid in client.pids)
    by_pid = {pid: ClientMemory(vram.by_pid.get(pid, 0), gtt.by_pid.get(pid, 0)) for pid in pids}
    total = ClientMemory(vram.total, gtt.total)
    most = {pid: ClientMemory(vram.most_by_pid.get(pid, 0), gtt.most_by_pid.get(pid, 0)) for pid in pids}
    for pid, size in gpu.held.items():
        before = by_pid.get(pid, ClientMemory())
        more = (
            ClientMemory(gtt=max(0, size - before.gtt))
            if compute_is_gtt
            else ClientMemory(vram=max(0, size - before.vram))
        )
        by_pid[pid] = _sum(before, more)
        total = _sum(total, more)
    for process in listed:
        if process.pid not in by_pid:
            by_pid[process.pid] = ClientMemory(process.vram_bytes, process.gtt_bytes)
            total = _sum(total, by_pid[process.pid])
    unread = {
        pid: REGIONS.intersection(client.unread)
        for client in clients
        if not REGIONS.isdisjoint(client.unread)
        for pid in client.pids
    }
    unknown = Absent.INCONSISTENT if unread else total
    return ClientUsage(
        {pid: held for pid, held in sorted(by_pid.items()) if held != ClientMemory() or pid in unread},
        drm if isinstance(drm, Absent) else unknown,
        any(len(client.pids) > 1 and any(client.resident.values()) for client in clients),
        unread,
        {pid: held for pid, held in most.items() if held != ClientMemory()},
    )


def _sum_region(clients: Iterable[DrmClient], region: str, used: Bytes) -> ClientTotals:
    parts = [ClientPart(one.pids, one.resident.get(region, 0), one.shared.get(region, 0)) for one in clients]
    return sum_parts(parts, used)


def _sum(one: ClientMemory, other: ClientMemory) -> ClientMemory:
    return ClientMemory(one.vram + other.vram, one.gtt + other.gtt)


def _belongs_to(client: DrmClient, gpu: AmdGpu) -> bool:
    """Match by PCI address. A partition of an MI300 has none and is matched by the opened device file."""
    if client.driver != "amdgpu":
        return False
    if client.pdev is not None:
        return client.pdev == gpu.card.pci
    return client.node == gpu.card.render_node or client.node in gpu.card.cards or client.node in _partitions(gpu)


def _partitions(gpu: AmdGpu) -> set[str]:
    return {f"renderD{node.render_minor}" for node in gpu.card.nodes if isinstance(node.render_minor, int)}
