"""Rules of the variables that choose and order a program's GPUs. Pure functions of a value and the GPUs' UUIDs.

Each returns the numbers of the visible GPUs, in the order in which the framework counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from memwatch.library.device_names import DeviceError

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
