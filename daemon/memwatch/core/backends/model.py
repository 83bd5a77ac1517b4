"""Records of backends, and of OpenCL's answer, which is sent through a pipe.

Sizes are integers in bytes. Unknown values are an `Absent` reason.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Words

DeviceKind = Literal["cpu", "gpu", "accelerator"]
OpenclKind = Literal["cpu", "gpu", "accelerator", "other"]
Failure = Literal["no_binding", "no_platform", "failed"]


class BackendDevice(Struct, frozen=True):
    """Compute device of a backend. A CPU is never listed as a GPU."""

    id: Annotated[str | None, Doc("Id of the device in the snapshot; null if not listed there.")]
    name: str
    kind: DeviceKind
    size_bytes: Annotated[Bytes, Doc("Maximum memory that it can use.")]
    headroom_bytes: Annotated[Bytes, Doc("Memory that can be allocated now, without reclaim of page cache.")]
    headroom_after_reclaim_bytes: Annotated[Bytes, Doc("Memory that can be allocated after reclaim of page cache.")]
    unified: Annotated[bool | Absent, Doc("True if it shares memory with the CPU.")]
    note: Annotated[str | None, Doc("Explains its state or its figures; null without anything to explain.")] = None
    state: Annotated[str, Doc("As in the snapshot: ok, lost, stalled, missing, needs_reset.")] = "ok"
    own_headroom_bytes: Annotated[
        Bytes, Doc("Limit on both by this backend's own rule; not_supported if it has none.")
    ] = Absent.NOT_SUPPORTED

    @property
    def room_bytes(self) -> Bytes:
        """Return the bytes that a program could allocate with this backend, after reclaim of page cache."""
        room = self.headroom_after_reclaim_bytes
        if self.own_headroom_bytes is Absent.NOT_SUPPORTED or isinstance(room, Absent):
            return room
        if isinstance(self.own_headroom_bytes, Absent):
            return self.own_headroom_bytes
        return min(room, self.own_headroom_bytes)


class Backend(Struct, frozen=True):
    """One backend. `available` is absent if it was not or could not be probed.

    `reason` explains `available`, worded to follow the name and a dash.
    """

    name: Annotated[str, Doc(values=("cpu", "cuda", "rocm", "metal", "opencl", "vulkan"))]
    label: str
    available: Annotated[bool | Absent, Doc("Null if it was not or could not be probed.")]
    reason: str
    devices: tuple[BackendDevice, ...] = ()

    @property
    def gpus(self) -> tuple[BackendDevice, ...]:
        """Return the GPUs on which the backend can be used now."""
        if self.available is not True:
            return ()
        return tuple(device for device in self.devices if device.kind == "gpu" and device.state == "ok")


class Backends(Struct, frozen=True):
    """All backends, and the recommended one."""

    recommended: Annotated[str, Doc("Name of the recommended backend.")]
    recommended_reason: str
    age_seconds: Annotated[float, Doc("Time since files and drivers were probed; memory values are current.")]
    backends: tuple[Backend, ...]


class OpenclDevice(Struct, frozen=True):
    """A device. `pci` is an address such as 0000:01:00.0.

    `global_memory_bytes` is not read for a CPU, where it is no capacity (PoCL 3.1 reports four different values on
    one machine).
    """

    name: str
    kind: OpenclKind
    global_memory_bytes: Bytes
    unified: bool | Absent
    pci: Words


class OpenclPlatform(Struct, frozen=True):
    """One installed driver. `failure`: OpenCL's error text if it lists no devices."""

    name: str
    version: str
    devices: tuple[OpenclDevice, ...]
    failure: str | None = None


class OpenclResult(Struct, frozen=True):
    """All platforms, or why there are none: no Python binding, no driver, or a failure with its text."""

    platforms: tuple[OpenclPlatform, ...] = ()
    failure: Failure | None = None
    text: str = ""
