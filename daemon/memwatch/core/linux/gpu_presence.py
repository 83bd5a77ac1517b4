"""Hardware that is visible without a driver's module: a reading loads only the collectors of what may be there."""

from __future__ import annotations

from pathlib import Path

from memwatch.core.linux.files import Roots, inode_of, names_in, read_once
from memwatch.core.linux.pci import NVIDIA, pci_vendors


def device_tree(roots: Roots, name: str) -> bytes:
    """Return a property of the root node. Empty if there is none, as on most x86 machines.

    /proc/device-tree is an absolute link to /sys/firmware/devicetree/base. If the host's /proc is mounted in a
    container, the link resolves to the container's own /sys, where Docker hides the folder firmware.
    """
    for folder in (roots.procfs / "device-tree", roots.sysfs / "firmware/devicetree/base"):
        if content := read_once(folder / name):
            return content
    return b""


def is_nvidia_here(roots: Roots) -> bool:
    """Check for anything that NVML could report: a bound GPU, the files of its driver, a Tegra, or the GPU of WSL.

    NVML has the driver's module loaded if it is not, by a setuid program of its package. Where another driver has
    all GPUs, that fails with lines in the kernel's log each time (jurkovic-nikola/OpenLinkHub#172). Where none has,
    it may be loaded against the will of an administrator who unloaded or blocked it.
    """
    is_driver_here = b",tegra" in device_tree(roots, "compatible") or any(map(inode_of, nvidia_driver_files(roots)))
    return is_driver_here or NVIDIA in pci_vendors(roots, "nvidia")


def nvidia_driver_files(roots: Roots) -> tuple[Path, ...]:
    return (roots.procfs / "driver/nvidia", roots.rootfs / "dev/nvidiactl", roots.rootfs / "dev/dxg")


def may_have_nvidia(roots: Roots) -> bool:
    """Check for an NVIDIA GPU of any driver: NVIDIA's may be loaded later."""
    return is_nvidia_here(roots) or NVIDIA in pci_vendors(roots)


def may_have_drm(roots: Roots) -> bool:
    """Check for a GPU or an NPU whose kernel driver could report its memory, now or once it is loaded."""
    listed = any(names_in(roots.sysfs / "class" / kind) for kind in ("drm", "accel"))
    return listed or bool(pci_vendors(roots) - {NVIDIA})
