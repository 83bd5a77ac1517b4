"""Settings of mDNS: [discovery]."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from memwatch.core.options import InvalidValueError, Section
from memwatchd.settings.section import AT_START

INSTALL = "pip install 'memwatchd[mdns]'"


class DiscoverySection(Section, frozen=True, kw_only=True):
    """Announce this memwatchd by mDNS, and show others that are not joined."""

    mdns: Annotated[bool, AT_START] = False

    def __post_init__(self) -> None:
        if self.mdns and find_spec("zeroconf") is None:
            raise InvalidValueError(
                f"needs the zeroconf library, which is not installed: {INSTALL}", (("mdns",),), has_example=False
            )
