"""The figures of nvitop, by its Python interface, under the names of the suite."""

import json

import nvitop
from nvitop import Device, host

memory, swap = host.virtual_memory(), host.swap_memory()
found = {
    "ram.size": memory.total,
    "ram.available": memory.available,
    "ram.used": memory.used,
    "ram.free": memory.free,
    "swap.size": swap.total,
    "swap.used": swap.used,
}
try:
    devices = Device.all()
except nvitop.NVMLError:
    devices = []
for device in devices:
    name = f"gpu{device.index}"
    found |= {f"{name}.size": device.memory_total(), f"{name}.used": device.memory_used()}
    for pid, process in device.processes().items():
        found[f"{name}.process.{pid}"] = process.gpu_memory()
print(json.dumps({key: value for key, value in found.items() if isinstance(value, int)}))
