"""State of the simulated NVIDIA driver from a reading in a report, and the parts that a reading does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memwatch.core.drivers.nvml.fields import THROTTLE_REASONS
from memwatch.core.linux.pci import pci_numbers
from simulators.nvml_state import (
    Bar1,
    Ecc,
    Gpu,
    GpuInstance,
    Holder,
    Limit,
    Machine,
    Memory,
    Mig,
    MigDevice,
    Remapped,
    Sensors,
)

Json = Any

ADDRESSING = {"none": 0, "hmm": 1, "ats": 2}
VIRTUALIZATION = {"none": 0, "passthrough": 1, "vgpu_guest": 2, "vgpu_host": 3, "vsga_host": 4}
RECOVERY = {"none": 0, "gpu_reset": 1, "node_reboot": 2, "drain_p2p": 3, "drain_and_reset": 4}
NOT_SUPPORTED = 3


def machine_from(reading: Json, files: Mapping[str, bytes]) -> Machine:
    """Return the driver and its GPUs. `files` have the PCI ids, by paths such as sys/bus/pci/devices/…/device."""
    driver, cuda = _text(reading["driver"], "0"), _text(reading["cuda"], "0.0")
    major, _, minor = cuda.partition(".")
    gpus = tuple(gpu_from(one, files) for one in reading["gpus"])
    return Machine(gpus, driver, f"{major}.{driver}", int(major) * 1000 + int(minor or 0) * 10)


def gpu_from(gpu: Json, files: Mapping[str, bytes]) -> Gpu:
    address = _text(gpu["pci"], "0000:00:00.0")
    rows = gpu["processes"]
    holders = tuple(_holder(row) for row in rows) if isinstance(rows, list) else None
    memory = gpu["memory"] if isinstance(gpu["memory"], dict) else None
    bar1 = _number(gpu["bar1_bytes"])
    listed = None if holders is None else ()
    return Gpu(
        name=_text(gpu["name"], "NVIDIA"),
        uuid=_text(gpu["uuid"], "GPU-0"),
        bus_id=address.zfill(len("00000000:00:00.0")).upper(),
        device_id=pci_id(address, files),
        addressing_mode=ADDRESSING.get(gpu["addressing_mode"]),
        virtualization_mode=VIRTUALIZATION.get(gpu["virtualization_mode"]),
        numa_node=_number(gpu["numa_node"]),
        memory=_memory(memory) if memory and memory["version"] == 2 else None,
        memory_v1=_memory(memory) if memory and memory["version"] != 2 else None,
        bar1=None if bar1 is None else Bar1(bar1, 0),
        compute=holders,
        graphics=listed,
        mps=listed,
        ecc=_ecc(gpu["ecc"]),
        remapped=_remapped(gpu["ecc"]),
        sensors=_sensors(gpu),
        recovery_action=RECOVERY.get(gpu["recovery_action"]),
        limits=_limits(gpu["limits"]),
        mig=_mig(gpu),
    )


def find_gaps(reading: Json) -> Iterator[str]:
    """Yield a sentence for each part of the driver's state that a reading does not have."""
    yield "brand, architecture, cuda, minor_number, serial, c2c and events.supported of each GPU are not in it"
    for number, gpu in enumerate(reading["gpus"]):
        if gpu["state"] != "ok":
            yield f"gpu.{number} is {gpu['state']}: add down = CODE"
        for call, code in gpu["codes"].items():
            if code != NOT_SUPPORTED:
                yield f"gpu.{number}: {call} failed with error {code}: add call.FUNCTION.error = {code}"
        if gpu["mig_enabled"] is True:
            yield f"gpu.{number}: names and attributes of its MIG devices are invented"
        if isinstance(gpu["processes"], list) and gpu["processes"]:
            yield f"gpu.{number}: all processes are in compute; move those of graphics and mps"
    if reading["xids"]:
        yield "XIDs: add event.N lines"


def pci_id(address: str, files: Mapping[str, bytes]) -> int:
    """Return NVML's PCI id, device and vendor, 0 if the report has none."""
    here = pci_numbers(address)
    found = (name.removesuffix("/device") for name in files if name.endswith("/device"))
    folder = next((name for name in found if pci_numbers(name.rpartition("/")[2]) == here), None)
    if folder is None or f"{folder}/vendor" not in files:
        return 0
    return (int(files[f"{folder}/device"], 16) << 16) | int(files[f"{folder}/vendor"], 16)


def _holder(row: Json) -> Holder:
    return Holder(row["pid"], _number(row["used_bytes"]), row["instance"], None if row["instance"] is None else 0)


def _memory(memory: Json) -> Memory:
    reserved = _number(memory["reserved_bytes"]) or 0
    return Memory(memory["total_bytes"], memory["used_bytes"], reserved, memory["free_bytes"])


def _ecc(ecc: Json) -> Ecc | None:
    corrected, uncorrected = _number(ecc["corrected"]), _number(ecc["uncorrected"])
    if corrected is None or uncorrected is None:
        return None
    return Ecc(volatile_corrected=corrected, volatile_uncorrected=uncorrected)


def _remapped(ecc: Json) -> Remapped | None:
    corrected, uncorrected = _number(ecc["remapped_correctable"]), _number(ecc["remapped_uncorrectable"])
    if corrected is None or uncorrected is None:
        return None
    return Remapped(corrected, uncorrected, ecc["remapping_pending"] is True, ecc["remapping_failed"] is True)


def _sensors(gpu: Json) -> Sensors | None:
    vitals = gpu["vitals"]
    clocks = vitals["clock_hertz"] if isinstance(vitals["clock_hertz"], dict) else {}
    words = vitals["throttled"]
    found = Sensors(
        temperature=_scaled(vitals["temperature_celsius"], 1),
        power=_scaled(vitals["power_watts"], 1000),
        sm=_scaled(clocks.get("sm"), 1e-6),
        memory=_scaled(clocks.get("memory"), 1e-6),
        throttle=sum(bit for bit, word in THROTTLE_REASONS.items() if word in words)
        if isinstance(words, list)
        else None,
        busy=_scaled(gpu["busy_ratio"], 100),
        memory_busy=_scaled(gpu["memory_busy_ratio"], 100),
    )
    return found if found != Sensors() else None


def _limits(limits: Json) -> tuple[Limit, ...] | None:
    if not isinstance(limits, list):
        return None
    return tuple(Limit(one["cgroup"], one["soft_bytes"], one["hard_bytes"], one["used_bytes"]) for one in limits)


def _mig(gpu: Json) -> Mig | None:
    if not isinstance(gpu["mig_enabled"], bool):
        return None
    parts = [one for one in gpu["instances"] if isinstance(one["memory"], dict)]
    named = [(one["id"], uuid) for one in parts for uuid in one["uuids"]]
    devices = {
        index: MigDevice(instance, 0, uuid, f"{gpu['name']} MIG {instance}")
        for index, (instance, uuid) in enumerate(named)
    }
    instances = {one["id"]: GpuInstance(_memory(one["memory"])) for one in parts}
    return Mig(gpu["mig_enabled"], gpu["mig_enabled"], instances=instances, devices=devices)


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _scaled(value: Json, factor: float) -> int | None:
    return round(value * factor) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Json, otherwise: str) -> str:
    """Return the text, or another one if the value is absent: a reading has the reason in its place."""
    return otherwise if not value or value.startswith(("not_", "stale", "lost")) else str(value)
