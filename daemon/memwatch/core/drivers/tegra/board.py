"""Detection of a Tegra: its chip (device tree), its Jetson Linux release, and other signs. Not a collector."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple

from memwatch.core.doc import Doc
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.linux.gpu_presence import device_tree
from memwatch.core.model import Absent, Words
from memwatch.core.options import SwitchableOptions

_SOC = re.compile(rb"nvidia,(tegra\d{2,4})")
_RELEASE = re.compile(rb"^# R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4}){0,3}),", re.MULTILINE)

JETPACK_BY_L4T = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7.2"}


class Release(NamedTuple):
    """The release of Jetson Linux, such as "36.4.3", and the JetPack version that contains it."""

    l4t: Words
    jetpack: Words


def parse_compatible(data: bytes) -> str | None:
    """Return the chip, such as "tegra234": the last token that is only a chip's name. Boards precede it."""
    chips = [found[1] for token in data.split(b"\0") if (found := _SOC.fullmatch(token))]
    return chips[-1].decode() if chips else None


def parse_release(data: bytes | None) -> Release:
    """Parse /etc/nv_tegra_release. Its BOARD is not used: it may be "generic" where the device tree is precise."""
    found = _RELEASE.search(data or b"")
    if found is None:
        return Release(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    major, revision = found[1].decode(), found[2].decode()
    return Release(f"{major}.{revision}", JETPACK_BY_L4T.get(major, Absent.NOT_AVAILABLE))


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


# A Tegra whose chip is not known: a container without the device tree.
SOME_TEGRA = "tegra"
RELEASE = "etc/nv_tegra_release"
_DEVICES = ("nvmap", "nvhost-")


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
