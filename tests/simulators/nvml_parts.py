"""Numbers of NVML and parts of its readings, for the sample machines."""

from __future__ import annotations

from simulators.nvml_state import (
    Bar1,
    Memory,
    Mig,
    MigDevice,
)

MIB = 1 << 20


GIB = 1 << 30


# Brands, architectures, modes and event types by their NVML numbers.
GEFORCE, NVIDIA_VWS, NVIDIA_RTX, NVIDIA = 5, 10, 13, 14


AMPERE, ADA, HOPPER, BLACKWELL = 7, 8, 9, 10


NO_ADDRESSING, HMM, ATS = 0, 1, 2


BARE_METAL, PASSTHROUGH, VGPU_GUEST = 0, 1, 2


XID, SINGLE_BIT_ECC, DOUBLE_BIT_ECC, MIG_CHANGE = 0x8, 0x1, 0x2, 0x100


GEFORCE_EVENTS = 0x1C


DATACENTER_EVENTS = 0xFF0B


MIG_OFF = Mig(current=False, pending=False)


def mib(total: int, used: int, reserved: int = 0) -> Memory:
    return Memory(total * MIB, used * MIB, reserved * MIB)


def window(total: int, used: int = 0) -> Bar1:
    return Bar1(total * MIB, used * MIB)


def uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-5a3d{number:04x}-7c1e-4b02-9d8f-{0xC0FFEE000000 + number:012x}"


def mig_device(gi: int, ci: int, index: int, profile: str, memory_mib: int, multiprocessors: int) -> MigDevice:
    attributes = {"memory_mib": memory_mib, "multiprocessors": multiprocessors}
    return MigDevice(gi, ci, uuid(index, "MIG"), profile, attributes)
