"""Which backends a machine has: verdicts from a snapshot and what files said, without a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes import GIB, ram
from memwatch.backends import cpu, cuda, metal, opencl, rocm, vulkan
from memwatch.backends.devices import capacity_of, pci_numbers
from memwatch.backends.discovery import backends_of
from memwatch.backends.evidence import Evidence, Rocm
from memwatch.backends.model import Backend, Backends
from memwatch.backends.opencl_answer import OpenclAnswer, OpenclDevice, OpenclPlatform
from memwatch.model import Absent, Architecture, Device, Pool, PoolKind, Quality, Share, ShareKind
from memwatch.snapshot import CollectorStatus, Machine, Snapshot
from sample_parts import snapshot

EVIDENCE = Evidence(platform="linux", user="ada", cpu="AMD EPYC")
RTX = Device(
    "gpu0",
    "NVIDIA",
    "NVIDIA GeForce RTX 4090",
    Architecture.DISCRETE,
    pci="00000000:01:00.0",
    driver="580.95.05",
    allocates_from=("gpu0",),
    headroom_bytes=20 * GIB,
)
APU = Device(
    "gpu1",
    "AMD",
    "AMD Radeon 8060S",
    Architecture.UNIFIED,
    pci="0000:c4:00.0",
    allocates_from=("gpu1", "gpu1.gtt"),
    headroom_bytes=60 * GIB,
)
NVML_OK = CollectorStatus("nvml", "ok")


def pool(name: str, size: int, kind: PoolKind = PoolKind.VRAM) -> Pool:
    return Pool(name, kind, "VRAM", size, 0, size, "test", Quality.MEASURED)


def share(name: str, within: str, limit: int | Absent = Absent.NOT_SUPPORTED) -> Share:
    return Share(name, ShareKind.GTT, "GTT", within, 0, "test", Quality.MEASURED, limit_bytes=limit)


def machine(*devices: Device, collector: CollectorStatus = NVML_OK, architecture: str = "mixed") -> Snapshot:
    return snapshot(
        "box",
        Machine("Box", architecture),
        pools=(ram(8 * GIB), pool("gpu0", 24 * GIB), pool("gpu1", GIB, PoolKind.CARVEOUT)),
        shares=(share("gpu1.gtt", "ram", 60 * GIB),),
        devices=devices,
        collectors=(collector,),
    )


def found(evidence: Evidence, at: Snapshot) -> Backends:
    return backends_of(evidence, at, 0.0)


def test_cuda_works_with_a_driver_and_its_library() -> None:
    """A GPU that NVML lists and libcuda: available, with the figures of the snapshot."""
    backend = cuda.backend_of(replace(EVIDENCE, libcuda="/usr/lib64/libcuda.so.1"), machine(RTX))

    assert (backend.available, backend.reason) == (True, "driver 580.95.05, /usr/lib64/libcuda.so.1")
    (device,) = backend.devices
    assert (device.id, device.size_bytes, device.headroom_bytes) == ("gpu0", 24 * GIB, 20 * GIB)
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
            "not known: collector nvml is failing: it hung",
        ),
        (
            EVIDENCE,
            machine(collector=CollectorStatus("nvml", "starting")),
            Absent.NOT_AVAILABLE,
            "has not answered",
        ),
        (EVIDENCE, machine(collector=CollectorStatus("psi", "ok")), Absent.NOT_AVAILABLE, "no collector nvml"),
    ],
)
def test_cuda_says_why_it_does_not_work(
    evidence: Evidence, at: Snapshot, available: bool | Absent, words: str
) -> None:
    """No is said where no is known; a source that is silent leaves it open."""
    backend = cuda.backend_of(evidence, at)

    assert backend.available is available
    assert words in backend.reason


def test_a_driver_that_is_not_the_makers_own_has_no_cuda() -> None:
    """nouveau lists the same card, and no CUDA program can use it; radeon is no amdgpu."""
    nouveau = cuda.backend_of(
        replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(replace(RTX, driver="nouveau"))
    )
    radeon = rocm.backend_of(READY, machine(replace(APU, driver="radeon")))

    assert (nouveau.available, nouveau.devices) == (False, ())
    assert "gpu0 has the driver nouveau" in nouveau.reason
    assert (radeon.available, radeon.devices) == (False, ())
    assert "gpu1 has the driver radeon" in radeon.reason


def test_a_silent_jetson_is_explained_by_what_fails_there() -> None:
    """NVML is not there on older Jetsons, which explains nothing; the collector that hangs does."""
    stub = CollectorStatus("nvml", "unavailable", error="no library")
    silent = CollectorStatus("tegra", "stalled", error="no answer for 9 s")
    orin = replace(RTX, name="NVIDIA Orin", driver=Absent.NOT_SUPPORTED)
    at = replace(machine(replace(orin, state="stalled")), collectors=(stub, silent))

    assert cuda.backend_of(EVIDENCE, at).reason == "gpu0 is stalled: no answer for 9 s"
    assert cuda.backend_of(replace(EVIDENCE, libcuda="/l/libcuda.so.1"), machine(orin)).reason == "/l/libcuda.so.1"


def test_one_lost_gpu_of_two_is_said_and_the_other_counts() -> None:
    """CUDA works with what is left; the lost one is listed as lost."""
    other = replace(RTX, id="gpu2", state="lost", allocates_from=(), headroom_bytes=Absent.NOT_AVAILABLE)
    backend = cuda.backend_of(replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(RTX, other))

    assert backend.available is True
    assert [device.note for device in backend.devices] == [None, "is lost"]
    assert backend.devices[1].size_bytes is Absent.NOT_AVAILABLE


def test_a_lost_gpu_recommends_nothing() -> None:
    """Whoever reads why CUDA is the one to use reads the names of GPUs that work."""
    lost = replace(RTX, id="gpu2", name="NVIDIA T400", state="lost", headroom_bytes=Absent.NOT_AVAILABLE)
    answer = found(replace(EVIDENCE, libcuda="/lib/libcuda.so.1"), machine(RTX, lost))

    assert (answer.recommended, answer.recommended_reason) == (
        "cuda",
        "the maker's own backend for NVIDIA GeForce RTX 4090",
    )


def test_what_nobody_knows_is_not_said_to_reach_no_gpu() -> None:
    """A driver of Vulkan that nobody asked, an NVML that has not answered: either may reach one."""
    intel = replace(EVIDENCE, vulkan_drivers=("intel_icd.x86_64.json",))
    answer = found(intel, machine(collector=CollectorStatus("nvml", "starting")))

    assert (answer.recommended, answer.recommended_reason) == (
        "cpu",
        "no backend is known to reach a GPU here (CUDA, Vulkan: see there)",
    )


def test_rocm_is_listed_with_what_its_own_rule_leaves() -> None:
    """An APU's carve-out and its System RAM are both the GPU's, and ROCm is given one of the two."""
    strix = replace(APU, api_free_bytes={"rocm": 26 * GIB})
    (device,) = rocm.backend_of(READY, machine(strix)).devices
    (by_opencl,) = opencl.backend_of(
        with_opencl(OpenclPlatform("rusticl", "1", (gpu_device("0000:c4:00.0"),))), machine(strix)
    ).devices

    assert (device.headroom_bytes, device.own_headroom_bytes, device.room_bytes) == (60 * GIB, 26 * GIB, 26 * GIB)
    assert (by_opencl.own_headroom_bytes, by_opencl.room_bytes) == (None, 60 * GIB)
    assert replace(device, own_headroom_bytes=Absent.STALE).room_bytes is Absent.STALE
    assert replace(device, headroom_bytes=Absent.STALE).room_bytes is Absent.STALE


def test_in_a_container_the_cpu_has_what_its_limit_leaves() -> None:
    """64 GiB of System RAM are of no use to whoever may take 16 and has taken 10."""
    limit = Share(
        "cgroup", ShareKind.CGROUP, "Container limit", "ram", 10 * GIB, "t", Quality.MEASURED, limit_bytes=16 * GIB
    )
    limited = replace(machine(), shares=(limit,))

    (free,) = cpu.backend_of(EVIDENCE, machine()).devices
    (bounded,) = cpu.backend_of(EVIDENCE, limited).devices
    assert (free.size_bytes, free.headroom_bytes) == (64 * GIB, 56 * GIB)
    assert (bounded.size_bytes, bounded.headroom_bytes) == (16 * GIB, 6 * GIB)


READY = replace(
    EVIDENCE, amd_on_pci=True, amdgpu_loaded=True, kfd=True, kfd_permitted=True, rocm=Rocm("/opt/rocm", "6.2.0")
)


@pytest.mark.parametrize(
    ("evidence", "at", "available", "words"),
    [
        (READY, machine(APU), True, "ROCm 6.2.0, /opt/rocm"),
        (replace(READY, rocm=Rocm("/usr/lib/libamdhip64.so.5", None)), machine(APU), True, "of unknown version"),
        (EVIDENCE, machine(), False, "no AMD GPU is here"),
        (replace(EVIDENCE, amd_on_pci=True), machine(), False, "its driver amdgpu is not loaded"),
        (READY, machine(replace(APU, state="lost")), False, "gpu1 is lost"),
        (replace(READY, kfd=False), machine(APU), False, "/dev/kfd is not there"),
        (replace(READY, kfd_permitted=False), machine(APU), False, "user ada may not open /dev/kfd"),
        (replace(READY, rocm=None), machine(APU), False, "no ROCm is installed"),
    ],
)
def test_rocm_needs_a_gpu_its_device_file_and_a_runtime(
    evidence: Evidence, at: Snapshot, available: bool, words: str
) -> None:
    """Each missing part has its own sentence."""
    backend = rocm.backend_of(evidence, at)

    assert backend.available is available
    assert words in backend.reason


def test_a_daemon_that_may_not_open_kfd_does_not_speak_for_others() -> None:
    """Its user is in no group of people who compute; those who ask it are, or are told which one."""
    daemons = replace(READY, kfd_permitted=False, kfd_group="render", for_others=True, user="memwatchd")
    backend = rocm.backend_of(daemons, machine(APU))
    nobodys = rocm.backend_of(replace(daemons, kfd_group=None), machine(APU))

    assert (backend.available, backend.reason) == (
        True,
        "ROCm 6.2.0, /opt/rocm; for programs that may open /dev/kfd: group render",
    )
    assert found(daemons, machine(APU)).recommended == "rocm"
    assert (nobodys.available, "user memwatchd may not open" in nobodys.reason) == (False, True)


def test_rocm_names_everything_that_is_missing_at_once() -> None:
    """Who mends one thing learns of the other beforehand."""
    backend = rocm.backend_of(replace(READY, kfd=False, rocm=None), machine(APU))

    assert "/dev/kfd is not there" in backend.reason
    assert "no ROCm is installed" in backend.reason


def test_an_apus_capacity_is_its_carve_out_and_its_limit_in_system_ram() -> None:
    """Different pools add up, a limit bounds its pool, and System RAM is not counted on top."""
    assert capacity_of(APU, machine(APU)) == GIB + 60 * GIB
    assert capacity_of(replace(APU, allocates_from=()), machine(APU)) is Absent.NOT_AVAILABLE


def test_of_mig_instances_the_largest_counts() -> None:
    """Two ways into one pool are alternatives."""
    gpu = replace(RTX, allocates_from=("gpu0.mig1", "gpu0.mig2"))
    at = snapshot(
        "box",
        Machine("Box"),
        pools=(pool("gpu0", 80 * GIB),),
        shares=(share("gpu0.mig1", "gpu0", 10 * GIB), share("gpu0.mig2", "gpu0", 40 * GIB)),
        devices=(gpu,),
    )

    assert capacity_of(gpu, at) == 40 * GIB


def test_metal_is_apples() -> None:
    """Never on Linux; on macOS only with a device that was read."""
    mac = replace(EVIDENCE, platform="darwin")
    m4 = Device("gpu0", "Apple", "Apple M4", Architecture.UNIFIED, allocates_from=("ram",), headroom_bytes=GIB)
    at = snapshot("mac", Machine("MacBook"), pools=(ram(8 * GIB),), devices=(m4,))

    assert metal.backend_of(EVIDENCE, machine()).available is False
    assert metal.backend_of(mac, machine()).available is Absent.NOT_AVAILABLE
    assert metal.backend_of(mac, at).available is True
    assert metal.backend_of(mac, at).devices[0].unified is True


@pytest.mark.parametrize(
    ("drivers", "architecture", "available", "words"),
    [
        ((), "mixed", False, "no driver is installed"),
        (("lvp_icd.x86_64.json",), "mixed", False, "computes on the CPU"),
        (("radeon_icd.x86_64.json", "lvp_icd.x86_64.json"), "mixed", Absent.NOT_AVAILABLE, "not probed"),
        (("radeon_icd.x86_64.json",), "cpu_only", False, "no GPU was found"),
    ],
)
def test_vulkan_is_not_probed(
    drivers: tuple[str, ...], architecture: str, available: bool | Absent, words: str
) -> None:
    """Installed drivers prove nothing, and asking them would wake GPUs."""
    backend = vulkan.backend_of(replace(EVIDENCE, vulkan_drivers=drivers), machine(architecture=architecture))

    assert backend.available is available
    assert words in backend.reason


def cpu_device(name: str = "pthread-AMD EPYC") -> OpenclDevice:
    return OpenclDevice(name, "cpu", Absent.NOT_SUPPORTED, True, Absent.NOT_SUPPORTED)


def gpu_device(pci: str = "0000:01:00.0") -> OpenclDevice:
    return OpenclDevice("NVIDIA GeForce RTX 4090", "gpu", 25_000_000_000, False, pci)


POCL = OpenclPlatform("Portable Computing Language", "PoCL 3.1", (cpu_device(),))


def with_opencl(*platforms: OpenclPlatform) -> Evidence:
    return replace(EVIDENCE, opencl=OpenclAnswer(platforms))


def test_an_opencl_cpu_is_listed_and_refused_as_a_gpu() -> None:
    """Its platform is named, no memory is printed for it, and nothing recommends it."""
    answer = found(with_opencl(POCL), machine())

    (backend,) = [one for one in answer.backends if one.name == "opencl"]
    assert backend.available is True
    assert "on the CPU only, by Portable Computing Language" in backend.reason
    assert [device.kind for device in backend.devices] == ["cpu"]
    assert backend.devices[0].size_bytes is Absent.NOT_SUPPORTED
    assert backend.devices[0].headroom_bytes is Absent.NOT_SUPPORTED
    assert backend.gpus == ()
    assert (answer.recommended, answer.recommended_reason) == ("cpu", "no backend reaches a GPU here")


def test_a_platform_that_is_listed_twice_is_one() -> None:
    """Two .icd files that name one driver, and versions that differ, are still the same CPU once."""
    backend = opencl.backend_of(with_opencl(POCL, replace(POCL, version="PoCL 7.1")), machine())

    assert len(backend.devices) == 1


def test_two_cards_of_one_kind_are_two() -> None:
    """What tells them apart is their address; two alike without an address are still two."""
    alike = OpenclPlatform("AMD", "1", (gpu_device(""), gpu_device("")))
    apart = OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(), gpu_device("0000:02:00.0")))

    assert len(opencl.backend_of(with_opencl(alike), machine()).devices) == 2
    assert len(opencl.backend_of(with_opencl(apart), machine()).devices) == 2


def test_an_opencl_gpu_has_the_figures_of_the_snapshot() -> None:
    """Found by its address; a GPU that is in no snapshot has OpenCL's size, and no headroom."""
    known = opencl.backend_of(with_opencl(OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(),))), machine(RTX))
    foreign = opencl.backend_of(with_opencl(OpenclPlatform("X", "1", (gpu_device("0000:09:00.0"),))), machine(RTX))

    assert (known.devices[0].id, known.devices[0].headroom_bytes) == ("gpu0", 20 * GIB)
    assert foreign.devices[0].id is None
    assert foreign.devices[0].size_bytes == 25_000_000_000
    assert foreign.devices[0].headroom_bytes is Absent.NOT_SUPPORTED
    assert len(foreign.gpus) == 1


@pytest.mark.parametrize(
    ("answer", "drivers", "available", "words"),
    [
        (None, (), False, "no driver is installed"),
        (None, ("nvidia.icd",), Absent.NOT_AVAILABLE, "not asked"),
        (OpenclAnswer(failure="no_binding"), (), False, "no driver is installed"),
        (
            OpenclAnswer(failure="no_binding"),
            ("pocl.icd",),
            Absent.NOT_AVAILABLE,
            "pip install 'memwatchd[opencl]'",
        ),
        (OpenclAnswer(failure="no_platform", text="PLATFORM_NOT_FOUND_KHR"), (), False, "PLATFORM_NOT_FOUND_KHR"),
        (OpenclAnswer(failure="failed", text="it hung"), (), Absent.NOT_AVAILABLE, "asking failed: it hung"),
        (OpenclAnswer(), (), False, "no driver is installed"),
        (
            OpenclAnswer((OpenclPlatform("Clover", "1", (), "DEVICE_NOT_FOUND"),)),
            (),
            False,
            "Clover lists no device",
        ),
    ],
)
def test_opencl_says_why_it_does_not_work(
    answer: OpenclAnswer | None, drivers: tuple[str, ...], available: bool | Absent, words: str
) -> None:
    """A binding that is missing leaves open what drivers could do; a driver that is missing does not."""
    backend = opencl.backend_of(replace(EVIDENCE, opencl=answer, opencl_drivers=drivers), machine())

    assert backend.available is available
    assert words in backend.reason


def test_a_makers_own_backend_is_recommended_before_opencl() -> None:
    """OpenCL is for a GPU that nothing else reaches."""
    cards = with_opencl(OpenclPlatform("NVIDIA CUDA", "1", (gpu_device(),)))

    own = found(replace(cards, libcuda="/lib/libcuda.so.1"), machine(RTX))
    shared = found(cards, machine(RTX))

    assert (own.recommended, shared.recommended) == ("cuda", "opencl")
    assert own.recommended_reason == "the maker's own backend for NVIDIA GeForce RTX 4090"


def test_every_backend_has_a_verdict_and_a_reason() -> None:
    """Six, in one order, none without words."""
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
def test_one_address_is_written_in_two_ways(address: object, numbers: tuple[int, ...] | None) -> None:
    """NVML writes eight digits of the domain, sysfs four."""
    assert pci_numbers(address) == numbers
