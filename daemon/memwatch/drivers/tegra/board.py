"""Which Tegra this is, from the device tree and from the file that names its release."""

from __future__ import annotations

import re
from typing import NamedTuple

from memwatch.model import Absent, Words

_SOC = re.compile(rb"nvidia,(tegra\d{2,4})")
_RELEASE = re.compile(rb"^# R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4}){0,3}),", re.MULTILINE)

JETPACK_BY_L4T = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7.2"}


class Release(NamedTuple):
    """The release of Jetson Linux, as in "36.4.3", and the JetPack that brought it."""

    l4t: Words
    jetpack: Words


def parse_compatible(data: bytes) -> str | None:
    """The chip: the last token of NVIDIA's that is a chip's name and nothing else; boards stand before it."""
    chips = [found[1] for token in data.split(b"\0") if (found := _SOC.fullmatch(token))]
    return chips[-1].decode() if chips else None


def parse_release(data: bytes | None) -> Release:
    """/etc/nv_tegra_release. Its BOARD is not used: it says "generic" where the device tree knows better."""
    found = _RELEASE.search(data or b"")
    if found is None:
        return Release(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    major, revision = found[1].decode(), found[2].decode()
    return Release(f"{major}.{revision}", JETPACK_BY_L4T.get(major, Absent.NOT_AVAILABLE))
