"""`memwatch fit` with a daemon of an earlier version, which does not know all parameters of a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from scripts.published_models import MODELS
from support.client_process import call_memwatch
from support.http_site import http, site
from support.sample_snapshots import critical_gb10, simulated

CONFIGS = {model.name: model.config for model in MODELS}
REFUSAL = {"status": 422, "detail": "unknown parameter 'full_layers' for /api/v1/fit: use bytes, hidden_size."}


def earlier_daemon(snapshot: Snapshot | None, request: bytes) -> bytes:
    """Answer as version 0.1.0 did before plans over several GPUs."""
    if request.startswith(b"GET /api/v1/fit"):
        return http(json.dumps(REFUSAL).encode(), "application/problem+json", "422 Unprocessable Entity")
    body = b'{"schema": 7}' if snapshot is None else to_bytes(snapshot_json(snapshot))
    return http(
        body, "application/json", "200 OK", *(["Memwatch-Simulated: true"] * bool(snapshot and snapshot.simulated))
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gpt-oss-20b"]))
    return str(tmp_path)


def test_answer_comes_from_the_snapshot_of_an_earlier_daemon(model: str) -> None:
    """With splits, the greatest that fits and launch lines."""
    with site(lambda request: earlier_daemon(simulated(), request)) as port:
        url = f"http://127.0.0.1:{port}"
        done = call_memwatch("--url", url, "fit", model, "--launch", "vllm", "--json")
    found = json.loads(done.stdout)

    assert done.returncode == (0 if found["best"] else 1)
    assert done.stderr.startswith(
        f"memwatch: memwatchd at {url} does not know this request; answered from its snap"
    )
    assert "install memwatchd" in done.stderr
    assert {"split", "greatest", "launch", "parts"} <= set(found)
    assert found["simulated"] is True


def test_text_of_a_real_machine_is_the_same_as_with_a_current_daemon(model: str) -> None:
    with site(lambda request: earlier_daemon(critical_gb10(), request)) as port:
        done = call_memwatch("--url", f"http://127.0.0.1:{port}", "fit", model)

    assert done.stdout.startswith(f"{model} needs 20.4 GiB")
    assert "gpu0, NVIDIA GB10" in done.stdout


def test_snapshot_that_cannot_be_used_is_reported_with_the_refusal(model: str) -> None:
    """The error says what failed, why, and what to do."""
    with site(lambda request: earlier_daemon(None, request)) as port:
        done = call_memwatch("--url", f"http://127.0.0.1:{port}", "fit", model)

    assert (done.returncode, done.stdout) == (3, "")
    assert "rejected the request: unknown parameter 'full_layers'" in done.stderr
    assert "its snapshot cannot be used (not a snapshot: it has no schema 1)" in done.stderr
    assert "; install memwatchd" in done.stderr


def test_other_refusals_stay_errors(model: str) -> None:
    refused = http(b'{"detail": "log in"}', "application/problem+json", "401 Unauthorized")
    with site(refused) as port:
        done = call_memwatch("--url", f"http://127.0.0.1:{port}", "fit", model)

    assert done.returncode == 3
    assert done.stderr.endswith("rejected the request: log in\n")
