"""A hostile server, or a program that took the daemon's port, cannot write to the terminal of a client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from support.client_process import call_memwatch, memwatch
from support.hostile_names import HOSTILE, find_controls
from support.http_site import http, site
from support.library_process import run_program
from support.sample_snapshots import critical_gb10

COMMANDS = (
    ["status"],
    ["status", "--tree"],
    ["top"],
    ["top", "--once"],
    ["owners"],
    ["growth"],
    ["alerts"],
    ["last-words"],
    ["check"],
    ["devices"],
    ["backends"],
    ["doctor"],
    ["node-features"],
    ["events"],
    ["history"],
    ["fit", "1GiB"],
    ["advise"],
    ["release"],
    ["silence", "--list"],
    ["watch", "--count", "1"],
    ["watch", "--count", "1", "--csv"],
    ["run", "--", "true"],
    ["wait", "--free", "1", "--device", "gpu9", "--timeout", "1s"],
    ["wait", "--free", "999TiB"],
)
# These print no name.
NAMELESS = ("run", "wait", "advise", "watch", "node-features")
HEADER = HOSTILE.replace("\n", "").replace("\r", "")
PROBLEM = json.dumps({"detail": HOSTILE, "title": HOSTILE, "status": 500}).encode()
REFUSALS = {
    "detail": http(PROBLEM, "application/problem+json", "500 Internal Server Error"),
    "reason": http(b"{}", "application/json", f"500 {HEADER}"),
    "content type": http(b"{}", f"text/{HEADER}"),
    "status line": f"HTTP/1.1 {HEADER}\r\n\r\n".encode(),
    "redirect": http(b"", "text/html", f"302 {HEADER}", f"Location: http://127.0.0.1:1/{HEADER}"),
    "date": http(b"[]", "application/json", "200 OK", f"Date: {HEADER}"),
    "keys": http(json.dumps({HOSTILE: HOSTILE}).encode()),
    "text": http(json.dumps(HOSTILE).encode()),
}


def with_hostile_texts(value: Any) -> Any:
    """Append the attack to every text that has no fixed set of values."""
    if isinstance(value, list):
        return [with_hostile_texts(part) for part in value]
    if isinstance(value, dict):
        return {name: part if name in FIXED else with_hostile_texts(part) for name, part in value.items()}
    return value + HOSTILE if isinstance(value, str) else value


# Texts that a client compares or decodes.
FIXED = ("absent", "kind", "quality", "architecture", "level", "base_level", "boot_id")


def hostile_body() -> dict[str, Any]:
    """Return one body with the fields of all answers: the site sends the same to every request."""
    snapshot = with_hostile_texts(json.loads(to_bytes(snapshot_json(critical_gb10()))))
    points = {"unix": [1.0], "min": [1.0], "avg": [1.0], "max": [1.0]}
    return {
        **snapshot,
        "series": [{"name": HOSTILE, "unit": HOSTILE, **points}],
        "worst": "hint",
        "version": HOSTILE,
        "revision": HOSTILE,
        "checks": [{"id": "x", "verdict": "hint", "text": HOSTILE, "remedy": HOSTILE}],
        "bytes": 1,
        "best": None,
        "verdicts": [VERDICT],
        "released": [HOSTILE],
        "seconds": 1.0,
        "age_seconds": 5.0,
        "recommended": HOSTILE,
        "recommended_reason": HOSTILE,
        "backends": [
            {"name": HOSTILE, "label": HOSTILE, "available": True, "reason": HOSTILE, "devices": []},
        ],
    }


VERDICT: dict[str, Any] = {"device": HOSTILE, "name": HOSTILE, "fits": None, "reason": HOSTILE}
VERDICT |= {"size_bytes": 1, "headroom_after_reclaim_bytes": 1, "spare_bytes": 0}
REASONS = [{"signal": HOSTILE, "text": HOSTILE}]
SILENCE = {"id": HOSTILE, "event": HOSTILE, "until_unix": 1.0, "created_unix": 0.0}
SILENCE |= {"comment": HOSTILE, "made_by": HOSTILE}
PROCESS = {"pid": 1, "name": HOSTILE, "user": HOSTILE, "footprint_bytes": 1, "grown_bytes": 1, "to_bytes": 1}
# Answers of commands whose fields are not those of a snapshot.
ANSWERS: dict[str, Any] = {
    "events": [{"seq": 1, "unix": 1.0, "time": HOSTILE, "kind": HOSTILE, "text": HOSTILE}],
    "alerts": [
        {"target": HOSTILE, "rule": HOSTILE, "severity": HOSTILE, "state": HOSTILE, "since_unix": 1.0}
        | {"silenced": False, "reasons": REASONS}
        | SILENCE  # the list of silences follows
    ],
    "silence": [{**SILENCE, "target": HOSTILE, "note": HOSTILE}],
    "owners": {
        "by": HOSTILE,
        "note": HOSTILE,
        "owners": [
            {"name": HOSTILE, "processes": 1, "rss_bytes": 1, "footprint_bytes": 1, "device_bytes": {HOSTILE: 1}}
        ],
    },
    "growth": {
        "from": 1.0,
        "to": 2.0,
        "processes": [{**PROCESS, "from_unix": 1.0, "windows": {"60": 1}}],
        "suspects": [{**PROCESS, "evidence": HOSTILE}],
    },
    "last-words": {
        "unix": 1.0,
        "machine_restarted": True,
        "samples": [{"unix": 1.0, "figures": {f"{HOSTILE}.used_bytes": 1.0}}],
        "last": {
            "unix": 1.0,
            "pools": [],
            "pressure": [{"target": "ram", "label": HOSTILE, "level": "high", "ratio": 1.0, "reasons": [HOSTILE]}],
            "processes": [{**PROCESS, "unit": HOSTILE, "container": HOSTILE, "rss_bytes": 1}],
        },
    },
}


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Check both outputs. Errors are lines of our own."""
    assert not find_controls((done.stdout + done.stderr).encode("utf-8", "surrogatepass"))
    assert "Traceback" not in done.stderr
    assert not any(line.startswith("<0>") for line in (done.stdout + done.stderr).splitlines())


@pytest.mark.parametrize(
    ("refusal", "command"),
    [
        *((one, command) for one in ("detail", "keys") for command in COMMANDS),
        *((one, ["history"]) for one in REFUSALS if one not in ("detail", "keys")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_refusal_of_a_hostile_server_is_printed_escaped(refusal: str, command: list[str]) -> None:
    with site(REFUSALS[refusal]) as port:
        check(call_memwatch("--url", f"http://127.0.0.1:{port}", *command))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("output", ["text", "json"])
def test_names_from_a_hostile_server_are_printed_escaped(output: str, command: list[str]) -> None:
    flags = ["--json"] if output == "json" else []
    body = ANSWERS.get(command[0]) or hostile_body()
    with site(http(json.dumps(body).encode())) as port:
        done = call_memwatch("--url", f"http://127.0.0.1:{port}", *flags, *command)

    check(done)
    assert "owned" in done.stdout + done.stderr or command[0] in NAMELESS


INVALID = {
    "not a number": ("interval_seconds", "nan"),
    "too long": ("interval_seconds", 1e300),
    "no time": ("unix", {}),
}


@pytest.mark.parametrize("invalid", INVALID)
def test_recording_of_an_invalid_snapshot_fails_in_one_sentence(invalid: str, tmp_path: Path) -> None:
    name, value = INVALID[invalid]
    done = record({**hostile_body(), name: value}, tmp_path)

    check(done)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_recording_of_a_lone_surrogate_fails_in_one_sentence(tmp_path: Path) -> None:
    """UTF-8 cannot encode it."""
    done = record({**hostile_body(), "host": "\ud800"}, tmp_path)

    check(done)
    assert done.returncode == 1


def test_recording_prints_no_name_of_the_server(tmp_path: Path) -> None:
    """Names are recorded as they are sent; replay escapes them."""
    done = record(hostile_body(), tmp_path)

    check(done)
    assert done.returncode == 0


def record(body: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    """Record what a server with this snapshot sends in one second."""
    file = str(folder / "box.memwatch")
    with site(http(json.dumps(body).encode())) as port:
        return memwatch("--url", f"http://127.0.0.1:{port}", "record", file, "--for", "1s")


LIBRARY = """
import logging, sys, time
logging.basicConfig(level=logging.DEBUG)
import memwatch
found, info = memwatch.machine(), memwatch.memory_info()
print(found.host, found.name, found.explanation, info and info.label)
for one in (*found.pools, *found.shares, *found.devices):
    print(one.id, getattr(one, "label", ""), getattr(one, "note", ""), getattr(one, "name", ""))
for one in memwatch.discover_backends().backends:
    print(one.name, one.label, one.reason)
change = []
watch = memwatch.on_pressure(change.append, "low")
time.sleep(0.5)
for one in change:
    print(one.target, *one.reasons)
"""


@pytest.mark.parametrize("answer", ["names", *REFUSALS])
def test_library_prints_no_control_character_of_a_server(answer: str) -> None:
    body = http(json.dumps(hostile_body()).encode()) if answer == "names" else REFUSALS[answer]
    with site(body) as port:
        done = run_program(LIBRARY, f"http://127.0.0.1:{port}")

    check(done)
