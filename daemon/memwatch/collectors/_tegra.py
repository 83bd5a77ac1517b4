"""Whether this is a Tegra, and which. Not a collector."""

from __future__ import annotations

from memwatch.collector import Roots, read_once
from memwatch.tegra.board import parse_compatible

AUTO = "auto"


def soc_of(roots: Roots, board: str) -> str | None:
    """The chip that the settings name, else the one that the device tree names."""
    if board != AUTO:
        return board
    return parse_compatible(read_once(roots.procfs / "device-tree/compatible") or b"")
