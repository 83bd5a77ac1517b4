"""Test the verdicts on compute backends, from a snapshot and from probes of files. No machine is read."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.backends.devices import compute_capacity
from memwatch.core.backends.finder import build_backend
from memwatch.core.backends.model import Backend, OpenclPlatform
from memwatch.core.backends.probes import ProbeResults, Rocm
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Architecture, Device, Quality, Share, ShareKind
from memwatch.core.snapshot import CollectorStatus, Machine, Snapshot
from support.backend_samples import APU, EVIDENCE, READY, RTX, found, gpu_device, machine, pool, share, with_opencl
from support.fakes import GIB, ram
from support.sample_parts import snapshot


def test_cuda_works_with_a_driver_and_its_library() -> None:
    """A GPU that NVML lists and libcuda: available, with the values of the snapshot."""
    backend = build_backend("cuda", replace(EVIDENCE, libcuda="/usr/lib64/libcuda.so.1"), machine(RTX))

    assert (backend.available, backend.reason) == (True, "driver 580.95.05, /usr/lib64/libcuda.so.1")
    (device,) = backend.devices
    assert (device.id, device.size_bytes, device.headroom_after_reclaim_bytes) == ("gpu0", 24 * GIB, 20 * GIB)
    assert device.unified is False


@pytest.mark.parametrize(
    ("evidence", "at", "available", "words"),
    [
        (EVIDENCE, machine(RTX), False, "libcuda.so.1 is not installed"),
        (replace(EVIDENCE, platform="darwin"), machine(RTX), False, "on Linux only"),
        (EVIDENCE, machine(replace(RTX, state="lost")), False, "gpu0 is lost"),
        (EVIDENCE, machine(replace(RTX, state="needs_reset")), False, "gpu0 needs a reset"),
        (
            EVIDENCE,
            machine(replace(RTX, state="stalled"), collector=CollectorStatus("nvml", "failing", error="ended")),
            Absent.STALE,
            "gpu0 is stalled: ended",
        ),
        (EVIDENCE, machine(), False, "the driver lists no NVIDIA GPU"),
        (
            EVIDENCE,
            machine(collector=CollectorStatus("nvml", "unavailable", error="no NVIDIA driver is here")),
            False,
            "no NVIDIA driver is here",
        ),
        (
            EVIDENCE,
            machine(collector=CollectorStatus("nvml", "failing", error="it hung")),
            Absent.NOT_AVAILABLE,
            "unknown: the collector nvml is failing: it hung",
        ),
        (
            EVIDENCE,
            machine(collector=CollectorStatus("nvml", "starting")),
            Absent.NOT_AVAILABLE,
            "is starting",
        ),
        (EVIDENCE, machine(collector=CollectorStatus("psi", "ok")), Absent.NOT_AVAILABLE, "is not running"),
    ],
)
def test_unavailable_cuda_has_a_reason(
    evidence: ProbeResults, at: Snapshot, available: bool | Absent, words: str
) -> None:
    """Unavailable only with proof; without an answer from the driver it stays unknown."""
    backend = build_backend("cuda", evidence, at)

    assert backend.available is available
    assert words in backend.reason


def test_nouveau_and_radeon_have_no_vendor_backend() -> None:
    """nouveau drives the same card, and no CUDA program can use it; radeon is not amdgpu."""
    nouveau = build_backend(
        "cuda", replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(replace(RTX, driver="nouveau"))
    )
    radeon = build_backend("rocm", READY, machine(replace(APU, driver="radeon")))

    assert (nouveau.available, nouveau.devices) == (False, ())
    assert "gpu0 uses the driver nouveau" in nouveau.reason
    assert (radeon.available, radeon.devices) == (False, ())
    assert "gpu1 uses the driver radeon" in radeon.reason


def test_stalled_jetson_names_the_failing_collector() -> None:
    """Older Jetsons have no NVML, so its absence explains nothing; the collector that hangs does."""
    stub = CollectorStatus("nvml", "unavailable", error="no library")
    silent = CollectorStatus("tegra", "stalled", error="no response for 9 s")
    orin = replace(RTX, name="NVIDIA Orin", driver=Absent.NOT_SUPPORTED)
    at = replace(machine(replace(orin, state="stalled")), collectors=(stub, silent))

    assert build_backend("cuda", EVIDENCE, at).reason == "gpu0 is stalled: no response for 9 s"
    assert (
        build_backend("cuda", replace(EVIDENCE, libcuda="/l/libcuda.so.1"), machine(orin)).reason
        == "/l/libcuda.so.1"
    )


def test_one_lost_gpu_of_two_leaves_cuda_available() -> None:
    """CUDA works with the other GPU; the lost one is listed as lost."""
    other = replace(
        RTX, id="gpu2", state="lost", allocates_from=(), headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE
    )
    backend = build_backend("cuda", replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(RTX, other))

    assert backend.available is True
    assert [device.note for device in backend.devices] == [None, "is lost"]
    assert backend.devices[1].size_bytes is Absent.NOT_AVAILABLE


def test_lost_gpu_is_not_named_in_the_recommendation() -> None:
    """The reason for CUDA names only working GPUs."""
    lost = replace(
        RTX, id="gpu2", name="NVIDIA T400", state="lost", headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE
    )
    answer = found(replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(RTX, lost))

    assert (answer.recommended, answer.recommended_reason) == (
        "cuda",
        "the vendor's backend for NVIDIA GeForce RTX 4090",
    )


def test_unknown_backends_are_named_in_the_recommendation() -> None:
    """A Vulkan driver that was not probed and an NVML that has not answered might both reach a GPU."""
    intel = replace(EVIDENCE, vulkan_drivers=("intel_icd.x86_64.json",))
    answer = found(intel, machine(collector=CollectorStatus("nvml", "starting")))

    assert (answer.recommended, answer.recommended_reason) == (
        "cpu",
        "no known backend supports a GPU of this machine (unknown: CUDA, Vulkan)",
    )


def test_rocm_is_listed_with_its_own_headroom() -> None:
    """Carve-out and System RAM both belong to the APU's GPU, and ROCm allocates from one of the two."""
    strix = replace(APU, api_free_bytes={"rocm": 26 * GIB})
    (device,) = build_backend("rocm", READY, machine(strix)).devices
    (by_opencl,) = build_backend(
        "opencl", with_opencl(OpenclPlatform("rusticl", "1", (gpu_device("0000:c4:00.0"),))), machine(strix)
    ).devices

    assert (device.headroom_after_reclaim_bytes, device.own_headroom_bytes, device.room_bytes) == (
        60 * GIB,
        26 * GIB,
        26 * GIB,
    )
    assert (by_opencl.own_headroom_bytes, by_opencl.room_bytes) == (Absent.NOT_SUPPORTED, 60 * GIB)
    assert replace(device, own_headroom_bytes=Absent.STALE).room_bytes is Absent.STALE
    assert replace(device, headroom_after_reclaim_bytes=Absent.STALE).room_bytes is Absent.STALE


def test_cpu_headroom_is_bounded_by_the_container_limit() -> None:
    """With a limit of 16 GiB and 10 GiB used, 6 of 64 GiB of System RAM can be allocated."""
    limit = Share(
        "cgroup", ShareKind.CGROUP, "Container limit", "ram", 10 * GIB, "t", Quality.MEASURED, limit_bytes=16 * GIB
    )
    contained = replace(machine().machine, in_container=True)
    limited = replace(machine(), shares=(limit,), machine=contained)

    (free,) = build_backend("cpu", EVIDENCE, machine()).devices
    (bounded,) = build_backend("cpu", EVIDENCE, limited).devices
    assert (free.size_bytes, free.headroom_after_reclaim_bytes) == (64 * GIB, 56 * GIB)
    assert (bounded.size_bytes, bounded.headroom_after_reclaim_bytes) == (16 * GIB, 6 * GIB)


@pytest.mark.parametrize(
    ("evidence", "at", "available", "words"),
    [
        (READY, machine(APU), True, "ROCm 6.2.0, /opt/rocm"),
        (replace(READY, rocm=Rocm("/usr/lib/libamdhip64.so.5", None)), machine(APU), True, "of unknown version"),
        (EVIDENCE, machine(), False, "no AMD GPU was found"),
        (replace(EVIDENCE, amd_on_pci=True), machine(), False, "its driver amdgpu is not loaded"),
        (READY, machine(replace(APU, state="lost")), False, "gpu1 is lost"),
        (replace(READY, kfd=False), machine(APU), False, "/dev/kfd does not exist"),
        (replace(READY, kfd_permitted=False), machine(APU), False, "user ada may not open /dev/kfd"),
        (replace(READY, rocm=None), machine(APU), False, "ROCm is not installed"),
    ],
)
def test_rocm_needs_a_gpu_its_device_file_and_a_runtime(
    evidence: ProbeResults, at: Snapshot, available: bool, words: str
) -> None:
    """Each missing part has its own text."""
    backend = build_backend("rocm", evidence, at)

    assert backend.available is available
    assert words in backend.reason


def test_rocm_is_available_to_the_group_of_kfd() -> None:
    """The daemon's user may lack the group of /dev/kfd; the reason names the group that its clients need."""
    daemons = replace(READY, kfd_permitted=False, kfd_group="render", for_others=True, user="memwatchd")
    backend = build_backend("rocm", daemons, machine(APU))
    ungrouped = build_backend("rocm", replace(daemons, kfd_group=None), machine(APU))

    assert (backend.available, backend.reason) == (
        True,
        "ROCm 6.2.0, /opt/rocm; only for programs that may open /dev/kfd: group render",
    )
    assert found(daemons, machine(APU)).recommended == "rocm"
    assert (ungrouped.available, "user memwatchd may not open" in ungrouped.reason) == (False, True)


def test_rocm_names_all_missing_parts_at_once() -> None:
    """A single check lists all missing parts."""
    backend = build_backend("rocm", replace(READY, kfd=False, rocm=None), machine(APU))

    assert "/dev/kfd does not exist" in backend.reason
    assert "ROCm is not installed" in backend.reason


def test_capacity_of_an_apu_is_its_carve_out_and_its_limit() -> None:
    """Different pools add up, a limit bounds its pool, and System RAM is not counted on top."""
    assert compute_capacity(APU, machine(APU)) == GIB + 60 * GIB
    assert compute_capacity(replace(APU, allocates_from=()), machine(APU)) is Absent.NOT_AVAILABLE


def test_capacity_of_mig_is_the_largest_instance() -> None:
    """Two instances of one pool are alternatives."""
    gpu = replace(RTX, allocates_from=("gpu0.mig1", "gpu0.mig2"))
    at = snapshot(
        "box",
        Machine("Box"),
        pools=(pool("gpu0", 80 * GIB),),
        shares=(share("gpu0.mig1", "gpu0", 10 * GIB), share("gpu0.mig2", "gpu0", 40 * GIB)),
        devices=(gpu,),
    )

    assert compute_capacity(gpu, at) == 40 * GIB


def test_metal_needs_macos_and_a_device() -> None:
    """Never on Linux; on macOS only with a device that was read."""
    mac = replace(EVIDENCE, platform="darwin")
    m4 = Device(
        "gpu0", "Apple", "Apple M4", Architecture.UNIFIED, allocates_from=("ram",), headroom_after_reclaim_bytes=GIB
    )
    at = snapshot("mac", Machine("MacBook"), pools=(ram(8 * GIB),), devices=(m4,))

    assert build_backend("metal", EVIDENCE, machine()).available is False
    assert build_backend("metal", mac, machine()).available is Absent.NOT_AVAILABLE
    assert build_backend("metal", mac, at).available is True
    assert build_backend("metal", mac, at).devices[0].unified is True


@pytest.mark.parametrize(
    ("drivers", "architecture", "available", "words"),
    [
        ((), "mixed", False, "no driver is installed"),
        (("lvp_icd.x86_64.json",), "mixed", False, "run on the CPU"),
        (("radeon_icd.x86_64.json", "lvp_icd.x86_64.json"), "mixed", Absent.NOT_AVAILABLE, "not probed"),
        (("radeon_icd.x86_64.json",), "cpu_only", False, "no GPU was found"),
    ],
)
def test_vulkan_is_not_probed(
    drivers: tuple[str, ...], architecture: str, available: bool | Absent, words: str
) -> None:
    """Installed drivers prove nothing, and a probe would wake GPUs."""
    backend = build_backend("vulkan", replace(EVIDENCE, vulkan_drivers=drivers), machine(architecture=architecture))

    assert backend.available is available
    assert words in backend.reason


def test_vendor_backend_is_recommended_before_opencl() -> None:
    """OpenCL is recommended for a GPU that no other backend reaches."""
    cards = with_opencl(OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(),)))

    own = found(replace(cards, libcuda="/lib/libcuda.so.1"), machine(RTX))
    shared = found(cards, machine(RTX))

    assert (own.recommended, shared.recommended) == ("cuda", "opencl")
    assert own.recommended_reason == "the vendor's backend for NVIDIA GeForce RTX 4090"


def test_every_backend_has_a_verdict_and_a_reason() -> None:
    """Six backends in a fixed order, each with a reason."""
    answer = found(EVIDENCE, machine())

    names = [backend.name for backend in answer.backends]
    assert names == ["cpu", "cuda", "rocm", "metal", "opencl", "vulkan"]
    assert all(backend.reason for backend in answer.backends)
    assert isinstance(answer.backends[0], Backend)
    assert answer.backends[0].devices[0].size_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("address", "numbers"),
    [
        ("00000000:01:00.0", (0, 1, 0, 0)),
        ("0000:c4:00.0", (0, 0xC4, 0, 0)),
        ("", None),
        ("13e40000.gpu", None),
        ("zz:00:00.0", None),
        (Absent.NOT_SUPPORTED, None),
    ],
)
def test_pci_addresses_of_nvml_and_sysfs_are_parsed(address: object, numbers: tuple[int, ...] | None) -> None:
    """NVML writes eight digits for the domain, sysfs four."""
    assert pci_numbers(address) == numbers
