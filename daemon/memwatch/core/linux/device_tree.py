"""Properties of the device tree's root, such as the names of board and chip. Not a collector."""

from __future__ import annotations

from memwatch.core.linux.files import Roots, read_once


def device_tree(roots: Roots, name: str) -> bytes:
    """Return a property of the root node. Empty if there is none, as on most x86 machines.

    /proc/device-tree is an absolute link to /sys/firmware/devicetree/base. If the host's /proc is mounted in a
    container, the link resolves to the container's own /sys, where Docker hides the folder firmware.
    """
    for folder in (roots.procfs / "device-tree", roots.sysfs / "firmware/devicetree/base"):
        if content := read_once(folder / name):
            return content
    return b""
