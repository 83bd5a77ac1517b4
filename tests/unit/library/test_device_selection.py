"""Test which GPU a name means, by environment, container and running framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.compose import VENDORS
from memwatch.core.linux.files import Roots
from memwatch.core.model import Architecture, Device
from memwatch.core.snapshot import CollectorStatus
from memwatch.core.wire import to_bytes
from memwatch.library.device_selection import find_target, hidden_devices
from memwatch.library.machine_record import GPU_COLLECTORS, decode_machine, from_snapshot
from memwatch.library.visible_gpus import DeviceError, Program
from memwatch.reporting.render.json import snapshot_json
from support.sample_snapshots import discrete_gpu


def gpu(number: int, vendor: str = "NVIDIA", name: str = "", instances: Mapping[int, str] | None = None) -> Device:
    shares = tuple(f"gpu{number}.mig{one}" for one in instances or ())
    mig = {"mig": "enabled"} | {f"mig_{one}": uuid for one, uuid in (instances or {}).items()}
    return Device(
        f"gpu{number}",
        vendor,
        name or f"{vendor} GPU",
        Architecture.DISCRETE,
        uuid=f"GPU-0000000{number}-aaaa" if vendor == "NVIDIA" else f"abcd00000000000{number}",
        pci=f"0000{'0000' if vendor == 'NVIDIA' else ''}:0{number + 1}:00.0",
        allocates_from=shares or (f"gpu{number}",),
        details=mig if instances is not None else {},
    )


NVIDIA = tuple(gpu(number) for number in range(4))
AMD = tuple(gpu(number, "AMD") for number in range(3))
UNLIKE = (gpu(0, name="NVIDIA T400"), gpu(1, name="NVIDIA H100"))
MIXED = (gpu(0, "Intel"), gpu(1, "AMD"), gpu(2))
FIRST_MIG, SECOND_MIG = "MIG-11111111-bbbb", "MIG-22222222-bbbb"
SLICED = (gpu(0), gpu(1, instances={2: f"{FIRST_MIG}, MIG-11111112-bbbb", 9: SECOND_MIG}), gpu(2, instances={}))


def program(folder: Path | None = None, outside: bool = False, modules: Any = None, **environ: str) -> Program:
    here = folder or Path("/nonexistent")
    return Program(environ, modules or {}, Roots(here / "proc", here / "sys", here / "root"), outside)


def found(wanted: object, devices: tuple[Device, ...], here: Program) -> str | None:
    target = find_target(wanted, devices, here)
    return None if target is None else target.id


def refusal(wanted: object, devices: tuple[Device, ...], here: Program) -> str:
    with pytest.raises(DeviceError) as error:
        find_target(wanted, devices, here)
    return str(error.value)


def test_reordered_list_gives_the_gpu_that_cuda_means() -> None:
    here = program(CUDA_VISIBLE_DEVICES="3,1")

    assert [found(name, NVIDIA, here) for name in ("cuda", "cuda:0", "cuda:1", 1)] == [
        "gpu3",
        "gpu3",
        "gpu1",
        "gpu1",
    ]
    assert [found(name, NVIDIA, here) for name in ("gpu0", "GPU-00000002", "0000:03:00.0")] == [
        "gpu0",
        "gpu2",
        "gpu2",
    ]
    assert found("cpu", NVIDIA, here) is found(None, NVIDIA, here) is None


def test_missing_device_is_an_error_by_name() -> None:
    listed = program(CUDA_VISIBLE_DEVICES="3,1")

    assert refusal("cuda:2", NVIDIA, listed) == (
        'device is "cuda:2", and this program sees with CUDA_VISIBLE_DEVICES="3,1": cuda:0 (gpu3), cuda:1 (gpu1); '
        "for example gpu0"
    )
    assert "sees: cuda:0 (gpu0)" in refusal("cuda:9", NVIDIA, program())
    assert 'CUDA_VISIBLE_DEVICES="": none' in refusal(0, NVIDIA, program(CUDA_VISIBLE_DEVICES=""))
    assert "is not one of gpu0, gpu1, gpu2, gpu3" in refusal("gpu7", NVIDIA, program())
    assert "there is no Intel GPU here" in refusal("xpu:0", NVIDIA, program())
    assert "this machine has no GPU" in refusal("mps", (), program())


def test_unlike_gpus_have_no_known_order_before_cuda_starts() -> None:
    by_address = program(CUDA_DEVICE_ORDER="PCI_BUS_ID")

    assert "NVIDIA H100 and NVIDIA T400 is known only to CUDA" in refusal("cuda:0", UNLIKE, program())
    assert found("cuda:0", UNLIKE, by_address) == "gpu0"
    assert found("cuda:0", UNLIKE, program(CUDA_VISIBLE_DEVICES="GPU-00000001")) == "gpu1"
    assert found("gpu1", UNLIKE, program()) == "gpu1"
    assert hidden_devices(UNLIKE, program(CUDA_VISIBLE_DEVICES="0")) == {}


def test_mig_instance_is_the_only_device() -> None:
    """By UUID, by the form of old drivers, or the first one among the visible GPUs."""
    assert found("cuda:0", SLICED, program(CUDA_VISIBLE_DEVICES=f"{SECOND_MIG},{FIRST_MIG}")) == "gpu1.mig9"
    assert found("cuda:0", SLICED, program(CUDA_VISIBLE_DEVICES="MIG-11111112")) == "gpu1.mig2"
    old = program(CUDA_VISIBLE_DEVICES="MIG-GPU-00000001-aaaa/9/0")
    assert found("cuda:0", SLICED, old) == "gpu1.mig9"
    assert found("cuda:0", SLICED, program()) == "gpu1.mig2"
    assert found(SECOND_MIG, SLICED, program()) == found("gpu1.mig9", SLICED, program()) == "gpu1.mig9"
    assert found("cuda:0", SLICED, program(CUDA_VISIBLE_DEVICES="0,2")) == "gpu0"
    assert "sees" in refusal("cuda:1", SLICED, program())
    unnamed = (gpu(0, instances={2: ""}),)
    assert "reports no UUIDs of MIG" in refusal("cuda:0", unnamed, program(CUDA_VISIBLE_DEVICES=FIRST_MIG))


def test_amd_lists_are_applied_one_after_the_other() -> None:
    """ROCR_VISIBLE_DEVICES first. PyTorch names AMD's GPUs cuda, and CUDA_VISIBLE_DEVICES applies to them."""
    both = program(ROCR_VISIBLE_DEVICES="2,GPU-abcd000000000000", HIP_VISIBLE_DEVICES="1")

    assert found("cuda:0", AMD, both) == found("hip:0", AMD, both) == found(0, AMD, both) == "gpu0"
    assert found("cuda:0", AMD, program(CUDA_VISIBLE_DEVICES="2")) == "gpu2"
    assert found("cuda:0", AMD, program(CUDA_VISIBLE_DEVICES="2", HIP_VISIBLE_DEVICES="1")) == "gpu1"
    assert 'ROCR_VISIBLE_DEVICES="": none' in refusal("hip:0", AMD, program(ROCR_VISIBLE_DEVICES=""))


def test_each_framework_counts_its_own_gpus() -> None:
    assert [found(name, MIXED, program()) for name in ("xpu:0", "hip:0", "cuda:0", 0)] == [
        "gpu0",
        "gpu1",
        "gpu2",
        "gpu2",
    ]
    rocm = program(modules={"torch": SimpleNamespace(version=SimpleNamespace(hip="6.2"))})
    assert found("cuda:0", MIXED, rocm) == "gpu1"
    assert hidden_devices(MIXED, program(CUDA_VISIBLE_DEVICES="")) == {"gpu2": 'CUDA_VISIBLE_DEVICES=""'}


def test_intel_gpus_follow_the_affinity_mask() -> None:
    cards = (gpu(0, "Intel"), gpu(1, "Intel"))
    unlike = (gpu(0, "Intel", "Arc"), gpu(1, "Intel", "Iris"))

    assert found("xpu", cards, program(ZE_AFFINITY_MASK="1")) == "gpu1"
    assert "known only to Level Zero" in refusal("xpu:0", unlike, program())
    assert found("xpu:1", unlike, program(ZE_ENABLE_PCI_ID_DEVICE_ORDER="1")) == "gpu1"
    assert "does not evaluate" in refusal("xpu:0", cards, program(ONEAPI_DEVICE_SELECTOR="opencl:gpu"))
    assert found("mps", (gpu(0, "Apple"),), program()) == "gpu0"


class Torch:
    """PyTorch by the names that it has, with GPUs by UUID or PCI address."""

    version = SimpleNamespace(hip=None)

    def __init__(self, *properties: Mapping[str, object], started: bool = True) -> None:
        self.properties = properties
        self.cuda = self
        self.started = started

    def is_initialized(self) -> bool:
        return self.started

    def device_count(self) -> int:
        return len(self.properties)

    def current_device(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> SimpleNamespace:
        assert self.started
        return SimpleNamespace(**self.properties[index])


def test_running_torch_is_asked() -> None:
    """It has read the variables already; the program may have changed them since."""
    by_address = {"pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0}
    torch = Torch({"uuid": "00000001-aaaa"}, by_address)
    here = program(modules={"torch": torch}, CUDA_VISIBLE_DEVICES="0")

    assert [found(name, UNLIKE, here) for name in ("cuda:0", "cuda:1", "cuda")] == ["gpu1", "gpu0", "gpu0"]
    assert "PyTorch has 2 in this program" in refusal("cuda:2", UNLIKE, here)
    sliced = program(modules={"torch": Torch({"uuid": SECOND_MIG.removeprefix("MIG-")})})
    assert found("cuda:0", SLICED, sliced) == "gpu1.mig9"
    not_started = program(modules={"torch": Torch({}, started=False)}, CUDA_VISIBLE_DEVICES="3")
    assert found("cuda:0", NVIDIA, not_started) == "gpu3"


def test_container_has_the_gpus_it_was_given(tmp_path: Path) -> None:
    """With a daemon outside: by the list, which does not change the order, then by CUDA's within it."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.dockerenv").touch()

    def inside(outside: bool = True, **environ: str) -> Program:
        return program(tmp_path, outside, **environ)

    assert found("cuda:0", NVIDIA, inside(NVIDIA_VISIBLE_DEVICES="3,1")) == "gpu1"
    both = inside(NVIDIA_VISIBLE_DEVICES="GPU-00000003,GPU-00000001", CUDA_VISIBLE_DEVICES="1")
    assert found("cuda:0", NVIDIA, both) == "gpu3"
    assert "NVIDIA_VISIBLE_DEVICES" in refusal("cuda:0", NVIDIA, inside(NVIDIA_VISIBLE_DEVICES="none"))
    assert found("cuda:0", NVIDIA, inside(outside=False, NVIDIA_VISIBLE_DEVICES="3")) == "gpu0"
    assert found("cuda:0", NVIDIA[2:], inside(NVIDIA_VISIBLE_DEVICES="2,3")) == "gpu2"
    assert found("cuda:0", SLICED, inside(NVIDIA_VISIBLE_DEVICES=SECOND_MIG)) == "gpu1.mig9"
    assert found("cuda:0", NVIDIA, program(outside=True, NVIDIA_VISIBLE_DEVICES="3")) == "gpu0"


@pytest.mark.parametrize(
    ("given", "share", "owner"),
    [(FIRST_MIG, "gpu0.mig2", "gpu0"), (SECOND_MIG, "gpu1.mig2", "gpu1")],
)
def test_mig_instance_of_a_container_belongs_to_its_own_gpu(
    tmp_path: Path, given: str, share: str, owner: str
) -> None:
    """Two GPUs are divided, and the container has an instance of one."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.dockerenv").touch()
    divided = (gpu(0, instances={2: FIRST_MIG}), gpu(1, instances={2: SECOND_MIG}))

    target = find_target("cuda:0", divided, program(tmp_path, outside=True, NVIDIA_VISIBLE_DEVICES=given))

    assert target is not None
    assert (target.id, target.device.id) == (share, owner)


def container_with_device_file(folder: Path) -> None:
    """Write the files of a container with the GPU at 0000:03:00.0, of two."""
    (folder / "root/dev").mkdir(parents=True)
    (folder / "root/.dockerenv").touch()
    (folder / "root/dev/nvidia5").touch()
    for address, minor in (("0000:01:00.0", 4), ("0000:03:00.0", 5)):
        gpu_folder = folder / "proc/driver/nvidia/gpus" / address
        gpu_folder.mkdir(parents=True)
        (gpu_folder / "information").write_text(f"Model: \t\t NVIDIA GPU\nDevice Minor: \t {minor}\n")


def test_device_files_of_a_container_decide(tmp_path: Path) -> None:
    """With CDI the variable is "void"."""
    container_with_device_file(tmp_path)

    assert found("cuda:0", NVIDIA, program(tmp_path, outside=True, NVIDIA_VISIBLE_DEVICES="void")) == "gpu2"


def test_device_files_are_not_looked_up_while_a_gpu_is_suspended(tmp_path: Path) -> None:
    """The driver resumes a GPU whose file `information` is read."""
    container_with_device_file(tmp_path)
    power = tmp_path / "sys/bus/pci/devices/0000:01:00.0/power"
    power.mkdir(parents=True)
    (power / "runtime_status").write_text("suspended\n")
    sleepy = program(tmp_path, outside=True, NVIDIA_VISIBLE_DEVICES="void")

    asleep = found("cuda:0", NVIDIA, sleepy)
    (power / "runtime_status").write_text("active\n")

    newer = NVIDIA[:3]  # of a later reading
    assert (asleep, found("cuda:0", newer, sleepy)) == ("gpu0", "gpu2")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (CollectorStatus("nvml", "starting"), "nvml has not answered yet"),
        (CollectorStatus("nvml", "failing", error="it crashed\n"), "nvml is failing: it crashed\\u000a"),
        (CollectorStatus("nvml", "unavailable", error="no driver"), ""),
        (CollectorStatus("nvml", "ok"), ""),
        (CollectorStatus("processes", "starting"), ""),
    ],
)
@pytest.mark.parametrize("by_daemon", [False, True])
def test_gpu_is_absent_only_where_its_collector_has_answered(
    by_daemon: bool, status: CollectorStatus, why: str
) -> None:
    snapshot = replace(discrete_gpu(), collectors=(status,), devices=())
    here = decode_machine(json.loads(to_bytes(snapshot_json(snapshot)))) if by_daemon else from_snapshot(snapshot)
    with pytest.raises(DeviceError) as refused:
        here.find("gpu0")

    assert here.why_unread == why
    expected = (
        f"and it is not known if there is one: {why}" if why else "but this machine has no GPU; for example cpu"
    )
    assert str(refused.value) == f'device is "gpu0", {expected}'


def test_missing_device_beside_a_silent_driver_may_be_there() -> None:
    snapshot = replace(discrete_gpu(), collectors=(CollectorStatus("amdgpu", "starting"),))
    with pytest.raises(DeviceError, match=r"; for example gpu0; more may be there: amdgpu has not answered yet$"):
        from_snapshot(snapshot).find("gpu7")


def test_collectors_that_find_gpus_are_those_of_their_accounting() -> None:
    assert {name for vendor in VENDORS for name in vendor.readings} == GPU_COLLECTORS
