"""Selection of the GPU that a program means: by the framework that counts it, else by the program's environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memwatch.core.linux.pci import pci_numbers
from memwatch.core.model import Device
from memwatch.library.program_safety import never_raise
from memwatch.library.visible_gpus import (
    ANY_GPU,
    CPU,
    CUDA,
    HIP,
    ID,
    MPS,
    VARIABLES,
    VENDORS,
    XPU,
    DeviceError,
    DeviceName,
    Program,
    Target,
    build_gpu,
    find_visible_gpus,
    parse_name,
)

KINDS = (CUDA, HIP, XPU, MPS)
MAKERS = {CUDA: "NVIDIA", HIP: "AMD", XPU: "Intel", MPS: "Apple"}
MIN_UUID_CHARACTERS = 5


class FoundTargets(NamedTuple):
    """Targets found among the devices of one reading, by name and environment."""

    devices: Sequence[Device]
    by_name: dict[tuple[object, ...], Target | None]


# Steps ask for the same GPU again and again, and eight GPUs take 60 µs.
_found = FoundTargets((), {})


def is_cpu(wanted: object) -> bool:
    return wanted is None or parse_name(wanted).kind == CPU


def find_target(wanted: object, devices: Sequence[Device], program: Program) -> Target | None:
    """Return the GPU or MIG instance that a name means in this program, None for the CPU. Raises DeviceError.

    A running framework is asked, because it has read the variables already. No call starts a framework.
    """
    global _found
    if wanted is None:
        return None
    found = _found  # another thread of the program may replace it
    if found.devices is not devices:
        found = _found = FoundTargets(devices, {})
    by_name, torch = found.by_name, _running_torch(program)
    facts = (program.roots, program.is_read_outside, "torch" in program.modules, _current_index(torch))
    key = (str(wanted), facts, *map(program.environ.get, VARIABLES))
    if key not in by_name:
        by_name[key] = _find_target(wanted, devices, program)
    return by_name[key]


def _find_target(wanted: object, devices: Sequence[Device], program: Program) -> Target | None:
    name = parse_name(wanted)
    if name.kind == CPU:
        return None
    if name.kind == ID:
        return _find_by_id(name, devices)
    kind = _choose_kind(name.kind, devices, program)
    torch = _running_torch(program) if kind in (CUDA, HIP) else None
    index = name.number if name.number is not None else _current_index(torch) or 0
    _check_count(torch, name, index, devices)
    return _ask_torch(torch, index, devices) or _find_visible(name, kind, index, devices, program)


def hidden_devices(devices: Sequence[Device], program: Program) -> dict[str, str]:
    """Return the ids of GPUs that the program does not see, with the variables that hide them."""
    hidden: dict[str, str] = {}
    for kind in KINDS:
        try:
            visible = find_visible_gpus(kind, devices, program)
        except DeviceError:
            continue  # the order is not known
        seen = {target.device.id for target in visible.targets}
        of_kind = [one for one in devices if one.vendor.lower() == VENDORS[kind]]
        hidden |= {one.id: visible.because for one in of_kind if one.id not in seen and visible.because}
    return hidden


def _find_by_id(name: DeviceName, devices: Sequence[Device]) -> Target:
    text, address = name.text, pci_numbers(name.text)
    for device in devices:
        instances = build_gpu(device).instances
        if text == device.id or (address is not None and address == pci_numbers(device.pci)):
            return Target(device)
        known = next((share for share, uuid in instances if text in (share, uuid)), None)
        if known:
            return Target(device, known)
    found = [one for one in devices if isinstance(one.uuid, str) and _is_abbreviation(text, one.uuid)]
    if len(found) == 1:
        return Target(found[0])
    raise _not_found(name, f"which is not one of {', '.join(one.id for one in devices)}", devices)


def _is_abbreviation(text: str, uuid: str) -> bool:
    short = text.upper().removeprefix("GPU-")
    return len(text) >= MIN_UUID_CHARACTERS and uuid.upper().removeprefix("GPU-").startswith(short)


def _choose_kind(kind: str, devices: Sequence[Device], program: Program) -> str:
    """Return whose GPUs are counted. `cuda` is also PyTorch's name of AMD's, and a number may be any maker's."""
    if kind not in (ANY_GPU, CUDA):
        return kind
    here = {one.vendor.lower() for one in devices}
    built_for = getattr(program.modules.get("torch"), "version", None)
    if getattr(built_for, "hip", None) and VENDORS[HIP] in here:
        return HIP
    possible = KINDS if kind == ANY_GPU else (CUDA, HIP)
    return next((one for one in possible if VENDORS[one] in here), CUDA)


def _find_visible(name: DeviceName, kind: str, index: int, devices: Sequence[Device], program: Program) -> Target:
    visible = find_visible_gpus(kind, devices, program)
    if index < len(visible.targets):
        return visible.targets[index]
    if not any(one.vendor.lower() == VENDORS[kind] for one in devices):
        raise _not_found(name, f"but there is no {MAKERS[kind]} GPU here", devices)
    seen = ", ".join(f"{kind}:{number} ({one.id})" for number, one in enumerate(visible.targets)) or "none"
    why = f" with {visible.because}" if visible.because else ""
    raise _not_found(name, f"and this program sees{why}: {seen}", devices)


def _not_found(name: DeviceName, why: str, devices: Sequence[Device]) -> DeviceError:
    if not devices:
        return DeviceError(f'device is "{name.text}", but this machine has no GPU; for example cpu')
    return DeviceError(f'device is "{name.text}", {why}; for example {devices[0].id}')


def _running_torch(program: Program) -> Any:  # noqa: ANN401  a module
    """Return PyTorch if it has started CUDA or HIP in this process. It has not in a forked child."""
    torch = program.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if is_initialized is not None and is_initialized() else None


def _check_count(torch: Any, name: DeviceName, index: int, devices: Sequence[Device]) -> None:  # noqa: ANN401
    count = index + 1 if torch is None else _count(torch)
    if index >= count:
        raise _not_found(name, f"and PyTorch has {count} in this program", devices)


@never_raise(0)
def _count(torch: Any) -> int:  # noqa: ANN401
    return int(torch.cuda.device_count())


@never_raise(0)
def _current_index(torch: Any) -> int | None:  # noqa: ANN401
    return None if torch is None else int(torch.cuda.current_device())


@never_raise(None)
def _ask_torch(torch: Any, index: int, devices: Sequence[Device]) -> Target | None:  # noqa: ANN401
    """Return the GPU with the UUID or PCI address that PyTorch has for a number. None if none has."""
    if torch is None:
        return None
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    address = tuple(getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id"))
    for gpu in map(build_gpu, devices):
        share = next((share for share, of_share in gpu.instances if uuid and of_share == f"MIG-{uuid}"), "")
        if share or (uuid and gpu.device.uuid == f"GPU-{uuid}"):
            return Target(gpu.device, share)
        if not gpu.is_mig and (pci_numbers(gpu.device.pci) or ())[:3] == address:
            return Target(gpu.device)
    return None
