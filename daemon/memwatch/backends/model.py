"""What is said of backends. Sizes are integers in bytes; what is not known is an `Absent` reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memwatch.model import Absent, Bytes

DeviceKind = Literal["cpu", "gpu", "accelerator"]


@dataclass(frozen=True, slots=True)
class BackendDevice:
    """Something that a backend computes on. `id` is its id in the snapshot, where it is listed there.

    `size_bytes`: the memory it can use at most; `headroom_bytes`: what it could allocate now; `unified`: whether
    that memory is System RAM.
    """

    id: str | None
    name: str
    kind: DeviceKind
    size_bytes: Bytes
    headroom_bytes: Bytes
    unified: bool | Absent
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend. `available` is absent where it was not, or could not be, tried; `reason` says why it is what
    it is, in words that can follow the name and a dash."""

    name: str
    label: str
    available: bool | Absent
    reason: str
    devices: tuple[BackendDevice, ...] = ()

    @property
    def has_gpu(self) -> bool:
        return self.available is True and any(device.kind == "gpu" for device in self.devices)


@dataclass(frozen=True, slots=True)
class Backends:
    """All of them, and the one to use. `age_seconds`: how long ago files and drivers were looked at."""

    recommended: str
    recommended_reason: str
    age_seconds: float
    backends: tuple[Backend, ...]
