"""What OpenCL said, as records that pass through a pipe."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from memwatch.model import Absent, Bytes, Words

OpenclKind = Literal["cpu", "gpu", "accelerator", "other"]
Failure = Literal["no_binding", "no_platform", "failed"]


class OpenclDevice(Struct, frozen=True):
    """`global_memory_bytes` is not asked of a CPU: there it is no capacity (PoCL 3.1 says four different things
    on one machine). `pci` is an address such as 0000:01:00.0."""

    name: str
    kind: OpenclKind
    global_memory_bytes: Bytes
    unified: bool | Absent
    pci: Words


class OpenclPlatform(Struct, frozen=True):
    """One installed driver. `failure` says in OpenCL's own words why it lists no devices, if it does not."""

    name: str
    version: str
    devices: tuple[OpenclDevice, ...]
    failure: str | None = None


class OpenclAnswer(Struct, frozen=True):
    """All platforms; or why there are none: no Python binding, no driver, or a failure with its text."""

    platforms: tuple[OpenclPlatform, ...] = ()
    failure: Failure | None = None
    text: str = ""
