"""Records of backends. Sizes are integers in bytes. Unknown values are an `Absent` reason."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.core.model import Absent, Bytes

DeviceKind = Literal["cpu", "gpu", "accelerator"]


class BackendDevice(Struct, frozen=True):
    """A device that a backend can use. `id` is its id in the snapshot, None if it is not listed there.

    `size_bytes`: the maximum memory it can use. `headroom_bytes`: the bytes it could allocate now.
    `own_headroom_bytes`: the limit on that by this backend's own rule, None if it has none. `unified`: True if it
    shares one memory with the CPU. `state` is that of the snapshot's device.
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
        """Return the bytes that a program could allocate now with this backend."""
        if self.own_headroom_bytes is None or isinstance(self.headroom_bytes, Absent):
            return self.headroom_bytes
        if isinstance(self.own_headroom_bytes, Absent):
            return self.own_headroom_bytes
        return min(self.headroom_bytes, self.own_headroom_bytes)


class Backend(Struct, frozen=True):
    """One backend. `available` is absent if it was not or could not be probed.

    `reason` explains `available`, worded to follow the name and a dash.
    """

    name: str
    label: str
    available: bool | Absent
    reason: str
    devices: tuple[BackendDevice, ...] = ()

    @property
    def gpus(self) -> tuple[BackendDevice, ...]:
        """Return the GPUs on which the backend can be used now."""
        if self.available is not True:
            return ()
        return tuple(device for device in self.devices if device.kind == "gpu" and device.state == "ok")


class Backends(Struct, frozen=True):
    """All backends, and the recommended one. `age_seconds`: time since files and drivers were probed."""

    recommended: str
    recommended_reason: str
    age_seconds: float
    backends: tuple[Backend, ...]
