"""Reports of allocators inside programs, such as PyTorch's caching allocator."""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.model import Absent, Bytes, refuse_negative


class AllocatorReport(Struct, frozen=True):
    """Memory of one allocator inside a process, as the program reports it. It is part of the process's memory.

    `reserved_bytes` is what the allocator reserved; `allocated_bytes` of it are in use. `active_bytes` cannot be
    released yet. `inactive_split_bytes` lie between blocks in use (fragmentation). `retries` and `ooms` count since
    the process started. `device` is the program's own name of a GPU, `gpu` the machine's id of it.
    """

    pid: int
    name: str
    device: str | None
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    active_bytes: Bytes = Absent.NOT_SUPPORTED
    inactive_split_bytes: Bytes = Absent.NOT_SUPPORTED
    limit_bytes: Bytes = Absent.NOT_SUPPORTED
    retries: int | Absent = Absent.NOT_SUPPORTED
    ooms: int | Absent = Absent.NOT_SUPPORTED
    gpu: str | None = None

    def __post_init__(self) -> None:
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "limit_bytes")
        refuse_negative(self, names, "claim", self.name)
