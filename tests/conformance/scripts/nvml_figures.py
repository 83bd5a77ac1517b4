"""The figures of NVML's binding, under the names of the suite. A call that fails is a figure that is absent.

A process in both lists has one figure, the larger: the binding does not add them, and neither does this.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped]


def value_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


found: dict[str, int | None] = {}
if value_of(pynvml.nvmlInit) is None:
    count = value_of(pynvml.nvmlDeviceGetCount) or 0
    for number in range(count):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        memory = value_of(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2)
        memory = memory or value_of(pynvml.nvmlDeviceGetMemoryInfo, handle)
        found |= {f"gpu{number}.size": memory.total, f"gpu{number}.used": memory.used} if memory else {}
        for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            for one in value_of(ask, handle) or ():
                name = f"gpu{number}.process.{one.pid}"
                known = [size for size in (one.usedGpuMemory, found.get(name)) if size is not None]
                found[name] = max(known, default=None)
print(json.dumps(found))
