"""Record of a machine, decoded from a daemon's snapshot or converted from a direct reading."""

from __future__ import annotations

import os
import sys
import time

from msgspec import Struct

from memwatch.core.leases import without_lease
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent, Bytes, Device, Pool, Share, find_system_ram
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import Json, read_roots
from memwatch.library.decode import decode_devices, decode_leases, decode_pools, decode_shares
from memwatch.library.device_names import DeviceError
from memwatch.library.device_selection import find_target
from memwatch.library.fork_guard import importing
from memwatch.library.usable_cpus import count_usable_cpus, is_this_machine, read_boot_id
from memwatch.library.visible_gpus import Program, Target

ROOTS = Roots(*read_roots(os.environ))


class Machine(Struct, frozen=True):
    """This machine. Pools add up; shares are parts of pools and must not be added. `from_daemon`: the source.

    `cpus`: those that this process may use. Absent if the daemon runs on another machine, or simulates one.
    """

    host: str
    name: str | Absent
    architecture: str
    explanation: str
    pools: tuple[Pool, ...]
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    from_daemon: bool
    monotonic: float
    cpus: int | Absent = Absent.NOT_AVAILABLE

    @property
    def ram(self) -> Pool | None:
        return find_system_ram(self.pools)

    def device(self, wanted: object) -> Device | None:
        """Return the GPU that `find` returns, None for the CPU or if there is no such GPU."""
        try:
            target = self.find(wanted)
        except DeviceError:
            return None
        return None if target is None else target.device

    def find(self, wanted: object) -> Target | None:
        """Return the GPU or MIG instance that this program means by a name, None for the CPU. Raises DeviceError.

        By id (gpu0), UUID or PCI address it is any GPU of the machine. By a framework's name (cuda:0, xpu:0, mps,
        torch.device("cuda", 0)) or by number it is the framework's: a running PyTorch is asked, else the
        environment decides (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, NVIDIA_VISIBLE_DEVICES in a container,
        ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ZE_AFFINITY_MASK). A number without a name counts the GPUs of the
        first of CUDA, ROCm, XPU and Metal that has any.
        """
        return find_target(wanted, self.devices, self.program)

    @property
    def program(self) -> Program:
        """This process, as it decides which GPUs are visible."""
        return Program(os.environ, sys.modules, ROOTS, self.from_daemon)


class MemoryInfo(Struct, frozen=True):
    """Memory of one pool, and the headroom of a device that allocates from it.

    Inside a GPU memory partition the size of the card is not known: `pool` and `total_bytes` are the limit's. On a
    unified machine the GPU's pool is System RAM, so the two must not be added. `headroom_certain_bytes` is the part
    of the headroom that is free before the kernel reclaims page cache.
    """

    pool: str
    label: str
    total_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes
    headroom_bytes: Bytes
    unified: bool
    headroom_certain_bytes: Bytes = Absent.NOT_AVAILABLE


def decode_machine(found: Json) -> Machine:
    """Decode a snapshot of the daemon. Raises ResponseDecodeError, TypeError or KeyError."""
    of_machine = found["machine"]
    return Machine(
        host=printable(str(found["host"])),
        name=Absent.NOT_AVAILABLE if of_machine["name"] is None else printable(str(of_machine["name"])),
        architecture=printable(str(of_machine["architecture"])),
        explanation=printable(str(of_machine["explanation"])),
        pools=decode_pools(found["pools"]),
        shares=decode_shares(found["shares"]),
        devices=decode_devices(found["devices"]),
        from_daemon=True,
        monotonic=time.monotonic(),
        cpus=_own_cpus(found.get("boot_id")),
    )


def decode_leased_machine(found: Json, own_lease: str) -> Machine:
    """Decode a snapshot with the leases of others in use. Raises as `decode_machine`."""
    with importing:
        from memwatch.core.accounting.leased import with_leases_used  # needed only while there are leases

    leases = without_lease(decode_leases(found.get("leases", ())), own_lease)  # older daemons have none
    return with_leases_used(decode_machine(found), leases)


def from_snapshot(found: Snapshot) -> Machine:
    return Machine(
        found.host,
        found.machine.name,
        found.machine.architecture,
        found.machine.explanation,
        found.pools,
        found.shares,
        found.devices,
        False,
        time.monotonic(),
        _own_cpus(read_boot_id(ROOTS.procfs)),  # the folders may be of another machine, as in tests
    )


def _own_cpus(boot_id: object) -> int | Absent:
    return count_usable_cpus() if is_this_machine(boot_id) else Absent.NOT_AVAILABLE
