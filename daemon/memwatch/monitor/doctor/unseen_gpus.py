"""GPUs on the PCI bus that no collector reports, beside others that one does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import PciGpu, pci_numbers, read_gpu
from memwatch.core.snapshot import Snapshot
from memwatch.monitor.doctor.model import Check, Verdict

# The driver of PCI functions that are assigned to virtual machines.
VFIO = "vfio-pci"
_REMEDIES = {
    "": "install or load its driver",
    "nouveau": "install NVIDIA's driver: nouveau does not report the memory of a GPU",
}


def find_unseen_gpus(roots: Roots, snapshot: Snapshot) -> Iterator[Check]:
    """Yield a check for each GPU that is on the bus and not in the snapshot.

    If it has no GPU at all, another check reports that. Under WSL and on boards, devices have no PCI address: each
    of them counts for one GPU of its vendor.
    """
    if not snapshot.devices or snapshot.simulated:
        return
    seen = {pci_numbers(device.pci) for device in snapshot.devices}
    unplaced = Counter(device.vendor for device in snapshot.devices if pci_numbers(device.pci) is None)
    for address, gpu in _list_gpus(roots.sysfs / "bus/pci/devices"):
        if pci_numbers(address) in seen:
            continue
        if unplaced[gpu.maker]:
            unplaced[gpu.maker] -= 1
            continue
        driver = _read_driver(roots.sysfs / "bus/pci/devices" / address)
        yield _build_check(address, gpu, driver, bool(snapshot.machine.in_container))


def _build_check(address: str, gpu: PciGpu, driver: str, contained: bool) -> Check:
    name, number = f"{gpu} at {address}", f"devices.pci.{address}"
    if driver == VFIO:
        return Check(
            number, Verdict.HINT, f"{name} is assigned to a virtual machine ({VFIO}): its memory is not read"
        )
    if contained:
        text = f"{name} is not visible in this container: its memory is not read"
        return Check(
            number, Verdict.HINT, text, "give the container access to the GPU, or run memwatchd on the host"
        )
    how = f"its driver is {driver}" if driver else "no driver is bound"
    text = f"{name} is not reported by any collector ({how}): its memory is not read"
    return Check(number, Verdict.PROBLEM, text, _REMEDIES.get(driver, "see the collectors below"))


def _list_gpus(folder: Path) -> Iterator[tuple[str, PciGpu]]:
    """Yield address and GPU. Virtual functions (SR-IOV) are parts of a GPU that is listed itself."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        gpu = read_gpu(folder / name)
        if gpu is not None and not os.path.exists(folder / name / "physfn"):
            yield name, gpu


def _read_driver(function: Path) -> str:
    """Return the name of the driver that is bound to a PCI function, or an empty string."""
    try:
        return os.path.basename(os.readlink(function / "driver"))
    except OSError:
        return ""
