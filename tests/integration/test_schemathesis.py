"""Responses to valid and invalid requests match /openapi.json."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS

if TYPE_CHECKING:
    from schemathesis import GenerationMode

TOO_LONG, MAX_TARGET_BYTES = 414, 8192
ENDLESS = "/api/v1/stream"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run one daemon for all generated requests."""
    with running_daemon(tmp_path_factory.mktemp("schema"), "--interval", "200ms") as running:
        yield running


@pytest.fixture(scope="module")
def schemathesis() -> ModuleType:
    """Import it for these tests only: each worker of each lane collects this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of its dependencies during import
        import schemathesis
        import schemathesis.specs.openapi.checks
    return schemathesis


@pytest.mark.long
def test_every_operation_matches_its_description(daemon: RunningDaemon, schemathesis: ModuleType) -> None:
    """Status, content type and schema match, invalid requests are rejected, and no 5xx occurs except 503."""
    description = schemathesis.openapi.from_url(f"{daemon.url}/openapi.json")
    described = list(description.exclude(path=ENDLESS).get_all_operations())
    operations = [found.ok() for found in described if isinstance(found, schemathesis.core.result.Ok)]
    assert len(operations) == len(described) > 10

    for operation in operations:
        for mode in schemathesis.GenerationMode:
            check_operation(operation, mode, daemon.url, checks_of(schemathesis))


def checks_of(schemathesis: ModuleType) -> list[Any]:
    openapi = schemathesis.specs.openapi.checks
    return [
        schemathesis.checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
        openapi.negative_data_rejection,
        openapi.unsupported_method,
    ]


def check_operation(operation: Any, mode: GenerationMode, url: str, checks: list[Any]) -> None:
    """Send valid or invalid requests. An operation without parameters has no invalid ones."""

    @settings(
        max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def judge(case: Any) -> None:
        answer = case.call(base_url=url, timeout=MAX_WAIT_SECONDS)
        if answer.status_code == TOO_LONG:  # from the HTTP server, before routing
            assert len(answer.request.url or "") > MAX_TARGET_BYTES
        else:
            case.validate_response(answer, checks=checks)

    with suppress(Unsatisfiable) if mode.is_negative else nullcontext():
        judge()


@pytest.mark.long
def test_daemon_is_healthy_after_all_requests(daemon: RunningDaemon) -> None:
    assert daemon.get("/healthz").status == 200
    assert "Traceback" not in Path(daemon.log).read_text()
