"""POST /api/v1/marks and /api/v1/reports: data that programs send with the library."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Struct
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from memwatch.core.allocators import AllocatorReport
from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Device
from memwatch.core.printable import printable
from memwatch.core.processes.allocator_reports import MAX_REPORTS, ReportRejectedError, find_gpu
from memwatch_web.api.dependencies import ApiServices
from memwatch_web.api.programs import Count, Pid, RequestBody, example, refuse_foreign_process
from memwatch_web.asgi.problems import ProblemError

MAX_MARK_LENGTH, MAX_NAME_LENGTH = 300, 80

Name = Annotated[str, Field(max_length=MAX_NAME_LENGTH)]


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
    """Add an event of kind `mark`. The newest 500 marks are kept, separately from other events. Without a login,
    `pid` is a process of the caller's user."""
    refuse_foreign_process(services, request, mark.pid, "mark and report")
    process = "" if mark.pid is None else f" (process {mark.pid})"
    event = services.monitor.events.mark(services.monitor.moment().wall, printable(mark.text) + process)
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
