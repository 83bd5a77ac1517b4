"""Short constructors of NVIDIA readings, and their accounting."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.nvml.records import GpuMemory, GpuProcess, GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Bytes, Device, Pool, Process, Share
from memwatch.core.snapshot import Machine, Node
from support.fakes import GIB, ram

KIB, MIB = 1 << 10, 1 << 20
NO = Absent.NOT_SUPPORTED


def memory(total: int, reserved: Bytes, used: int, free: int) -> GpuMemory:
    """Return memory in MiB, as printed by nvidia-smi; the rounding difference goes to free."""
    kept = reserved if isinstance(reserved, Absent) else reserved * MIB
    return GpuMemory(2, total * MIB, used * MIB, free * MIB, kept)


def gpu(name: str, **fields: object) -> GpuReading:
    base = GpuReading(0, "GPU-1", "0000:01:00.0", name, bar1_bytes=256 * MIB, processes=())
    return replace(base, **fields)


def gb10(*processes: GpuProcess, **fields: object) -> GpuReading:
    return gpu("NVIDIA GB10", memory=NO, bar1_bytes=NO, addressing_mode="ats", processes=processes, **fields)


class Accounts(Struct, frozen=True):
    """Parts of a composed snapshot that these tests check."""

    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    machine: Machine


def accounts(
    *gpus: GpuReading,
    host: Pool | None = None,
    nodes: tuple[Node, ...] = (),
    contained: bool = False,
    machine: Machine | None = None,
    pids: tuple[int, ...] = (),
    rejected: frozenset[str] = frozenset(),
) -> Accounts:
    found = Composer().compose(
        [
            Findings(
                pools=(host or ram(16 * GIB),),
                nodes=nodes,
                machine=machine or Machine("test", in_container=contained),
                processes=tuple(Process(pid, 1.0, "python", GIB, GIB, "rss") for pid in pids),
            ),
            Findings(nvml=NvmlReading("580.126.09", "13.0", gpus), stale=rejected),
        ]
    )
    assert found.machine is not None
    return Accounts(found.pools, found.shares, found.devices, found.processes, found.machine)


SPARK = 127600748 * KIB
