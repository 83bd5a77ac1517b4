"""Whether this is a Tegra, and which. Not a collector."""

from __future__ import annotations

from memwatch.drivers.tegra.board import parse_compatible
from memwatch.linux.device_tree import device_tree
from memwatch.linux.files import Roots

AUTO = "auto"


def soc_of(roots: Roots, board: str) -> str | None:
    """The chip that the settings name, else the one that the device tree names."""
    if board != AUTO:
        return board
    return parse_compatible(device_tree(roots, "compatible"))
