"""Test the verdict on OpenCL: a CPU device is never a GPU, and a probe that did not run leaves it unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.backends.finder import build_backend
from memwatch.core.backends.model import OpenclPlatform, OpenclResult
from memwatch.core.model import Absent
from support.backend_samples import EVIDENCE, POCL, RTX, found, gpu_device, machine, with_opencl
from support.fakes import GIB


def test_opencl_cpu_is_listed_and_is_no_gpu() -> None:
    """Its platform is named, no memory is listed for it, and it is not recommended."""
    answer = found(with_opencl(POCL), machine())

    (backend,) = [one for one in answer.backends if one.name == "opencl"]
    assert backend.available is True
    assert "CPU only (Portable Computing Language)" in backend.reason
    assert [device.kind for device in backend.devices] == ["cpu"]
    assert backend.devices[0].size_bytes is Absent.NOT_SUPPORTED
    assert backend.devices[0].headroom_after_reclaim_bytes is Absent.NOT_SUPPORTED
    assert backend.gpus == ()
    assert (answer.recommended, answer.recommended_reason) == ("cpu", "no backend supports a GPU of this machine")


def test_platform_listed_twice_counts_once() -> None:
    """Two .icd files of one driver, even with different versions, are one CPU."""
    backend = build_backend("opencl", with_opencl(POCL, replace(POCL, version="PoCL 7.1")), machine())

    assert len(backend.devices) == 1


def test_two_cards_of_one_model_count_twice() -> None:
    """Their PCI addresses differ; two identical cards without an address are still two."""
    alike = OpenclPlatform("AMD", "1", (gpu_device(""), gpu_device("")))
    apart = OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(), gpu_device("0000:02:00.0")))

    assert len(build_backend("opencl", with_opencl(alike), machine()).devices) == 2
    assert len(build_backend("opencl", with_opencl(apart), machine()).devices) == 2


def test_opencl_gpu_has_the_values_of_the_snapshot() -> None:
    """Matched by address; a GPU that is in no snapshot has OpenCL's size and no headroom."""
    known = build_backend("opencl", with_opencl(OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(),))), machine(RTX))
    foreign = build_backend(
        "opencl", with_opencl(OpenclPlatform("X", "1", (gpu_device("0000:09:00.0"),))), machine(RTX)
    )

    assert (known.devices[0].id, known.devices[0].headroom_after_reclaim_bytes) == ("gpu0", 20 * GIB)
    assert foreign.devices[0].id is None
    assert foreign.devices[0].size_bytes == 25_000_000_000
    assert foreign.devices[0].headroom_after_reclaim_bytes is Absent.NOT_SUPPORTED
    assert len(foreign.gpus) == 1


@pytest.mark.parametrize(
    ("answer", "drivers", "available", "words"),
    [
        (None, (), False, "no driver is installed"),
        (None, ("nvidia.icd",), Absent.NOT_AVAILABLE, "not probed"),
        (OpenclResult(failure="no_binding"), (), False, "no driver is installed"),
        (
            OpenclResult(failure="no_binding"),
            ("pocl.icd",),
            Absent.NOT_AVAILABLE,
            "pip install pyopencl",
        ),
        (OpenclResult(failure="no_platform", text="PLATFORM_NOT_FOUND_KHR"), (), False, "PLATFORM_NOT_FOUND_KHR"),
        (OpenclResult(failure="failed", text="it hung"), (), Absent.NOT_AVAILABLE, "probe failed: it hung"),
        (OpenclResult(), (), False, "no driver is installed"),
        (
            OpenclResult((OpenclPlatform("Clover", "1", (), "DEVICE_NOT_FOUND"),)),
            (),
            False,
            "Clover lists no device",
        ),
    ],
)
def test_unavailable_opencl_has_a_reason(
    answer: OpenclResult | None, drivers: tuple[str, ...], available: bool | Absent, words: str
) -> None:
    """Without a binding the drivers remain unknown; without a driver, OpenCL is unavailable."""
    backend = build_backend("opencl", replace(EVIDENCE, opencl=answer, opencl_drivers=drivers), machine())

    assert backend.available is available
    assert words in backend.reason


@pytest.mark.parametrize(
    ("platform", "for_others", "available"),
    [
        (OpenclPlatform("Intel OpenCL", "1", ()), True, Absent.NOT_PERMITTED),
        (OpenclPlatform("Intel OpenCL", "1", ()), False, False),
        (POCL, True, True),
    ],
)
def test_opencl_without_permission_for_the_gpu_is_not_permitted(
    platform: OpenclPlatform, for_others: bool, available: bool | Absent
) -> None:
    """If the daemon's user may not open a GPU, OpenCL may still work for its clients."""
    closed = replace(with_opencl(platform), closed="/dev/dri/renderD128", for_others=for_others)
    backend = build_backend("opencl", closed, machine())

    assert backend.available is available
    assert backend.reason.endswith("user ada may not open /dev/dri/renderD128, so a GPU would not be found")
    assert "may not" not in build_backend("opencl", replace(closed, closed=None), machine()).reason
