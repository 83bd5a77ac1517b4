"""Test advice by machine: each item cites its sources, and conflicting reports are marked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.library.advice import Advice, advice_for, select_environment
from memwatch.library.machine_record import Machine
from memwatch.model import Absent, Architecture, Device, Pool, PoolKind, Quality

GIB = 1 << 30
RAM = Pool("ram", PoolKind.SYSTEM_RAM, "System RAM", 64 * GIB, GIB, 63 * GIB, "test", Quality.MEASURED)
VRAM = replace(RAM, id="gpu0.vram", kind=PoolKind.VRAM, size_bytes=4 * GIB, used_bytes=0, available_bytes=4 * GIB)


def machine(vendor: str, architecture: Architecture, name: str | Absent = Absent.NOT_AVAILABLE) -> Machine:
    own = architecture is Architecture.DISCRETE
    device = Device("gpu0", vendor, f"{vendor} GPU", architecture, allocates_from=("gpu0.vram" if own else "ram",))
    pools = (RAM, VRAM) if own else (RAM,)
    return Machine("host", name, architecture.value, "", pools, (), (device,), True, 0.0)


def by_name(here: Machine) -> dict[str, Advice]:
    return {one.name: one for one in advice_for(here, 16)}


def test_discrete_card_gets_pinned_memory_and_expandable_segments() -> None:
    """And low_vram, with 4 GiB of VRAM."""
    found = by_name(machine("nvidia", Architecture.DISCRETE))

    assert (found["pin_memory"].value, found["pin_memory"].certainty) == ("True", "recommended")
    assert found["PYTORCH_CUDA_ALLOC_CONF"].value == "expandable_segments:True"
    assert (found["low_vram"].value, found["num_workers"].value) == ("True", "8")


def test_jetson_gets_no_expandable_segments() -> None:
    """expandable_segments fails on Tegra boards."""
    found = by_name(machine("nvidia", Architecture.UNIFIED, "NVIDIA Jetson AGX Orin"))

    assert found["PYTORCH_CUDA_ALLOC_CONF"].value == "backend:native"
    assert found["pin_memory"].certainty == "try both"


def test_contested_settings_are_not_in_the_environment() -> None:
    """On a GB10 allocator settings are marked "try both", so none is in the environment."""
    advice = advice_for(machine("nvidia", Architecture.UNIFIED, "NVIDIA DGX Spark"), 20)

    assert {one.name for one in advice if one.certainty == "try both"} == {"pin_memory", "PYTORCH_CUDA_ALLOC_CONF"}
    assert select_environment(advice) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_amd_gets_hip_and_miopen_variables() -> None:
    names = set(select_environment(advice_for(machine("amd", Architecture.DISCRETE), 16)))

    assert names == {"PYTORCH_HIP_ALLOC_CONF", "MIOPEN_FIND_MODE"}


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_each_item_has_a_reason_and_a_source(vendor: str, architecture: Architecture) -> None:
    """On every machine; each name occurs once."""
    advice = advice_for(machine(vendor, architecture), 4)

    assert len({one.name for one in advice}) == len(advice)
    assert {"num_workers", "leave_free"} <= {one.name for one in advice}
    for one in advice:
        assert one.reason
        assert all(source.startswith(("https://", "memwatchd: ")) for source in one.sources)
        assert one.sources
