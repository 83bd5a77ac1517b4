"""Structures and constants of nvml.h that are used here, and the library itself.

Declared here, since the vendor's Python binding would be a dependency of every program that imports memwatch, and
costs the helper 3.5 MB. A test compares every line with that binding.
"""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, Union, c_char, c_double, c_int64, c_uint, c_uint32, c_ulonglong

LIBRARY = "libnvidia-ml.so.1"

CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
EVENT_XID = 0x8
EVENT_MIG_CHANGE = 0x100
FIELD_RECOVERY_ACTION = 230
MEMORY_V2 = 0x2000028
ADDRESSING_MODE_V1 = 0x1000008


def load_library() -> CDLL:
    """Load NVIDIA's library. Raises OSError if it is not installed."""
    return CDLL(LIBRARY)


class _DeviceStruct(Structure):
    pass


class _EventSetStruct(Structure):
    pass


# Opaque pointers.
Device = POINTER(_DeviceStruct)
EventSet = POINTER(_EventSetStruct)


class PciInfo(Structure):
    _fields_ = [
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class Memory(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemoryV2(Structure):
    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Bar1Memory(Structure):
    _fields_ = [("bar1Total", c_ulonglong), ("bar1Free", c_ulonglong), ("bar1Used", c_ulonglong)]


class AddressingModeInfo(Structure):
    _fields_ = [("version", c_uint), ("value", c_uint)]


class Utilization(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class Value(Union):
    """Only the members that are read, and the widest ones."""

    _fields_ = [("dVal", c_double), ("uiVal", c_uint), ("ullVal", c_ulonglong)]


class FieldValue(Structure):
    _fields_ = [
        ("fieldId", c_uint32),
        ("scopeId", c_uint32),
        ("timestamp", c_int64),
        ("latencyUsec", c_int64),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", Value),
    ]


class EventData(Structure):
    _fields_ = [
        ("device", Device),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]
