"""The backends of a machine, and the recommended one: a rule for each, from the evidence and a snapshot.

CUDA needs a GPU that NVIDIA's driver lists, and libcuda.so.1. ROCm needs an AMD GPU, access to /dev/kfd, and a HIP
runtime. Metal is part of macOS. The memory size that OpenCL reports for a CPU is not used.

They are found on request, never on a tick: files are read, OpenCL is asked in a child process, and the evidence is
kept for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from memwatch.core.backends.devices import UNIFIED, compute_capacity, describe_state, read_system_ram
from memwatch.core.backends.model import (
    Backend,
    BackendDevice,
    Backends,
    OpenclDevice,
    OpenclPlatform,
    OpenclResult,
)
from memwatch.core.backends.probes import ProbeResults, gather
from memwatch.core.helper.codec import DecodeError, from_line
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Absent, Bytes, Device
from memwatch.core.snapshot import CollectorStatus, Snapshot

CHILD = "memwatch.core.backends.opencl_child"
DEADLINE_SECONDS = 10.0
CACHE_SECONDS = 60.0
Availability = tuple[bool | Absent, str]
# A vendor's own backend takes precedence over OpenCL.
PREFERENCE = (
    ("cuda", "the vendor's backend for {devices}"),
    ("rocm", "the vendor's backend for {devices}"),
    ("metal", "the vendor's backend for {devices}"),
    ("opencl", "the only known backend for {devices}"),
)
NO_GPU = "no backend supports a GPU of this machine"
NO_LIBRARY = (
    "libcuda.so.1 is not installed: install the driver package that contains it (libcuda1 on Debian), "
    "or pass it to the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)
NO_AMDGPU = "an AMD GPU is on the PCI bus, but its driver amdgpu is not loaded"
NO_KFD = (
    "/dev/kfd does not exist: the driver has no compute support for this GPU, or the container lacks the device "
    "(docker run --device /dev/kfd --device /dev/dri)"
)
NO_RUNTIME = (
    "ROCm is not installed (no /opt/rocm*/.info/version, no libamdhip64.so); "
    "programs that bundle it, such as PyTorch's builds for ROCm, do not need it"
)
NO_OPENCL_DRIVER = "no driver is installed (no .icd in /etc/OpenCL/vendors)"
NO_BINDING = "not probed: pyopencl is missing; to probe it, pip install pyopencl"
# Mesa's lavapipe and Google's SwiftShader run on the CPU.
ON_THE_CPU = ("lvp_icd", "vk_swiftshader")


class VendorRule(Struct, frozen=True):
    """Rule for the backend of a GPU vendor. `foreign`: a kernel driver that cannot run it, and `remedy`.

    `platform`: the only one that has it, and `elsewhere` the reason on others. `own_rule`: see `build_devices`.
    """

    name: str
    label: str
    vendor: str
    judge: Callable[[Sequence[Device], ProbeResults, Snapshot], Availability]
    foreign: str | None = None
    remedy: str = ""
    platform: str = ""
    elsewhere: str = ""
    own_rule: str | None = None

    def __call__(self, evidence: ProbeResults, snapshot: Snapshot) -> Backend:
        if self.platform not in ("", evidence.platform):
            return Backend(self.name, self.label, False, self.elsewhere)
        everyone = [device for device in snapshot.devices if device.vendor == self.vendor]
        devices = [device for device in everyone if device.driver != self.foreign]
        if everyone and not devices:
            what = f"uses the driver {self.foreign}, which does not support {self.label}"
            return Backend(self.name, self.label, False, f"{everyone[0].id} {what}: {self.remedy}")
        available, reason = self.judge(devices, evidence, snapshot)
        return Backend(self.name, self.label, available, reason, build_devices(devices, snapshot, self.own_rule))


def build_backends(evidence: ProbeResults, snapshot: Snapshot, age_seconds: float) -> Backends:
    backends = tuple(build_backend(name, evidence, snapshot) for name in RULES)
    name, reason = select_recommended(backends)
    return Backends(name, reason, age_seconds, backends)


def build_backend(name: str, evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    return RULES[name](evidence, snapshot)


def select_recommended(backends: Sequence[Backend]) -> tuple[str, str]:
    """Return (name of the recommended backend, reason)."""
    by_name = {backend.name: backend for backend in backends}
    for name, why in PREFERENCE:
        if gpus := by_name[name].gpus:
            return name, why.format(devices=join_names(gpus))
    unknown = ", ".join(backend.label for backend in backends if isinstance(backend.available, Absent))
    return "cpu", f"no known backend supports a GPU of this machine (unknown: {unknown})" if unknown else NO_GPU


def build_cpu(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    device = BackendDevice(None, evidence.cpu, "cpu", *read_system_ram(snapshot).room, unified=True)
    return Backend("cpu", "CPU", True, "always available", (device,))


def judge_cuda(devices: Sequence[Device], evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    if not devices:
        return not_found("nvml", "NVIDIA", snapshot)
    if not working(devices):
        return unusable(devices, ("nvml", "tegra"), snapshot)
    if evidence.libcuda is None:
        return False, NO_LIBRARY
    return True, ", ".join([*list_drivers(working(devices)), evidence.libcuda])


def judge_rocm(devices: Sequence[Device], evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    if not devices and not evidence.amd_on_pci:
        return False, "no AMD GPU was found"
    if not devices and not evidence.amdgpu_loaded:
        return False, NO_AMDGPU
    if devices and not working(devices):
        return unusable(devices, ("amdgpu", "drm"), snapshot)
    missing = missing_parts(evidence)
    if missing or evidence.rocm is None:
        return False, "; ".join(missing)
    version = evidence.rocm.version or "of unknown version"
    return True, f"ROCm {version}, {evidence.rocm.path}{for_whom(evidence)}"


def for_whom(evidence: ProbeResults) -> str:
    """Return a note if this process may not open /dev/kfd, but programs of its group may."""
    if evidence.kfd_permitted:
        return ""
    return f"; only for programs that may open /dev/kfd: group {evidence.kfd_group}"


def missing_parts(evidence: ProbeResults) -> list[str]:
    """Return everything that is missing, so that all of it can be fixed at once."""
    missing = []
    if not evidence.kfd:
        missing.append(NO_KFD)
    elif not evidence.kfd_permitted and not (evidence.for_others and evidence.kfd_group):
        missing.append(
            f"user {evidence.user} may not open /dev/kfd: add the user to its group (ls -l /dev/kfd), "
            "usually render"
        )
    if evidence.rocm is None:
        missing.append(NO_RUNTIME)
    return missing


def judge_metal(devices: Sequence[Device], _evidence: ProbeResults, _snapshot: Snapshot) -> Availability:
    return (True, "part of macOS") if devices else (Absent.NOT_AVAILABLE, "part of macOS, but no GPU was read")


def build_opencl(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    answer = evidence.opencl
    platforms = unique_platforms(answer.platforms) if answer else []
    devices = tuple(
        build_opencl_device(platform, device, snapshot) for platform in platforms for device in platform.devices
    )
    available, reason = judge_opencl(answer, platforms, devices, evidence.opencl_drivers)
    if platforms and evidence.closed and not any(device.kind == "gpu" for device in devices):
        reason += f"; user {evidence.user} may not open {evidence.closed}, so a GPU would not be found"
        available = available or (Absent.NOT_PERMITTED if evidence.for_others else False)
    return Backend("opencl", "OpenCL", available, reason, devices)


def judge_opencl(
    answer: OpenclResult | None,
    platforms: Sequence[OpenclPlatform],
    devices: Sequence[BackendDevice],
    drivers: Sequence[str],
) -> Availability:
    if answer is None:
        return not_queried("not probed: only possible on the machine itself", drivers)
    if answer.failure == "no_binding":
        return not_queried(NO_BINDING, drivers)
    if answer.failure == "no_platform":
        return False, f"no driver works ({answer.text})"
    if answer.failure:
        return Absent.NOT_AVAILABLE, f"probe failed: {answer.text}"
    if not devices:
        return False, "; ".join(empty(platforms)) or NO_OPENCL_DRIVER
    gpus = [device for device in devices if device.kind == "gpu"]
    if gpus:
        return True, join_names(gpus)
    if all(device.kind == "cpu" for device in devices):
        return True, f"CPU only ({platform_names(platforms)}), no GPU"
    return True, f"{join_names(devices)}, no GPU"


def not_queried(reason: str, drivers: Sequence[str]) -> Availability:
    if not drivers:
        return False, NO_OPENCL_DRIVER
    return Absent.NOT_AVAILABLE, f"{reason} (installed: {', '.join(drivers)})"


def empty(platforms: Sequence[OpenclPlatform]) -> Iterator[str]:
    for platform in platforms:
        yield f"{platform.name} lists no device" + (f" ({platform.failure})" if platform.failure else "")


def platform_names(platforms: Sequence[OpenclPlatform]) -> str:
    return ", ".join(dict.fromkeys(platform.name for platform in platforms if platform.devices))


def unique_platforms(platforms: Sequence[OpenclPlatform]) -> list[OpenclPlatform]:
    """Remove duplicates: two .icd files for one driver result in two platforms with the same devices."""
    unlike: dict[object, OpenclPlatform] = {}
    for platform in platforms:
        devices = tuple((device.name, device.kind, device.pci) for device in platform.devices)
        unlike.setdefault((platform.name, devices), platform)
    return list(unlike.values())


def build_devices(
    devices: Iterable[Device], snapshot: Snapshot, own_rule: str | None = None
) -> tuple[BackendDevice, ...]:
    """Convert devices. `own_rule`: the API (a key of `api_free_bytes`) whose own free memory limits allocations."""
    return tuple(build_device(device, snapshot, own_rule) for device in devices)


def build_device(device: Device, snapshot: Snapshot, own_rule: str | None = None) -> BackendDevice:
    return BackendDevice(
        id=device.id,
        name=device.name,
        kind="gpu",
        size_bytes=compute_capacity(device, snapshot),
        headroom_bytes=device.headroom_bytes,
        headroom_after_reclaim_bytes=device.headroom_after_reclaim_bytes,
        unified=UNIFIED.get(device.architecture, Absent.NOT_AVAILABLE),
        note=None if device.state == "ok" else describe_state(device),
        state=device.state,
        own_headroom_bytes=_own_headroom(device, own_rule),
    )


def _own_headroom(device: Device, rule: str | None) -> Bytes:
    """Return the free memory by an API's own rule, NOT_SUPPORTED only without such a rule."""
    if rule is None or rule not in device.api_free_bytes:
        return Absent.NOT_SUPPORTED
    free = device.api_free_bytes[rule]
    return Absent.NOT_AVAILABLE if free is Absent.NOT_SUPPORTED else free


def build_opencl_device(platform: OpenclPlatform, device: OpenclDevice, snapshot: Snapshot) -> BackendDevice:
    """Convert a device. A GPU that the snapshot lists gets the snapshot's values: OpenCL reports no used memory."""
    if device.kind == "cpu":
        note = f"a CPU, by {platform.name}; its memory is System RAM"
        nothing = Absent.NOT_SUPPORTED
        return BackendDevice(None, device.name, "cpu", nothing, nothing, nothing, device.unified, note)
    address = pci_numbers(device.pci)
    known = [one for one in snapshot.devices if address is not None and pci_numbers(one.pci) == address]
    if known and device.kind == "gpu":
        return build_device(known[0], snapshot)
    return BackendDevice(
        id=None,
        name=device.name,
        kind="gpu" if device.kind == "gpu" else "accelerator",
        size_bytes=device.global_memory_bytes,
        headroom_bytes=Absent.NOT_SUPPORTED,
        headroom_after_reclaim_bytes=Absent.NOT_SUPPORTED,
        unified=device.unified,
        note=f"by {platform.name}; OpenCL does not report free memory",
    )


def build_vulkan(evidence: ProbeResults, snapshot: Snapshot) -> Backend:
    """List installed drivers without loading them: a query needs an instance, which loads every driver, wakes
    suspended GPUs and may take 100 MB."""
    return Backend("vulkan", "Vulkan", *judge_vulkan(evidence, snapshot))


def judge_vulkan(evidence: ProbeResults, snapshot: Snapshot) -> Availability:
    installed = ", ".join(evidence.vulkan_drivers)
    if not installed:
        return False, "no driver is installed (no .json in /usr/share/vulkan/icd.d or /etc/vulkan/icd.d)"
    if all(name.startswith(ON_THE_CPU) for name in evidence.vulkan_drivers):
        return False, f"only drivers that run on the CPU are installed ({installed})"
    if snapshot.machine.architecture == "cpu_only":
        return False, f"drivers are installed ({installed}), but no GPU was found"
    return Absent.NOT_AVAILABLE, f"not probed: drivers are installed ({installed}), and loading them wakes GPUs"


def working(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.state == "ok"]


def unusable(devices: Sequence[Device], collectors: Sequence[str], snapshot: Snapshot) -> Availability:
    """Return the verdict if no known device works: absent for a stalled collector, False for lost devices."""
    states = ", ".join(f"{device.id} {describe_state(device)}" for device in devices)
    troubled = [one for one in snapshot.collectors if one.name in collectors and one.error]
    # A failing collector explains more than an unavailable one, which may never have worked.
    troubled.sort(key=lambda one: one.state == "unavailable")
    why = f": {troubled[0].error}" if troubled else ""
    silent = any(device.state == "stalled" for device in devices)
    return (Absent.STALE if silent else False), states + why


def not_found(collector: str, maker: str, snapshot: Snapshot) -> Availability:
    """Return the verdict if no device of a vendor is listed, from the state of its collector."""
    status = next((one for one in snapshot.collectors if one.name == collector), None)
    if status is None:
        return Absent.NOT_AVAILABLE, f"unknown: the collector {collector} for {maker} GPUs is not running"
    if status.state == "unavailable":
        return False, status.error or f"no {maker} GPU was found"
    if status.state == "ok":
        return False, f"the driver lists no {maker} GPU"
    return Absent.NOT_AVAILABLE, _silence(status)


def _silence(status: CollectorStatus) -> str:
    if status.state == "starting":
        return f"not known yet: the collector {status.name} is starting"
    return f"unknown: the collector {status.name} is {status.state}: {status.error}"


def list_drivers(devices: Sequence[Device]) -> list[str]:
    """Return the driver versions of these devices, if known."""
    return [f"driver {one}" for one in sorted({one.driver for one in devices if isinstance(one.driver, str)})]


def join_names(devices: Sequence[BackendDevice]) -> str:
    return ", ".join(dict.fromkeys(device.name for device in devices))


RULES: Mapping[str, Callable[[ProbeResults, Snapshot], Backend]] = {
    "cpu": build_cpu,
    "cuda": VendorRule(
        "cuda",
        "CUDA",
        "NVIDIA",
        judge_cuda,
        foreign="nouveau",
        remedy="install NVIDIA's driver",
        platform="linux",
        elsewhere="detected on Linux only",
    ),
    # On an APU ROCm uses either VRAM or GTT, depending on the kernel version.
    "rocm": VendorRule(
        "rocm", "ROCm", "AMD", judge_rocm, foreign="radeon", remedy="it needs amdgpu", own_rule="rocm"
    ),
    "metal": VendorRule("metal", "Metal", "Apple", judge_metal, platform="darwin", elsewhere="macOS only"),
    "opencl": build_opencl,
    "vulkan": build_vulkan,
}


def ask_opencl(argv: Sequence[str] | None = None, deadline_seconds: float = DEADLINE_SECONDS) -> OpenclResult:
    """Query OpenCL in a short-lived child process, `CHILD` by default. A hang or a crash becomes a failure."""
    # For programs that only judge a snapshot: these import subprocess.
    from memwatch.core.helper.process import python_child
    from memwatch.core.helper.supervisor import Helper, HelperError

    helper = Helper(argv or python_child(CHILD), deadline_seconds, pause_seconds=0.0)
    try:
        return from_line(OpenclResult, helper.ask(b"ask"))
    except (HelperError, DecodeError) as error:
        return OpenclResult(failure="failed", text=str(error))
    finally:
        helper.stop()


class Finder:
    """Finds the backends of one machine. Not thread-safe. The first call takes up to ten seconds.

    OpenCL only reports on the machine that this process runs on. It is not queried if `roots` is another one.
    """

    def __init__(
        self, roots: Roots, ask: Callable[[], OpenclResult] = ask_opencl, for_others: bool = False
    ) -> None:
        """`for_others`: the result is used by programs of other users."""
        self._roots, self._for_others = roots, for_others
        self._ask = ask if roots.rootfs == Path("/") else None
        self._probe_results: ProbeResults | None = None
        self._at = 0.0

    def find(self, snapshot: Snapshot) -> Backends:
        """Return every backend: memory from the snapshot, all else at most a minute old."""
        if self._probe_results is None or time.monotonic() - self._at >= CACHE_SECONDS:
            self._probe_results = gather(self._roots, self._ask, for_others=self._for_others)
            self._at = time.monotonic()
        return build_backends(self._probe_results, snapshot, round(time.monotonic() - self._at, 3))
