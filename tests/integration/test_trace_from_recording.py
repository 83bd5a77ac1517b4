"""Test that a recording of a daemon becomes a trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.client_process import memwatch
from support.paths import ROOT
from support.shared_daemons import SharedDaemons
from support.trace_file import load_trace


def test_redacted_recording_becomes_a_trace_by_one_command(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    """The path of an owner: record with redaction, convert, score."""
    recording, output = tmp_path / "box.jsonl.gz", tmp_path / "box.jsonl"
    daemon = shared_daemons.demo("dgx-spark")
    memwatch("record", str(recording), "--redact", "--for", "4s", "--url", daemon.url)
    script = [sys.executable, "-m", "scripts.trace_from_recording", str(recording)]

    done = subprocess.run(
        [*script, "--name", "demo", "--highest", "high", "--output", str(output)],
        env={"PYTHONPATH": f"{ROOT}/tests:{ROOT}/daemon:{ROOT}/web", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    trace = load_trace(output)
    assert trace.header.gpu is not None
    assert trace.header.gpu.unified
    assert trace.value("available_bytes", 2) > 0
    assert trace.has("psi_some_seconds")
