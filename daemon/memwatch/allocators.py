"""What a program says that an allocator inside it holds."""

from __future__ import annotations

from msgspec import Struct

from memwatch.model import Absent, Bytes, refuse_negative


class AllocatorReport(Struct, frozen=True):
    """What one allocator inside a process holds, by its own word. It lies inside what the process holds.

    `reserved_bytes` is what the allocator took; `allocated_bytes` of it are handed out; `active_bytes` cannot be
    moved yet; `inactive_split_bytes` lie between blocks in use. `retries` and `ooms` count since the process
    started.
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

    def __post_init__(self) -> None:
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "limit_bytes")
        refuse_negative(self, names, "claim", self.name)
