"""Results of the OpenCL query, as records that are sent through a pipe."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, Words

OpenclKind = Literal["cpu", "gpu", "accelerator", "other"]
Failure = Literal["no_binding", "no_platform", "failed"]


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
