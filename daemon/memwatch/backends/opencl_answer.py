"""What OpenCL said, as records that pass through a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memwatch.model import Absent, Bytes, Words

OpenclKind = Literal["cpu", "gpu", "accelerator", "other"]
Failure = Literal["no_binding", "no_platform", "failed"]


@dataclass(frozen=True, slots=True)
class OpenclDevice:
    """`global_memory_bytes` is not asked of a CPU: there it is no capacity (PoCL 3.1 says four different things
    on one machine). `pci` is an address such as 0000:01:00.0."""

    name: str
    kind: OpenclKind
    global_memory_bytes: Bytes
    unified: bool | Absent
    pci: Words


@dataclass(frozen=True, slots=True)
class OpenclPlatform:
    """One installed driver. `failure` says in OpenCL's own words why it lists no devices, if it does not."""

    name: str
    version: str
    devices: tuple[OpenclDevice, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class OpenclAnswer:
    """All platforms; or why there are none: no Python binding, no driver, or a failure with its text."""

    platforms: tuple[OpenclPlatform, ...] = ()
    failure: Failure | None = None
    text: str = ""
