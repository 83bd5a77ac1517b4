"""Parsers of a Tegra's chip name (device tree) and its Jetson Linux release."""

from __future__ import annotations

import re
from typing import NamedTuple

from memwatch.core.model import Absent, Words

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
