"""Test how the architecture of a Mac is decided: by Metal, else by its processor."""

from __future__ import annotations

import pytest

from memwatch.core.accounting.apple import decide_architecture
from memwatch.core.drivers.apple import AppleReading, Metal
from memwatch.core.model import Absent, Architecture, Words

UNKNOWN = Absent.NOT_AVAILABLE


@pytest.mark.parametrize(
    ("metal", "chip", "architecture", "evidence"),
    [
        (Metal(True, UNKNOWN), "Apple M3", Architecture.UNIFIED, "Metal reports unified memory"),
        (Metal(True, UNKNOWN), UNKNOWN, Architecture.UNIFIED, "Metal reports unified memory"),
        (Metal(False, UNKNOWN), "Apple M3", Architecture.UNIFIED, "the processor is an Apple M3"),
        (UNKNOWN, "Apple M3", Architecture.UNIFIED, "the processor is an Apple M3"),
        (Metal(False, UNKNOWN), "Intel Core i7", Architecture.UNKNOWN, "the processor is not an Apple chip"),
        (UNKNOWN, "Applesauce", Architecture.UNKNOWN, "the processor is not an Apple chip"),
        (UNKNOWN, UNKNOWN, Architecture.UNKNOWN, "the processor is not an Apple chip"),
    ],
)
def test_architecture_of_a_mac(
    metal: Metal | Absent, chip: Words, architecture: Architecture, evidence: str
) -> None:
    reading = AppleReading(chip, "Mac15,8", UNKNOWN, (), UNKNOWN, UNKNOWN, metal)

    assert decide_architecture(reading) == (architecture, (evidence,))
