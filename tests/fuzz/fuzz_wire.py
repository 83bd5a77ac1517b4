"""Lines of helper processes (NVML, amdsmi, OpenCL, Metal): a record that survives a round trip, or a rejection."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from typing import Any

from fuzz.oracle import numbers_in
from memwatch.core.backends.model import OpenclResult
from memwatch.core.drivers.amd.smi import SmiFailure, SmiReading
from memwatch.core.drivers.apple import Metal
from memwatch.core.drivers.nvml.records import NvmlFailure, NvmlReading
from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.reporting.history.notable_ticks import Tick, unpack

KINDS: tuple[Any, ...] = (NvmlReading, NvmlFailure, SmiReading, SmiFailure, OpenclResult, Metal, Tick)


def check(data: bytes) -> None:
    for kind in KINDS:
        with suppress(DecodeError):
            found = from_line(kind, data)
            assert all(map(math.isfinite, numbers_in(found)))
            assert from_line(kind, to_line(found)) == found
    for packed in (data, zlib.compress(data, 0)):
        with suppress(DecodeError):
            assert isinstance(unpack(packed), Tick)
