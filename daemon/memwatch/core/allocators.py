"""Reports of allocators inside programs, such as PyTorch's caching allocator."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, refuse_negative


class AllocatorReport(Struct, frozen=True):
    """Memory of one allocator inside a process, as the program reports it. It is part of the process's memory.

    `retries` and `ooms` count since the process started.
    """

    pid: int
    name: str
    device: Annotated[str | None, Doc("The program's own name of a GPU; null if it gave none.")]
    allocated_bytes: Annotated[Bytes, Doc("Part of the reserved bytes that is in use.")]
    reserved_bytes: Bytes
    active_bytes: Annotated[Bytes, Doc("Bytes that cannot be released yet.")] = Absent.NOT_SUPPORTED
    inactive_split_bytes: Annotated[Bytes, Doc("Free bytes between blocks in use.")] = Absent.NOT_SUPPORTED
    limit_bytes: Bytes = Absent.NOT_SUPPORTED
    retries: int | Absent = Absent.NOT_SUPPORTED
    ooms: int | Absent = Absent.NOT_SUPPORTED
    gpu: Annotated[str | None, Doc("Id of the device in the snapshot; null if it is not known which.")] = None

    def __post_init__(self) -> None:
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "limit_bytes")
        refuse_negative(self, names, "claim", self.name)
