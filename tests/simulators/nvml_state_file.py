"""The state file that the library built from tests/simulators/nvml reads at every call.

Lines are `key = value`; `#` begins a comment line, and of equal keys the last wins. Numbers are decimal or 0x…, and
`na` is NVML_VALUE_NOT_AVAILABLE; a text is plain, or `hex:` and its bytes. A missing key is answered with
NOT_SUPPORTED: an empty list of processes has to be written, a missing one is an error.

    devices = 0 2                     slots of the GPUs, in the order of their NVML indices
    version.driver version.nvml version.cuda
    init.error = 18                   nvmlInit fails; without a state file it fails with DRIVER_NOT_LOADED
    down = 999                        every call but init and shutdown fails
    call.FUNCTION.error = 4           this call fails; also latency_ms, segfault, and times (only the first calls)
    event.7 = 0:0x8:79[:GI[:CI]]      slot, type, data; happens to event sets older than the line
    gpu.S.name uuid serial minor_number brand architecture cuda.major cuda.minor persistence
    gpu.S.pci.bus_id pci.device_id pci.subsystem_id
    gpu.S.virtualization_mode addressing_mode numa_node c2c
    gpu.S.memory.total reserved used free           both versions; the first counts reserved as used
    gpu.S.memory.v1.total used free                 version 1 where it differs, or alone
    gpu.S.bar1.total used
    gpu.S.limits.groups = PATH:SOFT:HARD:USED …     cgroups below the mount point; HARD `na` is none
    gpu.S.partition = PATH                          the cgroup of the caller: memory info is seen from inside it
    gpu.S.compute = PID:BYTES[:GI[:CI]] …           also graphics, mps
    gpu.S.compute.announced = 1                     the number returned to a caller without a buffer
    gpu.S.processes.layout = r535                   lists of version 3 in the records of drivers 535.54 to 535.98
    gpu.S.ecc.current pending volatile.corrected volatile.uncorrected aggregate.corrected aggregate.uncorrected
    gpu.S.remapped.corrected uncorrected pending failure banks.max banks.high banks.partial banks.low banks.none
    gpu.S.temperature power clock.sm clock.memory throttle utilization.gpu utilization.memory
    gpu.S.retired.corrected = ADDRESS …             also uncorrected; gpu.S.retired.pending
    gpu.S.field.230 = 1:2                           type of value and value
    gpu.S.field.230.error = 3                       that field alone fails
    gpu.S.events.supported = 0x109
    gpu.S.unrepairable = 0
    gpu.S.power.file = PATH                         runtime_status: calls resume the GPU, closing NVML suspends it
    gpu.S.power.in_use = 1                          another program keeps the GPU awake
    gpu.S.down = 15                                 every call on this GPU and its MIG devices fails
    gpu.S.call.FUNCTION.error = 4                   as above, for this GPU's own handle, not for its MIG devices
    gpu.S.mig.current pending max generation        a new generation makes the old handles invalid
    gpu.S.mig.M.gi ci uuid name attributes.memory_mib attributes.multiprocessors …     without a line there is a gap
    gpu.S.mig.M.call.FUNCTION.error
    gpu.S.gi.G.memory.total …  gpu.S.gi.G.bar1.total …                   of a GPU instance, for all its MIG devices
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simulators.nvml_state import UNSIGNED_INT, Gpu, Machine, Mig, Retired, Trouble
from support.paths import TESTS

Fact = tuple[str, object]

SOURCES = TESTS / "simulators/nvml"
FUNCTIONS = frozenset(
    name
    for source in SOURCES.glob("*.c")
    for name in re.findall(r"^(?:EXPORT int |PROCESS_LIST\()(nvml\w+)", source.read_text(), re.MULTILINE)
)


def state_file(machine: Machine) -> str:
    return "".join(f"{key} = {_written(value)}\n" for key, value in _machine(machine) if value is not None)


def _machine(machine: Machine) -> Iterator[Fact]:
    visible = range(len(machine.gpus)) if machine.visible is None else machine.visible
    yield "devices", " ".join(map(str, visible))
    yield from {
        "version.driver": machine.driver,
        "version.nvml": machine.nvml,
        "version.cuda": machine.cuda,
    }.items()
    yield from {"init.error": machine.init_error, "down": machine.down}.items()
    yield from _troubles(machine.troubles)
    for at, event in enumerate(machine.events, start=1):
        yield f"event.{at}", str(event)
    for slot, gpu in enumerate(machine.gpus):
        yield from _under(f"gpu.{slot}", _gpu(gpu))


def _gpu(gpu: Gpu) -> Iterator[Fact]:
    plain = ("name", "uuid", "serial", "minor_number", "brand", "architecture", "persistence", "unrepairable")
    modes = ("virtualization_mode", "addressing_mode", "numa_node", "c2c", "down")
    yield from ((name, getattr(gpu, name)) for name in plain + modes)
    yield from zip(("cuda.major", "cuda.minor"), gpu.cuda or (None, None), strict=True)
    pci = {"bus_id": gpu.bus_id, "device_id": gpu.device_id, "subsystem_id": gpu.subsystem_id}
    yield from _under("pci", pci.items())
    yield from _parts(gpu, {"memory": "memory", "bar1": "bar1", "ecc": "ecc"})
    yield from _parts(gpu, {"memory_v1": "memory.v1", "remapped": "remapped"})
    yield "limits.groups", None if gpu.limits is None else " ".join(map(str, gpu.limits))
    yield "partition", gpu.partition
    yield from _holders(gpu)
    yield from _retired(gpu.retired)
    yield from gpu.sensors.facts().items() if gpu.sensors else ()
    yield from _fields(gpu)
    yield "events.supported", gpu.event_types
    yield from _under("power", {"file": gpu.power_file, "in_use": gpu.in_use}.items())
    yield from _mig(gpu.mig)
    yield from _troubles(gpu.troubles)


def _holders(gpu: Gpu) -> Iterator[Fact]:
    for name in ("compute", "graphics", "mps"):
        holders = getattr(gpu, name)
        yield name, None if holders is None else " ".join(map(str, holders))
        yield f"{name}.announced", gpu.announced.get(name)
    yield "processes.layout", gpu.process_layout


def _retired(retired: Retired | None) -> Iterator[Fact]:
    if retired:
        yield "retired.corrected", " ".join(map(str, retired.corrected))
        yield "retired.uncorrected", " ".join(map(str, retired.uncorrected))
        yield "retired.pending", retired.pending


def _fields(gpu: Gpu) -> Iterator[Fact]:
    known = (gpu.ecc.fields() if gpu.ecc else {}) | (gpu.remapped.fields() if gpu.remapped else {})
    if gpu.recovery_action is not None:
        known[230] = UNSIGNED_INT, gpu.recovery_action
    for number, (kind, value) in {**known, **gpu.fields}.items():
        yield f"field.{number}", f"{kind}:{value}"
    for number, error in gpu.field_errors.items():
        yield f"field.{number}.error", error


def _mig(mig: Mig | None) -> Iterator[Fact]:
    if mig is None:
        return
    for name in ("current", "pending", "max", "generation"):
        yield f"mig.{name}", getattr(mig, name)
    for number, instance in mig.instances.items():
        yield from _under(f"gi.{number}", _parts(instance, {"memory": "memory", "bar1": "bar1"}))
    for index, device in mig.devices.items():
        named = ((name, getattr(device, name)) for name in ("gi", "ci", "uuid", "name"))
        yield from _under(f"mig.{index}", named)
        yield from _under(f"mig.{index}.attributes", device.attributes.items())
        yield from _under(f"mig.{index}", _troubles(device.troubles))


def _troubles(troubles: Mapping[str, Trouble]) -> Iterator[Fact]:
    for function, trouble in troubles.items():
        if function not in FUNCTIONS:
            raise ValueError(f"{function} is not simulated; nvmlDeviceGetMemoryInfo_v2 is, for example")
        yield from _under(f"call.{function}", _facts(trouble))


def _parts(owner: object, keys: Mapping[str, str]) -> Iterator[Fact]:
    for name, key in keys.items():
        part = getattr(owner, name)
        if part is not None:
            yield from _under(key, _facts(part))


def _facts(part: Any) -> Iterator[Fact]:
    if hasattr(part, "facts"):
        yield from part.facts().items()
    else:
        yield from ((name, getattr(part, name)) for name in part.__struct_fields__)


def _under(prefix: str, facts: Any) -> Iterator[Fact]:
    yield from ((f"{prefix}.{key}", value) for key, value in facts)


def _written(value: object) -> str:
    """Write text as bytes if it would not be read back as it is."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        plain = re.fullmatch(rb"(?!hex:)(?:[!-~](?:[ -~]*[!-~])?)?", data)
        return data.decode() if plain else f"hex:{data.hex()}"
    return str(int(value)) if isinstance(value, bool) else str(value)
