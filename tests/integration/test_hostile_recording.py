"""A recording comes from another machine, and may be made to attack the terminal of its reader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import KEY, RecordingFile
from memwatch.reporting.render.json import snapshot_json
from support.client_process import memwatch
from support.daemon_process import MEMWATCHD, run_program, running_daemon
from support.hostile_names import ESCAPES, HOSTILE, find_controls, find_controls_in_json
from support.sample_snapshots import critical_gb10

SECONDS = 150
MIB = 1 << 20
LEAKS = '[processes]\nleak_window = "60s"\nleak_least = "1MiB"\n'
SIZES = ("rss_bytes", "footprint_bytes", "footprint_low_bytes", "footprint_high_bytes")
SENTENCES = ("explanation", "text", "error", "note")


def add_attack(value: Any, name: str = "") -> Any:
    """Append the attack to names and sentences."""
    if isinstance(value, list):
        return [add_attack(part) for part in value]
    if isinstance(value, dict):
        return {key: part if key == "absent" else add_attack(part, key) for key, part in value.items()}
    is_name = name in ("name", "host", "user", "unit", "container", "label", *SENTENCES)
    return value + HOSTILE if isinstance(value, str) and is_name else value


def write_recording(path: Path) -> None:
    """Record a process that grows by 4 MiB a second, with the attack in every name."""
    base = add_attack(json.loads(to_bytes(snapshot_json(critical_gb10()))))
    base["machine"]["details"] = {f"soc{ESCAPES}": HOSTILE}
    file = RecordingFile(path, host=HOSTILE, version=HOSTILE)
    for second in range(SECONDS):
        size = (500 + 4 * second) * MIB
        process = {**base["processes"][0], **dict.fromkeys(SIZES, size), "device_bytes": {}}
        snapshot = {**base, "seq": second + 1, "unix": base["unix"] + second, "processes": [process]}
        file.write(json.dumps(snapshot, ensure_ascii=False).encode())
    file.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "box.memwatch"
    write_recording(path)
    return path


def test_replayed_names_are_escaped_everywhere(recording: Path, tmp_path: Path) -> None:
    """In the API, the metrics, a page, the log and the client; the suspected leak is in the log."""
    arguments = ("--replay", str(recording), "--speed", "50")
    with running_daemon(tmp_path, *arguments, config=LEAKS) as daemon:
        daemon.wait_for_log("suspected leak: ")
        bodies = [daemon.get(path).body for path in ("/api/v1/snapshot", "/api/v1/events", "/api/v1/growth")]
        texts = [daemon.get("/metrics").body, daemon.get("/processes", accept="text/html").body]
        client = memwatch("--url", daemon.url, "top")
    log = daemon.log.read_bytes()

    assert all(b"owned" in one for one in [*bodies, log])
    assert not [found for body in bodies for found in find_controls_in_json(body)]
    assert not [found for text in (*texts, log, client.stdout.encode()) for found in find_controls(text)]
    assert all(re.match(rb"\d{4}-", line) for line in log.splitlines())


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_one_sample_of_a_recording_is_escaped(flags: list[str], recording: Path) -> None:
    done = run_program(MEMWATCHD, "--once", *flags, "--replay", recording)

    assert done.returncode == 0
    assert "owned" in done.stdout
    assert not find_controls((done.stdout + done.stderr).encode())


def test_format_error_quotes_the_version_escaped(tmp_path: Path) -> None:
    """A recording of an unknown format names the version that made it."""
    path = tmp_path / "next.memwatch"
    header: dict[str, Any] = {KEY: 99, "version": HOSTILE}
    RecordingFile(path, **header).close()

    done = run_program(MEMWATCHD, "--once", "--replay", path)

    assert done.returncode == 78
    assert "made by memwatchd" in done.stderr
    assert not find_controls((done.stdout + done.stderr).encode())
