"""Test advice by machine: each item cites its sources, and conflicting reports are marked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Architecture, Pool
from memwatch.library.advice import Advice, advice_for, select_environment
from memwatch.library.machine_record import Machine
from support.advice_machine import GIB, RAM, machine


def by_name(here: Machine) -> dict[str, Advice]:
    return {one.name: one for one in advice_for(here)}


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
    advice = advice_for(machine("nvidia", Architecture.UNIFIED, "NVIDIA DGX Spark"))

    assert {one.name for one in advice if one.certainty == "try both"} == {
        "pin_memory",
        "non_blocking",
        "persistent_workers",
        "PYTORCH_CUDA_ALLOC_CONF",
    }
    assert select_environment(advice) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_amd_gets_hip_and_miopen_variables() -> None:
    names = set(select_environment(advice_for(machine("amd", Architecture.DISCRETE, gfx="gfx1100"))))

    assert names == {"PYTORCH_HIP_ALLOC_CONF", "MIOPEN_FIND_MODE"}


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_each_item_has_a_reason_and_a_source(vendor: str, architecture: Architecture) -> None:
    """On every machine; each name occurs once."""
    advice = advice_for(machine(vendor, architecture, cpus=4, gfx="gfx942" if vendor == "amd" else ""))

    assert len({one.name for one in advice}) == len(advice)
    assert {"num_workers", "leave_free"} <= {one.name for one in advice}
    for one in advice:
        assert one.reason
        assert all(source.startswith(("https://", "memwatchd: ")) for source in one.sources)
        assert one.sources


@pytest.mark.parametrize(
    ("gfx", "architecture", "expected"),
    [
        ("gfx942", Architecture.UNIFIED, {"HSA_XNACK", "HSA_ENABLE_SDMA", "HIPBLASLT_ALLOW_TF32"}),
        ("gfx90a", Architecture.DISCRETE, {"HSA_XNACK"}),
        ("gfx1151", Architecture.CARVEOUT, {"HSA_ENABLE_SDMA", "HSA_OVERRIDE_GFX_VERSION"}),
        ("gfx1100", Architecture.DISCRETE, {"HSA_OVERRIDE_GFX_VERSION"}),
        ("", Architecture.DISCRETE, set()),
    ],
)
def test_settings_of_hsa_are_only_for_hardware_that_has_them(
    gfx: str, architecture: Architecture, expected: set[str]
) -> None:
    """None of them is set for all programs: each names the case that needs it."""
    found = by_name(machine("amd", architecture, gfx=gfx))

    assert {name for name in found if name.startswith(("HSA_", "HIPBLASLT_"))} == expected
    assert {found[name].certainty for name in expected} <= {"if needed", "avoid"}
    assert not expected & set(select_environment(tuple(found.values())))


def test_override_of_the_instruction_set_is_to_be_avoided() -> None:
    found = by_name(machine("amd", Architecture.DISCRETE, gfx="gfx1100"))["HSA_OVERRIDE_GFX_VERSION"]

    assert (found.value, found.certainty) == ("unset", "avoid")
    assert "another GPU than this gfx1100" in found.reason


def test_miopen_results_are_kept_in_a_local_folder_if_needed() -> None:
    found = by_name(machine("amd", Architecture.DISCRETE))["MIOPEN_USER_DB_PATH"]

    assert (found.value, found.certainty, found.environment) == ("/var/tmp/miopen", "if needed", True)


@pytest.mark.parametrize(
    ("gpu", "has"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA RTX A6000", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA GB10", True),
        ("NVIDIA GH200 480GB", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("NVIDIA L40S", True),
        ("NVIDIA A10G", True),
        ("Tesla T4", False),
        ("Tesla V100-SXM2-16GB", False),
        ("NVIDIA GeForce RTX 2080 Ti", False),
        ("Quadro RTX 6000", False),
        ("NVIDIA GeForce GTX 1080", False),
        ("NVIDIA TITAN RTX", False),
        ("Tesla P100-PCIE-16GB", False),
    ],
)
def test_tf32_is_only_for_gpus_that_have_it(gpu: str, has: bool) -> None:
    found = by_name(machine("nvidia", Architecture.DISCRETE, gpu=gpu))

    assert ("torch.backends.cuda.matmul.allow_tf32" in found) is has


def test_loader_of_a_discrete_gpu_keeps_workers_and_overlaps_copies() -> None:
    found = by_name(machine("nvidia", Architecture.DISCRETE))
    names = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "non_blocking")

    assert [found[name].value for name in names] == ["8", "True", "2", "True", "True"]


def test_loader_of_a_unified_gpu_leaves_memory_to_it() -> None:
    """Half of the CPUs, as the workers' memory is the GPU's."""
    found = by_name(machine("nvidia", Architecture.UNIFIED, cpus=12))
    names = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "non_blocking")

    assert [found[name].value for name in names] == ["6", "False", "2", "False", "False"]
    assert "in the memory that the GPU allocates from" in found["num_workers"].reason


def with_available(available: int) -> Pool:
    return replace(RAM, used_bytes=64 * GIB - available, available_bytes=available)


def test_workers_are_limited_by_available_memory() -> None:
    found = by_name(machine("nvidia", Architecture.DISCRETE, ram=with_available(3 * GIB)))

    assert (found["num_workers"].value, found["prefetch_factor"].value) == ("3", "1")
    assert "3.0 GiB of System RAM are available" in found["num_workers"].reason


@pytest.mark.parametrize(
    ("available", "workers", "batches"),
    [(8 * GIB - 1, "7", "1"), (8 * GIB, "8", "2"), (8 * GIB + 1, "8", "2"), (9 * GIB, "8", "2")],
)
def test_workers_keep_a_second_batch_from_8_gib_on(available: int, workers: str, batches: str) -> None:
    found = by_name(machine("nvidia", Architecture.DISCRETE, ram=with_available(available)))

    assert (found["num_workers"].value, found["prefetch_factor"].value) == (workers, batches)


def test_without_memory_for_a_worker_there_are_no_settings_of_workers() -> None:
    """PyTorch refuses persistent_workers and prefetch_factor with num_workers=0."""
    found = by_name(machine("nvidia", Architecture.DISCRETE, ram=with_available(GIB // 2)))

    assert found["num_workers"].value == "0"
    assert not {"persistent_workers", "prefetch_factor"} & set(found)


def test_number_of_workers_is_absent_without_the_machine_s_cpus() -> None:
    """Our own CPUs say nothing of another machine."""
    found = by_name(machine("nvidia", Architecture.DISCRETE, cpus=Absent.NOT_AVAILABLE))

    assert "num_workers" not in found
    assert {"persistent_workers", "prefetch_factor", "pin_memory"} <= set(found)
