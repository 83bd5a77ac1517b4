"""Vendor libraries through ctypes, and the operations that each of them offers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

DEVICE, MANAGED, PINNED = "device", "managed", "pinned"


class DriverApiError(Exception):
    """A library that cannot be loaded, or a call that failed."""


class Memory(Struct, frozen=True):
    """Allocated memory: its address, and the operations that return it."""

    kind: str
    size_bytes: int
    address: int


class GpuFacts(Struct, frozen=True):
    """One GPU as its driver API describes it. `free_bytes` is the API's own figure, None if it has none."""

    api: str
    version: str
    count: int
    name: str
    pci: str | None
    free_bytes: int | None


class DriverApi(Protocol):
    """A GPU with a context of this process. Every method raises `DriverApiError` on failure."""

    @property
    def kinds(self) -> Sequence[str]: ...

    def facts(self) -> GpuFacts: ...

    def allocate(self, kind: str, size_bytes: int) -> Memory:
        """Allocate memory, and make it resident if the driver would otherwise wait for the first use."""

    def free(self, memory: Memory) -> None: ...


def load_library(names: Sequence[str]) -> ctypes.CDLL:
    """Load the first library that exists."""
    problems = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:  # noqa: PERF203  the next one is tried
            problems.append(str(error))
    raise DriverApiError(problems[0])


class Caller:
    """Calls functions of a library whose result is an error code, 0 for success."""

    def __init__(self, library: ctypes.CDLL, describe: Callable[[int], str]) -> None:
        self._library, self._describe = library, describe

    def __call__(self, function: str, *arguments: Any) -> None:
        try:
            called = getattr(self._library, function)
        except AttributeError:
            raise DriverApiError(f"{function} is missing in this driver") from None
        code = called(*arguments)
        if code != 0:
            raise DriverApiError(f"{function} failed: {self._describe(code)} ({code})")


def text_buffer(size: int = 256) -> Any:
    return ctypes.create_string_buffer(size)


def decode_text(buffer: Any) -> str:
    return bytes(buffer.value).decode("utf-8", "replace")


def require_gpu(count: int, index: int, api: str) -> None:
    """Raise unless the API has a GPU of this number."""
    if index >= count:
        raise DriverApiError(f"{api} has {count} GPUs, and none is number {index}")
