"""REST endpoints for programs that use the library: marks, reports of allocators, and leases."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.doc import Doc
from memwatch.core.events import MAX_MARK_LENGTH
from memwatch.core.leases import MAX_NAME_LENGTH, MAX_SECONDS, MIN_BYTES, MIN_SECONDS
from memwatch.core.model import MAX_BYTES, Absent, AllocatorReport, Device
from memwatch.core.printable import printable
from memwatch.core.processes.allocator_reports import MAX_REPORTS, ReportRejectedError, find_gpu
from memwatch_monitor.lease_book import LeaseBook, LeaseRefusedError, LeaseRequest
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.services import Services
from memwatch_web.asgi.caller import caller_of
from memwatch_web.asgi.problems import ProblemError

Count = Annotated[int, Field(ge=0, le=MAX_BYTES, strict=True)]
Pid = Annotated[int, Field(ge=1, le=1 << 22, strict=True)]
Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]


class RequestBody(BaseModel):
    """Body of a request. Other fields are refused."""

    model_config = ConfigDict(extra="forbid")


def example(body: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a body with a valid example, for the description and for errors."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [body]})


def refuse_foreign_process(services: Services, request: Request, pid: int | None, change: str) -> None:
    """Raise ProblemError unless the caller is an operator or runs the process."""
    caller = caller_of(request.scope)
    if caller.is_operator:
        return
    if pid is None or services.monitor.reports.owner_uid(pid) != caller.uid:
        whose = "no pid was sent" if pid is None else f"process {pid} does not exist or has another user"
        raise ProblemError(
            403,
            f"{caller.words} may {change} only for processes of this user: {whose}. Send the pid of such a "
            "process as the host numbers it, or use the socket file or a login.",
        )


class MarkRequest(RequestBody):
    """An annotation by a program, such as "Before VAE Load"."""

    model_config = example({"text": "Before VAE Load", "pid": 4242})

    text: Annotated[str, Field(min_length=1, max_length=MAX_MARK_LENGTH)]
    pid: Pid | None = None


class AllocatorReportBody(RequestBody):
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, examples=["PyTorch"])]
    device: Annotated[Name | None, Field(examples=["cuda:0"])] = None
    gpu: Annotated[
        Name | None,
        Field(
            examples=["GPU-5a3d8005-0000-4000-8000-000000000005"],
            description="UUID or PCI address of the GPU or MIG instance; the program's own number may be another.",
        ),
    ] = None
    allocated_bytes: Count | None = None
    reserved_bytes: Count | None = None
    active_bytes: Count | None = None
    inactive_split_bytes: Count | None = None
    limit_bytes: Count | None = None
    retries: Count | None = None
    ooms: Count | None = None

    def claim(self, pid: int, devices: Iterable[Device]) -> AllocatorReport:
        device = None if self.device is None else printable(self.device)
        known: dict[str, Any] = {
            name: Absent.NOT_SUPPORTED if value is None else value
            for name, value in self.model_dump().items()
            if name not in ("name", "device", "gpu")
        }
        return AllocatorReport(pid, printable(self.name), device, **known, gpu=find_gpu(self.gpu, devices))


class ReportRequest(RequestBody):
    """Allocator reports of a process. They replace its previous ones and expire after 35 seconds, or with it."""

    model_config = example({"pid": 4242, "start_ticks": 1234567, "claims": [{"name": "PyTorch"}]})

    pid: Pid
    start_ticks: Annotated[Count, Field(description="Field 22 of /proc/<pid>/stat; detects a reused PID.")]
    claims: Annotated[list[AllocatorReportBody], Field(max_length=MAX_REPORTS)]


class MarkReceipt(Struct, frozen=True):
    seq: Annotated[int, Doc("Number of the new event.")]


class ReportReceipt(Struct, frozen=True):
    claims: int


async def marks(services: ApiServices, request: Request, mark: MarkRequest) -> Response:
    """Add an event of kind `mark`. Marks have a budget, separately from other events. Without a login,
    `pid` is a process of the caller's user."""
    refuse_foreign_process(services, request, mark.pid, "mark and report")
    process = "" if mark.pid is None else f" (process {mark.pid})"
    caller = caller_of(request.scope)
    account = services.monitor.accounts.of_now(caller.uid)
    account = account.as_operator() if caller.is_operator else account
    event = services.monitor.events.mark(services.monitor.moment().wall, printable(mark.text) + process, account)
    return services.json(MarkReceipt(event.seq))


async def reports(services: ApiServices, request: Request, report: ReportRequest) -> Response:
    """Store the allocator reports of a process. They are shown with it and added to no total. Without a login,
    `pid` is a process of the caller's user."""
    refuse_foreign_process(services, request, report.pid, "mark and report")
    latest = services.monitor.latest
    claims = [one.claim(report.pid, () if latest is None else latest.devices) for one in report.claims]
    try:
        services.monitor.reports.put(report.pid, report.start_ticks, claims, time.monotonic())
    except ReportRejectedError as error:
        raise ProblemError(422, f"{error}.") from None
    return services.json(ReportReceipt(len(report.claims)))


class LeaseBody(RequestBody):
    """Memory to reserve for a process that is about to allocate it."""

    model_config = example({"bytes": 21474836480, "target": "gpu0", "seconds": 120, "pid": 4242})

    bytes: Annotated[int, Field(ge=MIN_BYTES, le=MAX_BYTES, strict=True)]
    target: Annotated[str, Field(max_length=80, description="Pool or device, such as ram or gpu0.")]
    seconds: Annotated[float, Field(ge=MIN_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
    pid: Annotated[Pid, Field(description="The lease ends with this process.")]
    start_ticks: Annotated[
        Count | None,
        Field(description="Field 22 of /proc/<pid>/stat, to detect a reused PID; by default it is read."),
    ] = None
    name: Annotated[
        str, Field(max_length=MAX_NAME_LENGTH, description="For display; by default the process's name.")
    ] = ""
    certain: Annotated[bool, Field(description="Count only memory that is free without reclaim of page cache.")] = (
        False
    )


async def lease(services: ApiServices, request: Request, body: LeaseBody) -> Response:
    """Reserve memory for a process. Of two requests that fit only alone, one is granted. The lease ends with its
    time, with its process, or when the process and its descendants have allocated the bytes. `fit` and `wait` of
    others count leased memory as used; the figures of pools do not change. A restart of memwatchd ends all leases.
    Without a login, `pid` is a process of the caller's user."""
    refuse_foreign_process(services, request, body.pid, "lease")
    caller = caller_of(request.scope)
    wanted = LeaseRequest(
        **body.model_dump(), made_by=caller.words, by_uid=caller.uid, is_operator=caller.is_operator
    )
    try:
        granted = services.monitor.features.get(LeaseBook).grant(wanted, services.current())
    except LeaseRefusedError as error:
        raise ProblemError(409 if error.conflict else 422, f"{error}.") from None
    return services.json(granted)


async def leases(services: ApiServices) -> Response:
    """Return the leases in force, oldest first."""
    return services.json(services.monitor.features.get(LeaseBook).current())


async def end(services: ApiServices, request: Request, lease_id: str) -> Response:
    """End a lease early; return the others. Without a login, it is that of a process of the caller's user."""
    caller, book = caller_of(request.scope), services.monitor.features.get(LeaseBook)
    missing = ProblemError(404, f"no lease {lease_id[:80]!r}; /api/v1/leases lists those in force.")
    if not caller.is_operator and book.owner_uid(lease_id) not in (None, caller.uid):
        raise ProblemError(
            403,
            f"{caller.words} may end only leases of own processes, and {lease_id[:80]!r} is of another user; "
            "use the socket file, root, or a login.",
        )
    if not book.end(lease_id, caller.words):
        raise missing
    return await leases(services)
