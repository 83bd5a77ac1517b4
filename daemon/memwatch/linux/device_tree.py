"""What the device tree calls board and chip. Not a collector."""

from __future__ import annotations

from memwatch.linux.files import Roots, read_once


def device_tree(roots: Roots, name: str) -> bytes:
    """A property of its root; empty where there is none, as on most x86 machines.

    /proc/device-tree is an absolute link to /sys/firmware/devicetree/base. In the host's /proc, seen in a
    container, it leads into the container's own /sys, where Docker hides the folder firmware.
    """
    for folder in (roots.procfs / "device-tree", roots.sysfs / "firmware/devicetree/base"):
        if content := read_once(folder / name):
            return content
    return b""
