"""Detection of a Tegra. Not a collector."""

from __future__ import annotations

from typing import Annotated, Literal

from memwatch.drivers.tegra.board import parse_compatible
from memwatch.linux.device_tree import device_tree
from memwatch.linux.files import Roots
from memwatch.options import Doc, SwitchableOptions

AUTO = "auto"


class TegraOptions(SwitchableOptions, frozen=True, kw_only=True):
    """Options of every collector that reads a Tegra."""

    board: Annotated[
        Literal["auto", "tegra210", "tegra186", "tegra194", "tegra234", "tegra264"],
        Doc(
            'The chip: "tegra210" (Nano, TX1), "tegra186" (TX2), "tegra194" (Xavier), "tegra234" (Orin) or '
            '"tegra264" (Thor), for containers that do not see the device tree; "auto" reads it there.'
        ),
    ] = "auto"


def detect_soc(roots: Roots, board: str) -> str | None:
    """Return the chip from the settings, else from the device tree. None if the machine is not a Tegra."""
    if board != AUTO:
        return board
    return parse_compatible(device_tree(roots, "compatible"))
