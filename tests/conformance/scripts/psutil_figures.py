"""The figures of psutil, under the names of the suite."""

import json

import psutil

memory, swap = psutil.virtual_memory(), psutil.swap_memory()
print(
    json.dumps(
        {
            "ram.size": memory.total,
            "ram.available": memory.available,
            "ram.used": memory.used,
            "ram.free": memory.free,
            "swap.size": swap.total,
            "swap.used": swap.used,
        }
    )
)
