"""Whether this is a Tegra, and which. Not a collector."""

from __future__ import annotations

from memwatch.collector import Roots
from memwatch.collectors._device_tree import device_tree
from memwatch.tegra.board import parse_compatible

AUTO = "auto"


def soc_of(roots: Roots, board: str) -> str | None:
    """The chip that the settings name, else the one that the device tree names."""
    if board != AUTO:
        return board
    return parse_compatible(device_tree(roots, "compatible"))
