"""Test the declarations of NVML: they are those of NVIDIA's own binding."""

from __future__ import annotations

from ctypes import Structure, sizeof

import pynvml  # type: ignore[import-untyped]
import pytest

from memwatch.drivers.nvml import structures

OFFICIAL: dict[type[Structure], str] = {
    structures.PciInfo: "nvmlPciInfo_t",
    structures.Memory: "c_nvmlMemory_t",
    structures.MemoryV2: "c_nvmlMemory_v2_t",
    structures.Bar1Memory: "c_nvmlBAR1Memory_t",
    structures.AddressingModeInfo: "c_nvmlDeviceAddressingMode_t",
    structures.Utilization: "c_nvmlUtilization_t",
    structures.FieldValue: "c_nvmlFieldValue_t",
    structures.EventData: "c_nvmlEventData_t",
}
CONSTANTS = {
    "CLOCK_SM": "NVML_CLOCK_SM",
    "CLOCK_MEMORY": "NVML_CLOCK_MEM",
    "TEMPERATURE_GPU": "NVML_TEMPERATURE_GPU",
    "EVENT_XID": "nvmlEventTypeXidCriticalError",
    "EVENT_MIG_CHANGE": "nvmlEventMigConfigChange",
    "FIELD_RECOVERY_ACTION": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "MEMORY_V2": "nvmlMemory_v2",
    "ADDRESSING_MODE_V1": "nvmlDeviceAddressingMode_v1",
}


def layout(structure: type[Structure]) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each field."""
    fields = {str(name): getattr(structure, name) for name, *_ in structure._fields_}
    return {name: (field.offset, field.size) for name, field in fields.items()}


@pytest.mark.parametrize("ours", OFFICIAL)
def test_structure_has_the_layout_of_the_official_binding(ours: type[Structure]) -> None:
    official = getattr(pynvml, OFFICIAL[ours])

    assert layout(ours) == layout(official)
    assert sizeof(ours) == sizeof(official)


def test_members_of_a_value_have_the_types_of_the_official_binding() -> None:
    ours = {(name, kind) for name, kind, *_ in structures.Value._fields_}

    assert ours <= set(pynvml.c_nvmlValue_t._fields_)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_has_the_value_of_the_official_binding(name: str) -> None:
    assert getattr(structures, name) == getattr(pynvml, CONSTANTS[name])


def test_every_structure_is_compared() -> None:
    declared = {
        one
        for one in vars(structures).values()
        if isinstance(one, type) and issubclass(one, Structure) and hasattr(one, "_fields_")
    }

    assert declared == set(OFFICIAL)
