"""GPUs that a program sees, in the order in which its framework counts them, and the names by which it means them.

The order follows from the environment and the container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from memwatch.core.linux.cgroups import in_container
from memwatch.core.linux.files import Roots, names_in, read_once
from memwatch.core.linux.pci import is_awake, pci_numbers
from memwatch.core.model import Device
from memwatch.planning.arguments import InvalidInputError, refuse

# Kinds of names. ANY_GPU: a number without a framework. ID: one GPU of the machine, by its id, UUID or PCI address.
CPU, CUDA, HIP, XPU, MPS, ANY_GPU, ID = "cpu", "cuda", "hip", "xpu", "mps", "gpu", "id"
SPELLINGS = {
    "cpu": CPU,
    "cuda": CUDA,
    "hip": HIP,
    "rocm": HIP,
    "xpu": XPU,
    "sycl": XPU,
    "mps": MPS,
    "metal": MPS,
    "gpu": ANY_GPU,
}
# TensorFlow writes /device:GPU:0.
NAME = re.compile(rf"(?:/device:)?({'|'.join(SPELLINGS)})(?::(\d{{1,4}}))?", re.IGNORECASE | re.ASCII)
NUMBER = re.compile(r"\d{1,4}", re.ASCII)
MAX_SHOWN = 80


class DeviceError(InvalidInputError):
    """A device that does not exist, is hidden from this program, or is not known. The message says which."""


class DeviceName(NamedTuple):
    """A device's name as programs write it: `cuda:0`, `torch.device("xpu")`, `mps`, 0, `gpu0`, a UUID.

    `number`: None if the name has none, as in "cuda".
    """

    text: str
    kind: str
    number: int | None = None


def check_device(value: object, name: str = "device") -> str:
    """Return a device as its framework writes it. None is the CPU. Raises InvalidInputError for what is no name."""
    if value is None:
        return CPU
    text = "" if isinstance(value, bool | float | bytes) else str(value).strip()
    if not text[:1].isalnum():
        raise refuse(value, name, "the name of a device", '"cuda:0"')
    return text


def parse_name(wanted: object) -> DeviceName:
    """Parse a name, a number or a framework's device object. None is the CPU."""
    text = "cpu" if wanted is None else str(wanted).strip()[:MAX_SHOWN]
    if NUMBER.fullmatch(text):
        return DeviceName(text, ANY_GPU, int(text))
    match = NAME.fullmatch(text)
    if match is None:
        return DeviceName(text, ID)
    return DeviceName(text, SPELLINGS[match[1].lower()], int(match[2]) if match[2] else None)


# Rules of the variables that choose and order a program's GPUs. Pure functions of a value and the GPUs' UUIDs.
#
# Each returns the numbers of the visible GPUs, in the order in which the framework counts them.

LEADING_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
CANONICAL_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
# Length of "GPU-" and 16 hexadecimal digits.
ROCR_UUID = range(5, 21)


def select_cuda(value: str, uuids: Sequence[str]) -> list[int]:
    """Apply CUDA_VISIBLE_DEVICES: indexes, or UUIDs with the prefix of the first entry (GPU- or MIG-).

    The first invalid entry ends the list, and empty means none:
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html. UUIDs may be
    abbreviated while they are unambiguous. A repeated entry leaves no GPU, and text after a number is ignored, as
    PyTorch's `torch.cuda._parse_visible_devices` has it.
    """
    prefix = next((one for one in ("GPU-", "MIG-") if value.strip().startswith(one)), "")
    find: Callable[[str], int] = partial(_find_with_prefix, prefix=prefix, uuids=uuids) if prefix else _number
    found: list[int] = []
    for entry in map(str.strip, value.split(",")):
        index = find(entry)
        if not 0 <= index < len(uuids):
            break
        if index in found:
            return []
        found.append(index)
    return found


def select_rocr(value: str, uuids: Sequence[str]) -> list[int]:
    """Apply ROCR_VISIBLE_DEVICES: indexes and UUIDs (GPU- and 16 hexadecimal digits); empty means none.

    The first invalid or repeated entry ends the list, as in ROCR-Runtime's amd_filter_device.cpp;
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html.
    """
    upper, found = [uuid.upper() for uuid in uuids], list[int]()
    for entry in (one.strip().upper() for one in value.split(",")):
        index = _find_uuid(entry, upper) if entry.startswith("G") and len(entry) in ROCR_UUID else _index(entry)
        if not 0 <= index < len(uuids) or index in found:
            break
        found.append(index)
    return found


def select_hip(value: str, uuids: Sequence[str]) -> list[int]:
    """Apply HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES on AMD, to the GPUs that ROCR_VISIBLE_DEVICES leaves.

    The first invalid entry ends the list and repeated ones count once, as in clr's rocdevice.cpp;
    https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html.
    """
    upper, found = [uuid.upper() for uuid in uuids], list[int]()
    for entry in value.split(","):
        index = upper.index(entry.upper()) if entry.upper() in upper and entry else _index(entry)
        if not 0 <= index < len(uuids):
            break
        found += [index] if index not in found else []
    return found


def select_level_zero(value: str, count: int) -> list[int]:
    """Apply ZE_AFFINITY_MASK: a set of indexes, which does not change the order.

    https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask. Raises DeviceError
    for a tile (0.1): no driver reports the memory of one tile.
    """
    entries = [entry.strip() for entry in value.split(",")]
    if any("." in entry for entry in entries):
        raise DeviceError(
            f'ZE_AFFINITY_MASK is "{value[:80]}", which names tiles, and the memory of one tile is not known; '
            "name whole devices, for example ZE_AFFINITY_MASK=0"
        )
    wanted = {_index(entry) for entry in entries}
    return [index for index in range(count) if index in wanted]


def select_container(value: str, uuids: Sequence[str]) -> list[int]:
    """Apply NVIDIA_VISIBLE_DEVICES: indexes as in nvidia-smi and UUIDs, as a set; "none" is none, "all" is all.

    https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html.
    """
    if value in ("all", "none"):
        return list(range(len(uuids))) if value == "all" else []
    entries = [entry.strip() for entry in value.split(",")]
    wanted = {
        _find_uuid(entry, uuids) if entry.startswith(("GPU-", "MIG-")) else _index(entry) for entry in entries
    }
    return [index for index in range(len(uuids)) if index in wanted]


def _find_uuid(entry: str, uuids: Sequence[str]) -> int:
    """Return the number of the only UUID that starts with `entry`, else -1."""
    found = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return found[0] if len(found) == 1 else -1


def _find_with_prefix(entry: str, prefix: str, uuids: Sequence[str]) -> int:
    return _find_uuid(entry, uuids) if entry.startswith(prefix) else -1


def _number(entry: str) -> int:
    match = LEADING_NUMBER.match(entry)
    return int(match[0]) if match else -1


def _index(entry: str) -> int:
    return int(entry) if CANONICAL_NUMBER.fullmatch(entry) else -1


VENDORS = {CUDA: "nvidia", HIP: "amd", XPU: "intel", MPS: "apple"}
# States of GPUs that no framework lists.
GONE = frozenset({"missing", "lost"})
CUDA_LIST, CUDA_ORDER, CONTAINER_LIST = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"
ROCR_LIST, HIP_LIST, ZE_MASK = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
SYCL_SELECTOR, ZE_ORDER = "ONEAPI_DEVICE_SELECTOR", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
VARIABLES = (CUDA_LIST, CUDA_ORDER, CONTAINER_LIST, ROCR_LIST, HIP_LIST, ZE_MASK, SYCL_SELECTOR, ZE_ORDER)
ALL_OF_SYCL = frozenset({"", "*:*", "*:gpu", "level_zero:*", "level_zero:gpu"})
# MIG-GPU-<UUID>/<GPU instance>/<compute instance>, of drivers before R470.
OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{1,40})/(\d{1,3})/\d{1,3}", re.ASCII)
DEVICE_MINOR = re.compile(rb"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)


class Program(NamedTuple):
    """A process: its environment, its imported modules, and the root folders of the files that it sees.

    `is_read_outside`: another process, a daemon, has read the GPUs, perhaps outside of this container.
    """

    environ: Mapping[str, str]
    modules: Mapping[str, Any]
    roots: Roots
    is_read_outside: bool


class Target(NamedTuple):
    """A GPU, or the share of one of its MIG instances."""

    device: Device
    instance: str = ""

    @property
    def id(self) -> str:
        return self.instance or self.device.id

    @property
    def identity(self) -> str | None:
        """UUID of the GPU or MIG instance, else the PCI address of the GPU: the same for every program."""
        if self.instance:
            uuids = dict(build_gpu(self.device).instances)
            return uuids.get(self.instance) or None
        return next((one for one in (self.device.uuid, self.device.pci) if isinstance(one, str) and one), None)


class Gpu(NamedTuple):
    """A GPU and the MIG devices that the program sees of it, as (id of the share, UUID)."""

    device: Device
    instances: tuple[tuple[str, str], ...] = ()

    @property
    def is_mig(self) -> bool:
        return bool(self.instances) or self.device.details.get("mig") == "enabled"


class VisibleGpus(NamedTuple):
    """GPUs in the framework's order. `because`: the variables that decided it, as NAME="value"."""

    targets: tuple[Target, ...]
    because: str


def find_visible_gpus(kind: str, devices: Sequence[Device], program: Program) -> VisibleGpus:
    """Return the GPUs of one kind. Raises DeviceError if their order is known to the framework only."""
    gpus = [build_gpu(one) for one in devices if one.vendor.lower() == VENDORS[kind] and one.state not in GONE]
    if kind == CUDA:
        return _find_cuda(gpus, program)
    if kind == HIP:
        return _find_hip(gpus, program)
    return _find_level_zero(gpus, program) if kind == XPU else VisibleGpus(tuple(map(_whole, gpus)), "")


def build_gpu(device: Device) -> Gpu:
    shares = [place for place in device.allocates_from if place.startswith(f"{device.id}.mig")]
    return Gpu(device, tuple((share, uuid) for share in shares for uuid in _uuids_of(device, share)))


def _uuids_of(device: Device, share: str) -> list[str]:
    """Return the UUIDs of a GPU instance's compute instances, one empty one if they are not known."""
    return device.details.get(share.rpartition(".")[2].replace("mig", "mig_"), "").split(", ")


def _whole(gpu: Gpu) -> Target:
    return Target(gpu.device)


def _quote(program: Program, *names: str) -> str:
    return ", ".join(f'{name}="{program.environ[name][:80]}"' for name in names if name in program.environ)


def _find_cuda(gpus: list[Gpu], program: Program) -> VisibleGpus:
    """Apply container, CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES.

    FASTEST_FIRST, the default, is a heuristic of CUDA. GPUs of one model are then in the order of their addresses:
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html.
    """
    gpus, by_container = _limit_to_container(gpus, program)
    because = ", ".join(filter(None, (_quote(program, CUDA_LIST), by_container)))
    value = program.environ.get(CUDA_LIST)
    if value is not None and value.strip().startswith("MIG-"):
        return VisibleGpus(_find_mig(value.strip(), gpus), because)
    uuids = [str(gpu.device.uuid) for gpu in gpus]
    chosen = gpus if value is None else [gpus[index] for index in select_cuda(value, uuids)]
    if chosen and not (value or "").strip().startswith("GPU-"):
        _check_cuda_order(gpus, program)
    return VisibleGpus(_without_other_instances(chosen), because)


def _check_cuda_order(gpus: Sequence[Gpu], program: Program) -> None:
    if program.environ.get(CUDA_ORDER) != "PCI_BUS_ID" and _are_unlike(gpus):
        raise DeviceError(
            f"the order of {_list_models(gpus)} is known only to CUDA before it has started; "
            f"set {CUDA_ORDER}=PCI_BUS_ID, or name a GPU by id or UUID, for example {gpus[0].device.id}"
        )


def _are_unlike(gpus: Sequence[Gpu]) -> bool:
    return len({gpu.device.name for gpu in gpus}) > 1


def _list_models(gpus: Iterable[Gpu]) -> str:
    return " and ".join(sorted({gpu.device.name for gpu in gpus}))


def _find_mig(value: str, gpus: Sequence[Gpu]) -> tuple[Target, ...]:
    """Return the first MIG device of a list: a process sees one.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html
    """
    old = OLD_MIG.match(value)
    if old:
        places = {(str(gpu.device.uuid), share): gpu for gpu in gpus for share, _ in gpu.instances}
        found = [(gpu, share) for (uuid, share), gpu in places.items() if uuid == old[1]]
        return tuple(Target(gpu.device, share) for gpu, share in found if share.endswith(f".mig{old[2]}"))
    listed = [(gpu, share, uuid) for gpu in gpus for share, uuid in gpu.instances]
    if listed and not any(uuid for _, _, uuid in listed):
        raise DeviceError(f'{CUDA_LIST} is "{value[:80]}", and this daemon reports no UUIDs of MIG; update it')
    chosen = select_cuda(value, [uuid for _, _, uuid in listed])
    return tuple(Target(listed[index][0].device, listed[index][1]) for index in chosen[:1])


def _without_other_instances(gpus: Sequence[Gpu]) -> tuple[Target, ...]:
    """Apply CUDA's rule for MIG: with a MIG device among the GPUs, a process sees the first one and nothing else.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html
    """
    first = next((Target(gpu.device, gpu.instances[0][0]) for gpu in gpus if gpu.instances), None)
    return (first,) if first else tuple(_whole(gpu) for gpu in gpus if not gpu.is_mig)


def _limit_to_container(gpus: list[Gpu], program: Program) -> tuple[list[Gpu], str]:
    """Return the GPUs of this program's container, if the GPUs were read outside of it.

    The container's device files decide, else NVIDIA_VISIBLE_DEVICES. It says nothing where it is "void" or a path.
    While a GPU is suspended, its file is not known, as the driver would wake it to tell its number.
    """
    if not program.is_read_outside or not is_contained(program.roots):
        return gpus, ""
    own = frozenset() if is_any_asleep(program.roots) else read_device_files(program.roots)
    if own:
        return [gpu for gpu in gpus if pci_numbers(gpu.device.pci) in own], "this container's /dev/nvidia files"
    value = program.environ.get(CONTAINER_LIST, "")
    if value in ("", "void") or value.startswith("/"):
        return gpus, ""
    return _select_for_container(value, gpus), _quote(program, CONTAINER_LIST)


def _select_for_container(value: str, gpus: list[Gpu]) -> list[Gpu]:
    if "none" not in value and len(value.split(",")) == len(gpus) and "MIG" not in value:
        return gpus  # a daemon in the same container, where the GPUs have other numbers
    listed = [(gpu, pair) for gpu in gpus for pair in gpu.instances]
    chosen = select_container(value, [*(str(gpu.device.uuid) for gpu in gpus), *(pair[1] for _, pair in listed)])
    whole = {index for index in chosen if index < len(gpus)}
    own = [listed[index - len(gpus)] for index in chosen if index >= len(gpus)] if value != "all" else []
    kept = []
    for index, gpu in enumerate(gpus):
        instances = tuple(pair for owner, pair in own if owner is gpu)
        kept += [gpu] if index in whole else [gpu._replace(instances=instances)] if instances else []
    return kept


@lru_cache(maxsize=4)
def is_contained(roots: Roots) -> bool:
    return in_container(roots)


def is_any_asleep(roots: Roots) -> bool:
    devices = roots.sysfs / "bus/pci/devices"
    return any(not is_awake(devices / address) for address in names_in(roots.procfs / "driver/nvidia/gpus"))


@lru_cache(maxsize=4)
def read_device_files(roots: Roots) -> frozenset[tuple[int, ...] | None]:
    """Return the PCI addresses of the NVIDIA GPUs that have a file /dev/nvidia0, …, by the driver's /proc files."""
    folder, found = roots.procfs / "driver/nvidia/gpus", set()
    for address in names_in(folder):
        minor = DEVICE_MINOR.search(read_once(folder / address / "information") or b"")
        if minor and os.path.exists(roots.rootfs / f"dev/nvidia{int(minor[1])}"):
            found.add(pci_numbers(address))
    return frozenset(found)


def _find_hip(gpus: list[Gpu], program: Program) -> VisibleGpus:
    """Apply ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES or, if that is empty, CUDA_VISIBLE_DEVICES.

    https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html
    """
    rocr = program.environ.get(ROCR_LIST)
    name = HIP_LIST if program.environ.get(HIP_LIST) else CUDA_LIST
    found = _in_node_order(gpus, program.roots)
    if rocr is not None:
        found = [found[index] for index in select_rocr(rocr, _rocr_uuids(found))]
    if program.environ.get(name):
        found = [found[index] for index in select_hip(program.environ[name], _rocr_uuids(found))]
    return VisibleGpus(tuple(map(_whole, found)), _quote(program, ROCR_LIST, name))


def _rocr_uuids(gpus: Iterable[Gpu]) -> list[str]:
    """Return UUIDs as rocminfo shows them. They are the driver's unique_id."""
    found = [gpu.device.uuid for gpu in gpus]
    return [f"GPU-{uuid.removeprefix('GPU-')}" if isinstance(uuid, str) else "" for uuid in found]


def _in_node_order(gpus: list[Gpu], roots: Roots) -> list[Gpu]:
    """Sort by the compute driver's nodes, as ROCm does. A partitioned GPU has a node for each partition.

    GPUs without a node are unknown to ROCm. In a container the nodes of other GPUs cannot be read.
    """
    by_address = {str(gpu.device.pci): gpu for gpu in gpus}
    order = _read_node_order(roots, tuple(by_address))
    return [by_address[address] for address in order] or gpus


@lru_cache(maxsize=4)
def _read_node_order(roots: Roots, addresses: tuple[str, ...]) -> tuple[str, ...]:
    from memwatch.core.drivers.amd.amdgpu_cards import read_nodes

    return tuple(node.pci for node in read_nodes(roots.sysfs / "class/kfd/kfd/topology", addresses))


def _find_level_zero(gpus: list[Gpu], program: Program) -> VisibleGpus:
    """Apply ZE_AFFINITY_MASK. The order of unlike GPUs is the driver's own, unless PCI order is requested.

    https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask
    """
    selector = program.environ.get(SYCL_SELECTOR, "")
    if selector.lower() not in ALL_OF_SYCL:
        raise DeviceError(
            f'{SYCL_SELECTOR} is "{selector[:80]}", which memwatch does not evaluate; '
            f"use {ZE_MASK}, or name the GPU by id, for example gpu0"
        )
    if _are_unlike(gpus) and program.environ.get(ZE_ORDER) != "1":
        raise DeviceError(
            f"the order of {_list_models(gpus)} is known only to Level Zero; "
            f"set {ZE_ORDER}=1, or name a GPU by id, for example {gpus[0].device.id}"
        )
    mask = program.environ.get(ZE_MASK, "")
    chosen = [gpus[index] for index in select_level_zero(mask, len(gpus))] if mask else gpus
    return VisibleGpus(tuple(map(_whole, chosen)), _quote(program, ZE_MASK))
