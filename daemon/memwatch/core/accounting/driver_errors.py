"""Driver errors in the kernel log: their GPUs and words, such as the meanings of NVIDIA's XIDs. Pure functions.

The codes and facts are from its XID catalog (docs.nvidia.com/deploy/xid-errors) and from nverror.h of its open
kernel modules, which ends at 176 in 595.45.04 (March 2026); the words are ours. Codes that the catalog calls unused
are left out, unless older GPUs report them. Codes of later drivers, such as 185, are shown as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from memwatch.core import kernel_log
from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Device

# That of WSL is for all makers.
VENDORS = {
    "nvidia": "NVIDIA", "nouveau": "NVIDIA", "amdgpu": "AMD", "radeon": "AMD", "xe": "Intel", "i915": "Intel",
}  # fmt: skip


def with_logged(devices: Sequence[Device], log: KernelLog) -> tuple[Device, ...]:
    """Return the devices with their errors from the log. Errors that NVML also counts are not counted twice."""
    if not log.driver_errors:
        return tuple(devices)
    by_device: dict[str, list[DriverError]] = {}
    for error in log.driver_errors:
        device = find_device(error, devices)
        if device is not None:
            by_device.setdefault(device.id, []).append(error)
    return tuple(_with(device, by_device[device.id]) if device.id in by_device else device for device in devices)


def unassigned_errors(devices: Sequence[Device], log: KernelLog) -> tuple[DriverError, ...]:
    """Return errors of a GPU that is not among the devices, or that do not name one of several GPUs."""
    return tuple(error for error in log.driver_errors if find_device(error, devices) is None)


def find_device(error: DriverError, devices: Sequence[Device]) -> Device | None:
    """Find the device by the PCI address in the line; without one, the driver's only device."""
    if error.pci:
        return next((one for one in devices if isinstance(one.pci, str) and same_slot(one.pci, error.pci)), None)
    vendor = VENDORS.get(error.driver)
    of_vendor = [one for one in devices if vendor in (None, one.vendor)]
    return of_vendor[0] if len(of_vendor) == 1 else None


def same_slot(one: str, other: str) -> bool:
    """Compare PCI slots: `00000000:65:00.0` is `0000:65:00`. Padding differs, and XIDs omit the function."""
    return _slot(one) == _slot(other)


def _slot(address: str) -> tuple[str, ...]:
    domain, *rest = address.lower().split(".")[0].split(":")
    return (domain.lstrip("0"), *rest)


def _with(device: Device, errors: Iterable[DriverError]) -> Device:
    counts, seen = dict(device.errors), dict(device.errors_seen_unix)
    for error in errors:
        counts[error.kind] = max(error.count, counts.get(error.kind, 0))
        seen[error.kind] = max(error.last_seen_unix, seen.get(error.kind, 0.0))
    return replace(device, errors=counts, errors_seen_unix=seen)


_COPY_ENGINE = "copy engine error"
_VIDEO_DECODER = "video decoder error"
_VIDEO_ENCODER = "video encoder error"
_JPEG = "JPEG engine error"

XIDS: Mapping[int, str] = {
    8: "GPU stopped processing",
    11: "invalid commands sent to the GPU",
    13: "exception in a program's GPU code, such as an access out of bounds",
    25: "invalid commands sent to the GPU",
    31: "page fault: a program accessed an invalid GPU address",
    32: "invalid or corrupted commands reached the GPU's DMA controller",
    37: "firmware error in the driver",
    38: "firmware error in the driver",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), _COPY_ENGINE),
    43: "program stopped after its own fault; the GPU is healthy",
    44: "fault while switching between programs",
    45: "work of a program removed after its end or an earlier error",
    46: "GPU stopped processing",
    **dict.fromkeys((47, 65, 73, 142), _VIDEO_ENCODER),
    48: "uncorrectable ECC error (double bit)",
    54: "auxiliary power is not connected to the board",
    56: "display engine error",
    57: "training of the link to the video memory failed",
    58: "video memory error",
    59: "error of the power management unit",
    60: "security processor exception",
    61: "power management unit stopped at a breakpoint",
    62: "power management unit halted",
    63: "memory page retired or row remapped",
    64: "retiring a memory page or remapping a row failed",
    66: "invalid access by the driver",
    67: "invalid access by the driver",
    **dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), _VIDEO_DECODER),
    69: "graphics or compute engine refused a command",
    74: "NVLink error",
    78: "vGPU could not be started",
    79: "GPU has fallen off the bus",
    80: "corrupted data sent to the GPU",
    81: "VGA subsystem error",
    **dict.fromkeys((82, *range(99, 106)), _JPEG),
    86: "optical flow engine error",
    92: "high rate of corrected ECC errors",
    93: "InfoROM was not updated: its wear limit is reached",
    94: "contained memory error: one program is affected",
    95: "uncontained memory error: several programs are affected",
    106: "test message of the management bus",
    107: "test message of the management bus",
    109: "timeout while switching between programs",
    110: "security fault, often from a hardware failure",
    119: "firmware (GSP) did not respond in time",
    120: "firmware (GSP) error",
    121: "corrected errors on the link to the CPU (C2C)",
    122: "flash memory of the board could not be read",
    123: "flash memory of the board could not be written",
    124: "flash memory of the board could not be erased",
    125: "InfoROM error",
    **dict.fromkeys(range(126, 136), _COPY_ENGINE),
    136: "NVLink training failed",
    137: "invalid access to another GPU through NVLink",
    139: "optical flow engine error",
    140: "uncorrectable ECC error that prevented page retirement or row remapping",
    141: "CUDA fast path error",
    143: "GPU could not be initialized",
    144: "NVLink error (SAW)",
    145: "NVLink error (RLW)",
    146: "NVLink error (TLW)",
    147: "NVLink error (TREX)",
    148: "NVLink error (NVLPW_CTRL)",
    149: "NVLink error (NETIR)",
    150: "NVLink error (MSE)",
    151: "key rotation error",
    152: "deep learning accelerator error",
    153: "deep learning accelerator timeout",
    154: "recovery action for other XIDs changed",
    155: "NVLink went down",
    156: "part of the GPU retired",
    157: "retiring a part of the GPU failed",
    158: "fatal timeout",
    159: "error on the link to the CPU (C2C)",
    160: "memory channel retired",
    161: "retiring a memory channel failed",
    162: "power smoothing is on again",
    163: "power smoothing is off",
    164: "power smoothing hardware is nearly worn out",
    165: "power smoothing hardware is worn out",
    166: "unencrypted NVLink traffic in confidential computing",
    167: "fatal PCIe timeout",
    168: "errors in protected memory: less GPU memory is available",
    169: "security processor halted",
    170: "interrupt in confidential computing",
    171: "uncorrectable error in GPU memory (DRAM), further to XID 48",
    172: "uncorrectable error in the GPU's SRAM, further to XID 48",
    # Further codes have names in nverror.h only: the words say no more than these.
    173: "fatal failure of the link to the CPU (C2C)",
    174: "program killed in a reset of its channel",
    175: "memory subsystem error",
    176: "fault from correctable PCIe errors",
}


def describe_kind(kind: str) -> str:
    """Describe a kind of driver error: "XID 79: GPU has fallen off the bus", "unknown XID 999"."""
    prefix, _, number = kind.partition("_")
    if prefix != "xid" or not number.isdecimal():
        return kernel_log.describe_kind(kind)
    meaning = XIDS.get(int(number))
    return f"XID {number}: {meaning}" if meaning else f"unknown XID {number}"
