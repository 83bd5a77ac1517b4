"""What is said of backends. Sizes are integers in bytes; what is not known is an `Absent` reason."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.model import Absent, Bytes

DeviceKind = Literal["cpu", "gpu", "accelerator"]


class BackendDevice(Struct, frozen=True):
    """Something that a backend computes on. `id` is its id in the snapshot, where it is listed there.

    `size_bytes`: the memory it can use at most; `headroom_bytes`: what it could allocate now, and
    `own_headroom_bytes` what of that this backend's own rule leaves it, None where it has none; `unified`: whether
    it shares one memory with the processors. `state` is that of the snapshot's device.
    """

    id: str | None
    name: str
    kind: DeviceKind
    size_bytes: Bytes
    headroom_bytes: Bytes
    unified: bool | Absent
    note: str | None = None
    state: str = "ok"
    own_headroom_bytes: Bytes | None = None

    @property
    def room_bytes(self) -> Bytes:
        """What a program that uses this backend could allocate now."""
        if self.own_headroom_bytes is None or isinstance(self.headroom_bytes, Absent):
            return self.headroom_bytes
        if isinstance(self.own_headroom_bytes, Absent):
            return self.own_headroom_bytes
        return min(self.headroom_bytes, self.own_headroom_bytes)


class Backend(Struct, frozen=True):
    """One backend. `available` is absent where it was not, or could not be, tried; `reason` says why it is what
    it is, in words that can follow the name and a dash."""

    name: str
    label: str
    available: bool | Absent
    reason: str
    devices: tuple[BackendDevice, ...] = ()

    @property
    def gpus(self) -> tuple[BackendDevice, ...]:
        """Those that it can be used on now."""
        if self.available is not True:
            return ()
        return tuple(device for device in self.devices if device.kind == "gpu" and device.state == "ok")


class Backends(Struct, frozen=True):
    """All of them, and the one to use. `age_seconds`: how long ago files and drivers were looked at."""

    recommended: str
    recommended_reason: str
    age_seconds: float
    backends: tuple[Backend, ...]
