"""Names of devices as programs write them: `cuda:0`, `torch.device("xpu")`, `mps`, 0, `gpu0`, a UUID."""

from __future__ import annotations

import re
from typing import NamedTuple

from memwatch.planning.sizes import InvalidInputError

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
    """A device's name. `number`: None if the name has none, as in "cuda"."""

    text: str
    kind: str
    number: int | None = None


def is_cpu(wanted: object) -> bool:
    return wanted is None or parse_name(wanted).kind == CPU


def parse_name(wanted: object) -> DeviceName:
    """Parse a name, a number or a framework's device object. None is the CPU."""
    text = "cpu" if wanted is None else str(wanted).strip()[:MAX_SHOWN]
    if NUMBER.fullmatch(text):
        return DeviceName(text, ANY_GPU, int(text))
    match = NAME.fullmatch(text)
    if match is None:
        return DeviceName(text, ID)
    return DeviceName(text, SPELLINGS[match[1].lower()], int(match[2]) if match[2] else None)
