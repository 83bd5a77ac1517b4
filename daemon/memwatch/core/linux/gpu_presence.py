"""Hardware that is visible without a driver's module: a reading loads only the collectors of what may be there."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from memwatch.core.linux.files import Roots, inode_of, names_in, read_once
from memwatch.core.linux.pci import NVIDIA, pci_vendors

# The value of the setting `board` with which the chip is detected.
AUTO = "auto"
# A Tegra whose chip is not known: a container without the device tree.
SOME_TEGRA = "tegra"
RELEASE = "etc/nv_tegra_release"
_DEVICES = ("nvmap", "nvhost-")
_SOC = re.compile(rb"nvidia,(tegra\d{2,4})")


def device_tree(roots: Roots, name: str) -> bytes:
    """Return a property of the root node. Empty if there is none, as on most x86 machines.

    /proc/device-tree is an absolute link to /sys/firmware/devicetree/base. If the host's /proc is mounted in a
    container, the link resolves to the container's own /sys, where Docker hides the folder firmware.
    """
    for folder in (roots.procfs / "device-tree", roots.sysfs / "firmware/devicetree/base"):
        if content := read_once(folder / name):
            return content
    return b""


def parse_compatible(data: bytes) -> str | None:
    """Return the chip, such as "tegra234": the last token that is only a chip's name. Boards precede it."""
    chips = [found[1] for token in data.split(b"\0") if (found := _SOC.fullmatch(token))]
    return chips[-1].decode() if chips else None


def detect_soc(roots: Roots, board: str) -> str | None:
    """Return the chip from the settings, else from the device tree. None if the machine is not a Tegra.

    Docker hides the device tree (/proc/device-tree and /sys/firmware): there the chip may stay unknown.
    """
    if board != AUTO:
        return board
    return parse_compatible(device_tree(roots, "compatible")) or (SOME_TEGRA if find_sign(roots) else None)


def may_be_tegra(roots: Roots) -> bool:
    return detect_soc(roots, AUTO) is not None


def find_sign(roots: Roots) -> str | None:
    """Return an observation that shows a Tegra without its device tree, as a sentence; None if there is none.

    NvMapMemUsed is a line of its kernel's meminfo up to Orin. The container runtime mounts the release file and the
    device files (ultralytics#18449).
    """
    if b"\nNvMapMemUsed:" in (read_once(roots.procfs / "meminfo") or b""):
        return "/proc/meminfo has the line NvMapMemUsed, which only a Tegra's kernel has"
    if os.path.isfile(roots.rootfs / RELEASE):
        return f"/{RELEASE} exists, the release file of Jetson Linux"
    with suppress(OSError):
        names = [name for name in sorted(os.listdir(roots.rootfs / "dev")) if name.startswith(_DEVICES)]
        return f"/dev/{names[0]} exists, a device file of a Tegra's drivers" if names else None
    return None


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


def may_have_gpu(roots: Roots) -> bool:
    """Check for a GPU of any vendor."""
    return may_have_drm(roots) or may_have_nvidia(roots)
