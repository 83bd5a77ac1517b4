"""Data from programs: marks among the events, allocator reports in their process; bounded and validated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.budget import KINDS, ROOT, Account, Budget, users_part
from memwatch.core.events import Event, EventLog
from memwatch.core.model import AllocatorReport
from memwatch.core.processes.allocator_reports import (
    EXPIRY_SECONDS,
    MAX_REPORTS,
    AllocatorReports,
    ReportRejectedError,
)
from memwatch_web.api.programs import LeaseBody, MarkRequest, ReportRequest, RequestBody
from support.daemon_process import QUIET_MACHINE, RunningDaemon, running_daemon
from support.ingest_client import own_ticks, post
from support.mutable_machine import MutableMachine

GIB = 1 << 30
UNPROCESSABLE = {"type": "about:blank", "title": "Unprocessable Entity", "status": 422}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run a daemon that finds this process."""
    folder = tmp_path_factory.mktemp("daemon")
    machine = MutableMachine.of(QUIET_MACHINE.name, folder / "machine")
    machine.show(os.getpid())
    with running_daemon(folder, *machine.arguments) as running:
        yield running


def test_mark_is_an_event(daemon: RunningDaemon) -> None:
    """Newest first, with its process. Control characters are escaped."""
    status, answer = post(daemon, "/api/v1/marks", {"text": "Before\nVAE Load", "pid": 42})

    event = next(one for one in daemon.get("/api/v1/events").json if one["kind"] == "mark")
    assert (status, event["seq"]) == (200, answer["seq"])
    assert event["text"] == "Before\\u000aVAE Load (process 42)"


def test_report_is_shown_with_its_process(daemon: RunningDaemon) -> None:
    """In the snapshot and on the page. Pools do not change."""
    claim = {
        "name": "PyTorch",
        "device": "cuda:0",
        "allocated_bytes": 18 * GIB,
        "reserved_bytes": 19 * GIB,
        "ooms": 1,
    }
    status, _ = post(daemon, "/api/v1/reports", {"pid": os.getpid(), "start_ticks": own_ticks(), "claims": [claim]})

    found = daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["claims"])["claims"][0]
    daemon.wait_for("/api/v1/processes", lambda processes: any(one["pid"] == os.getpid() for one in processes))
    page = daemon.get("/processes").text
    assert status == 200
    assert {name: found[name] for name in claim} == claim
    assert found["absent"]["active_bytes"] == "not_supported"
    assert f'id="claim-{os.getpid()}-1"' in page
    assert "PyTorch (cuda:0): " in page
    assert ", 1 OOM error<" in page


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/v1/marks", {}, "text"),
        ("/api/v1/marks", {"text": ""}, "text"),
        ("/api/v1/marks", {"text": "x" * 301}, "text"),
        ("/api/v1/marks", {"text": "x", "pid": -1}, "pid"),
        ("/api/v1/marks", {"text": "x", "surplus": 1}, "surplus"),
        ("/api/v1/marks", {"text": "\ud800"}, "text"),
        ("/api/v1/marks", b"[" * 60_000, ""),
        ("/api/v1/marks", b"\xff\xfe", ""),
        ("/api/v1/reports", {"pid": 1, "start_ticks": 1, "claims": []}, "no process 1 that started at tick 1"),
        ("/api/v1/reports", {"pid": 1, "start_ticks": 1, "claims": [{"name": "x"}] * (MAX_REPORTS + 1)}, "claims"),
        (
            "/api/v1/reports",
            {"pid": 1, "start_ticks": 1, "claims": [{"name": "x", "allocated_bytes": -1}]},
            "allocated_bytes",
        ),
        (
            "/api/v1/reports",
            {"pid": 1, "start_ticks": 1, "claims": [{"name": "x", "allocated_bytes": 10**30}]},
            "allocated_bytes",
        ),
        ("/api/v1/reports", b'{"pid": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_invalid_body_is_rejected_with_a_reason(path: str, body: Any, words: str, daemon: RunningDaemon) -> None:
    """422, or 400 for invalid JSON; never 500."""
    status, answer = post(daemon, path, body)

    assert status in (400, 422)
    assert words in answer["detail"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("marks", b"", 'body is missing: send JSON, for example {"text":"Before VAE Load","pid":4242}'),
        ("marks", {}, 'text is missing: send JSON, for example {"text":"Before VAE Load","pid":4242}'),
        (
            "reports",
            {"pid": 1, "start_ticks": 1, "claims": [{}]},
            'claims.0.name is missing: send JSON, for example {"pid":4242,"start_ticks":1234567,'
            '"claims":[{"name":"PyTorch"}]}',
        ),
        ("marks", {"text": None}, "text is null: input should be a valid string"),
        ("marks", {"text": "x", "pid": True}, "pid is true: input should be a valid integer"),
    ],
)
def test_body_errors_use_json_terms_and_an_example(
    path: str, body: Any, reason: str, daemon: RunningDaemon
) -> None:
    """`null` and `true` are shown as they were sent."""
    assert post(daemon, f"/api/v1/{path}", body) == (422, {**UNPROCESSABLE, "detail": reason})


@pytest.mark.parametrize("body", [MarkRequest, ReportRequest, LeaseBody])
def test_example_bodies_are_valid(body: type[RequestBody]) -> None:
    """Error messages quote these examples."""
    extra: Any = body.model_config["json_schema_extra"]
    (example,) = extra["examples"]
    assert body.model_validate(example)


def test_marks_displace_no_event_and_are_bounded() -> None:
    """A training loop that marks each step must not displace events that administrators need."""
    log, most = EventLog(), KINDS["marks"].most
    log.add(0.0, "started", "memwatchd started")
    for step in range(3 * most):
        log.mark(float(step), f"step {step}", Account("uid 1001"))
    log.add(1.0, "level", "System RAM is high")

    events = log.latest(10_000)

    assert len(events) == 375 + 2
    assert (events[0].kind, events[-1].kind) == ("level", "started")
    assert [event.seq for event in events] == sorted((event.seq for event in events), reverse=True)
    assert [event.kind for event in log.since(3 * most)] == ["mark", "level"]


def folder_with(tmp_path: Path, pids: range) -> Path:
    for pid in pids:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {' '.join(['0'] * 18)} {1000 + pid} 0 0\n")
    return tmp_path


def test_reports_expire_and_are_bounded(tmp_path: Path) -> None:
    """They expire after 35 s, and at most 192 processes of an account can report."""
    most = users_part(KINDS["reports"].most)
    reports = AllocatorReports(folder_with(tmp_path, range(1, most + 2)))
    for pid in range(1, most + 1):
        reports.put(pid, 1000 + pid, [AllocatorReport(pid, "x", None, 1, 2)], 0.0)

    with pytest.raises(ReportRejectedError, match="unknown users has 192 of 256 processes"):
        reports.put(most + 1, 1001 + most, [], 0.0)
    reports.put(1, 1001, [AllocatorReport(1, "x", None, 1, 2)], EXPIRY_SECONDS)

    assert len(reports.current(EXPIRY_SECONDS)) == most
    assert [claim.pid for claim in reports.current(EXPIRY_SECONDS + 1)] == [1]


def test_reused_pid_is_another_process(tmp_path: Path) -> None:
    """The start time tells them apart, whatever the process name contains."""
    reports = AllocatorReports(folder_with(tmp_path, range(7, 8)))

    with pytest.raises(ReportRejectedError, match="no process 7 that started at tick 1"):
        reports.put(7, 1, [], 0.0)
    reports.put(7, 1007, [], 0.0)
    with pytest.raises(ReportRejectedError):
        AllocatorReports(tmp_path / "nowhere").put(7, 1007, [], 0.0)


def test_marks_of_an_account_displace_its_own() -> None:
    """And those of earlier runs, of root and of another user stay."""
    log = EventLog(budget=(budget := Budget(KINDS["marks"])))
    log.restore([Event(1, 0.0, "mark", "earlier run")])
    log.mark(1.0, "of root", ROOT)
    log.mark(1.0, "of ana", Account("uid 1000"))
    for step in range(1000):
        log.mark(2.0, f"step {step}", Account("uid 1001"))
    for step in range(3):
        log.mark(3.0, f"other {step}", Account("uid 1000"))

    texts = [event.text for event in reversed(log.latest(2000))]
    assert texts[:4] == ["earlier run", "of root", "of ana", "step 629"]
    assert texts[-3:] == ["other 0", "other 1", "other 2"]
    assert budget.recent() == {"uid 1001": 3}  # places that another account took
