"""Redaction of model servers: their ids, models, addresses, notes and processes."""

from __future__ import annotations

from memwatch.core.engines.records import Engine
from memwatch.core.snapshot_json import RECORDS
from memwatch.reporting.recording import Redactor


def test_redacted_server_keeps_its_sizes_and_no_names() -> None:
    engine = Engine(
        "secret-project-chat",
        "vllm",
        "vLLM",
        "http://10.1.2.3:8000",
        3921,
        (3921, 3922),
        "ada",
        model="acme/secret-model",
        weights_bytes=1 << 34,
        notes=("The files of its model (/home/ada/secret-model) are not readable here.",),
    )
    redacted = Redactor().redact({"engines": [RECORDS.encode(engine)]})
    (found,) = redacted["engines"]
    assert (found["pid"], found["pids"], found["weights_bytes"]) == (1, [1, 2], 1 << 34)
    assert (found["id"], found["user"], found["model"], found["url"]) == ("engine-1", "user-1", "model-1", "url-1")
    for name in ("secret", "ada", "10.1.2.3"):
        assert name not in str(redacted)


def test_redacted_server_without_a_process_stays_without() -> None:
    engine = Engine("chat", "vllm", "vLLM", "http://127.0.0.1:8000")
    (found,) = Redactor().redact({"engines": [RECORDS.encode(engine)]})["engines"]
    assert (found["pid"], found["pids"]) == (None, [])
