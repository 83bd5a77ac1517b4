"""The lines of helper processes (NVML, amdsmi, OpenCL, Metal): a record that goes round unchanged, or refused."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from typing import Any

from fuzz.oracle import numbers_in
from memwatch.amd.smi import SmiFailure, SmiReading
from memwatch.apple.reading import Metal
from memwatch.backends.opencl_answer import OpenclAnswer
from memwatch.nvml.reading import NvmlFailure, NvmlReading
from memwatch.ticks import Tick, unpacked
from memwatch.wire import Garbled, from_line, to_line

KINDS: tuple[Any, ...] = (NvmlReading, NvmlFailure, SmiReading, SmiFailure, OpenclAnswer, Metal, Tick)


def check(data: bytes) -> None:
    for kind in KINDS:
        with suppress(Garbled):
            found = from_line(kind, data)
            assert all(map(math.isfinite, numbers_in(found)))
            assert from_line(kind, to_line(found)) == found
    for packed in (data, zlib.compress(data, 0)):
        with suppress(Garbled):
            assert isinstance(unpacked(packed), Tick)
