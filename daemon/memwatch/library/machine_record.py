"""Record of a machine, decoded from a daemon's snapshot or converted from a direct reading.

Unknown fields of the JSON are ignored, and texts are made printable.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

from memwatch.core.leases import Lease, without_lease
from memwatch.core.linux.cgroups import parse_cgroup
from memwatch.core.linux.files import Roots, read_boot_id, read_once
from memwatch.core.model import Absent, Bytes, Device, Pool, Share, find_system_ram
from memwatch.core.printable import printable
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import Json, read_roots
from memwatch.library.device_selection import find_target
from memwatch.library.program_safety import importing
from memwatch.library.visible_gpus import DeviceError, Program, Target

if TYPE_CHECKING:
    from memwatch.core.backends.model import Backends

R = TypeVar("R")


class ResponseDecodeError(ValueError):
    """JSON that does not match the format of this version of memwatchd."""


def decode_pools(found: Json) -> tuple[Pool, ...]:
    return _decode(tuple[Pool, ...], found, "Pool")


def decode_shares(found: Json) -> tuple[Share, ...]:
    return _decode(tuple[Share, ...], found, "Share")


def decode_devices(found: Json) -> tuple[Device, ...]:
    with importing:
        from memwatch.core.snapshot_json import with_both_headrooms

    return _decode(tuple[Device, ...], found, "Device", with_both_headrooms)


def decode_leases(found: Json) -> tuple[Lease, ...]:
    return _decode(tuple[Lease, ...], found, "Lease")


def decode_backends(found: Json) -> Backends:
    with importing:
        from memwatch.core.backends.model import Backends

    return _decode(Backends, found, "backends")


def _decode(kind: type[R], found: Any, name: str, prepare: Callable[[Any], Any] | None = None) -> R:  # noqa: ANN401
    with importing:
        from memwatch.core.snapshot_json import RECORDS  # needed only with a daemon

    try:
        return cast(R, RECORDS.decode(kind, prepare(found) if prepare else found))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise ResponseDecodeError(f"the daemon's {name} cannot be decoded: {error}") from None


# CPUs that this process may use: by its affinity and by the quota of its cgroup.

CGROUPS = Path("/sys/fs/cgroup")
PROC_SELF = Path("/proc/self")


def count_usable_cpus(proc_self: Path = PROC_SELF, cgroups: Path = CGROUPS) -> int:
    """Return the number of CPUs, at least 1. A container's or unit's quota counts, rounded up."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([cpus, *_list_quotas(proc_self, cgroups)]))


def _list_quotas(proc_self: Path, cgroups: Path) -> list[int]:
    """Return the quotas of this process's cgroup and those above it, in version 2."""
    path = parse_cgroup(read_once(proc_self / "cgroup") or b"").get("", "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [cgroups.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    texts = [read_once(folder / "cpu.max") or b"" for folder in folders]
    return [quota for text in texts if (quota := parse_cpu_max(text)) is not None]


def parse_cpu_max(text: bytes) -> int | None:
    """Parse "150000 100000" to 2 CPUs. None without a quota ("max 100000") or for other text."""
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() and len(word) < 16 for word in words) or not int(words[1]):
        return None
    return max(1, math.ceil(int(words[0]) / int(words[1])))


def is_this_machine(boot_id: object) -> bool:
    """Return True if a snapshot is of the machine on which this process runs: a boot has its own id."""
    own = read_boot_id(PROC_SELF.parent)
    return bool(own) and own == boot_id


ROOTS = Roots(*read_roots(os.environ))


# The collectors that find GPUs, as in the accounting of their makers.
GPU_COLLECTORS = frozenset({"nvml", "tegra", "amdgpu", "drm", "apple"})
# A collector in one of these states has said which GPUs there are: maybe none.
HAS_ANSWERED = frozenset({"ok", "unavailable"})


class Machine(Struct, frozen=True):
    """This machine. Pools add up; shares are parts of pools and must not be added. `from_daemon`: the source.

    `cpus`: those that this process may use. Absent if the daemon runs on another machine, or simulates one.
    `unread`: collectors of GPUs without an answer, with the reason. `devices` may lack GPUs of theirs.
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
    unread: Mapping[str, str] = {}

    @property
    def why_unread(self) -> str:
        """Why GPUs of this machine may not be known, empty if they are."""
        return ", ".join(f"{name} {why}" for name, why in self.unread.items())

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
        try:
            return find_target(wanted, self.devices, self.program)
        except DeviceError as error:
            if not self.unread:
                raise
            if self.devices:
                raise DeviceError(f"{error}; more may be there: {self.why_unread}") from None
            name = printable(str(wanted))[:80]
            raise DeviceError(
                f'device is "{name}", and it is not known if there is one: {self.why_unread}'
            ) from None

    @property
    def program(self) -> Program:
        """This process, as it decides which GPUs are visible."""
        return Program(os.environ, sys.modules, ROOTS, self.from_daemon)


class MemoryInfo(Struct, frozen=True):
    """Memory of one pool, and the headroom of a device that allocates from it.

    Inside a GPU memory partition the size of the card is not known: `pool` and `total_bytes` are the limit's. On a
    unified machine the GPU's pool is System RAM, so the two must not be added. `headroom_bytes` is what can
    be allocated now, and `headroom_after_reclaim_bytes` what can be once the kernel has reclaimed page cache.
    """

    pool: str
    label: str
    total_bytes: int
    used_bytes: Bytes
    available_bytes: Bytes
    headroom_bytes: Bytes
    headroom_after_reclaim_bytes: Bytes
    unified: bool


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
        unread=_find_unread((one["name"], one["state"], one.get("error")) for one in found.get("collectors", ())),
    )


def _find_unread(collectors: Iterable[tuple[str, str, str | None]]) -> dict[str, str]:
    """Return the collectors of GPUs that have not answered, of those given with their state and last error."""
    found = {name: (state, error) for name, state, error in collectors if name in GPU_COLLECTORS}
    return {name: _describe(*one) for name, one in found.items() if one[0] not in HAS_ANSWERED}


def _describe(state: str, error: str | None) -> str:
    """Describe the state of a collector that has not answered, as words behind its name."""
    words = "has not answered yet" if state == "starting" else f"is {state}"
    return printable(f"{words}: {error}" if error else words)


def decode_leased_machine(found: Json, own_lease: str) -> Machine:
    """Decode a snapshot with the leases of others in use. Raises as `decode_machine`."""
    with importing:
        from memwatch.core.accounting.leased import with_leases_used  # needed only while there are leases

    leases = without_lease(decode_leases(found.get("leases", ())), own_lease)  # older daemons have none
    return with_leases_used(decode_machine(found), leases)


def from_snapshot(found: Snapshot, from_daemon: bool = False) -> Machine:
    return Machine(
        found.host,
        found.machine.name,
        found.machine.architecture,
        found.machine.explanation,
        found.pools,
        found.shares,
        found.devices,
        from_daemon,
        time.monotonic(),
        # The folders of a direct reading may be of another machine, as in tests.
        _own_cpus(found.boot_id if from_daemon else read_boot_id(ROOTS.procfs)),
        _find_unread((one.name, one.state, one.error) for one in found.collectors),
    )


def _own_cpus(boot_id: object) -> int | Absent:
    return count_usable_cpus() if is_this_machine(boot_id) else Absent.NOT_AVAILABLE
