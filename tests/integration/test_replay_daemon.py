"""A replayed machine goes through every face, marked everywhere; what cannot be played is refused in a sentence."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter

from memwatch.render.json import owners_json
from memwatch_web.api import schema as contract
from memwatch_web.api import schema_history as contract_past
from memwatchd.recording.demos import path_of
from memwatchd.recording.frames import open_recording, read_frames
from memwatchd.recording.player import build_findings
from memwatchd.settings.schema import DEMOS
from support.daemon_process import MEMWATCHD, RunningDaemon, clean_environment, get, running_daemon
from support.http_exchange import exchange
from support.ingest_client import own_ticks, post
from support.login_settings import login_config
from support.waiting import MAX_WAIT_SECONDS

MEMWATCH = str(Path(MEMWATCHD).with_name("memwatch"))
PATHS = ("snapshot", "pools", "shares", "devices", "processes", "pressure", "collectors", "alerts", "events")


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=clean_environment(**environ), check=False
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A DGX Spark that is not here."""
    with running_daemon(tmp_path_factory.mktemp("demo"), "--demo", "dgx-spark", "--speed", "10") as daemon:
        yield daemon


@pytest.mark.parametrize(
    "path", [*PATHS, "history", "ticks", "backends", "last-words", "nonsense", "fit?bytes=20GiB"]
)
def test_every_json_answer_says_that_it_is_simulated(demo: RunningDaemon, path: str) -> None:
    """In every object, errors included, and in a header where a list is empty."""
    answer = demo.get(f"/api/v1/{path}")

    found = answer.json if isinstance(answer.json, list) else [answer.json]
    assert all(one["simulated"] is True for one in found)
    assert answer.headers["memwatch-simulated"] == "true"


def test_what_programs_tell_is_answered_as_simulated(demo: RunningDaemon) -> None:
    """Whoever marks his steps sees that no real machine has them."""
    mark = post(demo, "/api/v1/marks", {"text": "Before VAE Load"})
    own = {"pid": os.getpid(), "start_ticks": own_ticks(), "claims": []}
    report = post(demo, "/api/v1/reports", own)

    assert (mark[0], mark[1]["simulated"]) == (200, True)
    assert report == (200, {"simulated": True, "claims": 0})


def test_a_tick_of_a_stream_is_marked(demo: RunningDaemon) -> None:
    """Who wants no snapshots learns it too."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=MAX_WAIT_SECONDS)
    try:
        connection.request("GET", "/api/v1/stream?events=event")
        lines = iter(connection.getresponse().readline, b"")
        data = next(line for line in lines if line.startswith(b"data: "))
    finally:
        connection.close()

    assert json.loads(data.removeprefix(b"data: "))["simulated"] is True


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/api/v1/pools", {"Host": "evil.example"}, 400),
        ("POST", "/api/v1/release", {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/v1/release", {"X-Forwarded-For": "192.0.2.1"}, 403),
        ("POST", "/api/v1/pools", {}, 405),
        ("GET", "/api/v1/pools?" + "x" * 9000, {}, 414),
    ],
)
def test_what_is_refused_before_it_is_looked_at_is_marked(
    demo: RunningDaemon, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """By whoever stands in front of the application."""
    answer = get(demo.port, path, headers, method)

    assert answer.status == status
    assert answer.json["simulated"] is True
    assert answer.headers["memwatch-simulated"] == "true"


def test_what_is_no_request_is_refused_with_the_mark(demo: RunningDaemon) -> None:
    """The parser's refusals too."""
    answer = exchange(demo.port, b"HELO demo\r\n\r\n")

    assert answer.status == 400
    assert json.loads(answer.body)["simulated"] is True
    assert b"memwatch-simulated: true" in answer.head


def test_a_stranger_learns_that_it_is_simulated(tmp_path: Path) -> None:
    """401, where a login is set."""
    with running_daemon(tmp_path, "--demo", "strix-halo", config=login_config(tmp_path)) as daemon:
        answer = daemon.get("/api/v1/pools")

    assert (answer.status, answer.json["simulated"]) == (401, True)


@pytest.mark.parametrize(
    "path", ["/", "/history", "/history?range=2h", "/processes", "/about", "/docs", "/last-words"]
)
def test_every_page_says_that_it_is_simulated(demo: RunningDaemon, path: str) -> None:
    """A banner nobody can miss."""
    assert "<b>Simulated data</b>" in demo.get(path).text


SIMULATED = "memwatch: Simulated data: replayed from a recording, not measured on this machine.\n"


@pytest.mark.parametrize(
    "command",
    [
        ["devices"],
        ["events"],
        ["advise"],
        ["history", "--points", "3"],
        ["fit", "1GiB"],
        ["release"],
        ["watch", "--count", "2"],
        ["watch", "--count", "1", "--csv"],
        ["wait", "--free", "1MiB"],
    ],
    ids=" ".join,
)
def test_every_command_says_that_it_is_simulated(demo: RunningDaemon, command: list[str]) -> None:
    """Once, beside what it prints; JSON has a field for it."""
    done = run(MEMWATCH, "--url", demo.url, *command)

    assert (done.returncode, done.stderr) == (0, SIMULATED)
    assert done.stdout
    if "--csv" not in command:
        assert run(MEMWATCH, "--url", demo.url, "--json", *command).stderr == ""


def test_programs_by_simulated_figures_are_told_of(demo: RunningDaemon) -> None:
    """Before `wait` starts one, --json or not: what it prints is its own; and in what `run` reports."""
    started = run(MEMWATCH, "--url", demo.url, "--json", "wait", "--free", "1MiB", "--", "echo", "started")
    report = run(MEMWATCH, "--url", demo.url, "run", "--", "sleep", "2").stderr
    as_json = run(MEMWATCH, "--url", demo.url, "--json", "run", "--", "sleep", "2").stderr

    assert (started.stdout, started.stderr) == ("started\n", SIMULATED)
    assert (
        "  Simulated data: replayed from a recording, not measured on this machine. "
        "What everybody holds of pools and GPUs is that machine's.\n" in report
    )
    assert json.loads(as_json)["exit_code"] == 0


def test_metrics_say_that_they_are_simulated(demo: RunningDaemon) -> None:
    """build_info is what a dashboard can filter by."""
    assert 'memwatch_build_info{simulated="true"' in demo.get("/metrics").text


def test_answers_of_a_demo_are_as_documented(demo: RunningDaemon) -> None:
    """The mark is part of the contract."""
    TypeAdapter(contract.Snapshot).validate_json(demo.get("/api/v1/snapshot").body, strict=True)
    TypeAdapter(list[contract.Pool]).validate_json(demo.get("/api/v1/pools").body, strict=True)
    TypeAdapter(contract_past.History).validate_json(demo.get("/api/v1/history").body, strict=True)


def test_a_demo_has_a_past_when_it_begins(demo: RunningDaemon) -> None:
    """The chart is full at once, from calm to critical and back; time passes ten times as fast."""
    series = demo.get("/api/v1/history?series=pressure.ram.ratio").json["series"][0]
    first = demo.snapshot()
    demo.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["unix"] >= first["unix"] + 10.0)

    known = [value for value in series["max"] if value is not None]
    assert min(known) < 0.2
    assert max(known) > 0.95
    assert series["unix"][-1] - series["unix"][0] > 400
    assert demo.get("/healthz").status == 200
    kinds = {event["kind"] for event in demo.get("/api/v1/events").json}
    assert {"level", "oom_kill"} <= kinds


@pytest.mark.parametrize("name", DEMOS)
def test_every_demo_is_read_once(name: str) -> None:
    """Without a server: the mark is in the text."""
    done = run(MEMWATCHD, "--demo", name, "--once")

    assert done.returncode == 0, done.stderr
    assert "Simulated data" in done.stdout


@pytest.mark.parametrize("kind", ["user", "container", "unit"])
def test_a_demo_adds_up_what_owners_hold(demo: RunningDaemon, kind: str) -> None:
    """Recordings have no owners, and these list every process."""

    answer, processes = demo.get(f"/api/v1/owners?by={kind}").json, demo.snapshot()["processes"]

    assert answer["process_list"] == "complete"
    assert {owner["name"] for owner in answer["owners"]} == {process[kind] for process in processes}
    for owner in answer["owners"]:
        mine = [process for process in processes if process[kind] == owner["name"]]
        assert abs(owner["processes"] - len(mine)) <= 1  # one is killed in this story, perhaps between the two
    assert f"by={kind}" in demo.get("/processes").text


def test_a_recording_of_the_largest_only_does_not_say_what_owners_hold() -> None:
    """Four of 412 processes: no sums, and a sentence."""
    snapshot = open_recording(path_of("macbook"), salvage=False).first

    answer = owners_json(replace(snapshot, owners=build_findings(snapshot).owners), "user")

    assert (answer["owners"], answer["process_list"]) == ([], "partial")
    assert "contains only the largest processes" in answer["note"]


def test_the_list_of_demos_is_printed() -> None:
    """A name and a description a line."""
    done = run(MEMWATCHD, "--demo", "list")

    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(DEMOS)


def test_what_a_daemon_records_is_replayed(tmp_path: Path, demo: RunningDaemon) -> None:
    """From one daemon by its client into a file, from the file by another daemon, with the times of then."""
    file = tmp_path / "box.memwatch"
    done = run(MEMWATCH, "--url", demo.url, "record", str(file), "--for", "2s", "--redact")
    recorded = list(read_frames(file))

    with running_daemon(tmp_path, "--replay", str(file), "--speed", "0.5") as daemon:
        snapshot = daemon.snapshot()
        status = run(MEMWATCH, "--url", daemon.url, "status")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 snapshots in ")
    assert snapshot["host"] == "host-1"
    assert snapshot["unix"] == pytest.approx(recorded[0].unix, abs=2.0)
    assert snapshot["pools"][0]["size_bytes"] == recorded[0].pools[0].size_bytes
    assert "spark-1a2b" not in status.stdout
    assert "Simulated data" in status.stdout


def test_the_daemon_itself_records_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Two runs, one recording, no damage; this machine's figures come back under its name."""
    file = tmp_path / "box.memwatch"
    for _ in range(2):
        with running_daemon(tmp_path, "--record", str(file), "--interval", "200ms") as daemon:
            daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 4)
            host = daemon.snapshot()["host"]
            time.sleep(0.1)
            assert daemon.terminate() == 0

    contents = open_recording(file, salvage=False)

    assert contents.count >= 6
    assert contents.first.host == host
    assert not contents.first.simulated


def test_a_damaged_recording_is_refused_and_played_if_asked(tmp_path: Path) -> None:
    """Exit code 78 and the option that helps; with it the readable part is served."""
    file = tmp_path / "box.memwatch"
    with running_daemon(tmp_path, "--record", str(file), "--interval", "100ms") as daemon:
        daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 10)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])

    rejected = run(MEMWATCHD, "--replay", str(file), "--listen", "127.0.0.1:0")
    with running_daemon(tmp_path, "--replay", str(file), "--salvage") as daemon:
        assert daemon.snapshot()["simulated"]

    assert rejected.returncode == 78
    assert "is damaged after" in rejected.stderr
    assert "--salvage plays" in rejected.stderr
    assert "Traceback" not in rejected.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--replay", "/etc/hostname"), "is not a recording (it has no header)"),
        (("--replay", "/nonexistent/box.memwatch"), "is not a recording (no such file or directory)"),
        (("--demo", "cray-1"), "which is not one of dgx-spark, jetson-orin,"),
        (
            ("--demo", "gh200", "--replay", "x"),
            "--demo and --replay are mutually exclusive; use one of them",
        ),
        (("--demo", "gh200", "--speed", "1000"), "--speed is 1000.0, which is not a number from 0.1 to 100"),
        (("--record", "/etc/hostname"), "is not a recording"),
        (
            ("--record", "/nonexistent/box.memwatch"),
            "box.memwatch: no such file or directory",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    """The thing, the value, and what would work; no traceback."""
    done = run(MEMWATCHD, *arguments, "--listen", "127.0.0.1:0")

    assert done.returncode in (2, 78)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--for", "2d"), "which is not a duration from 1s to 24h; for example 10m"),
        (("--for", "1s"), "is not a recording"),
    ],
)
def test_the_client_refuses_what_it_cannot_record(
    tmp_path: Path, demo: RunningDaemon, arguments: tuple[str, ...], sentence: str
) -> None:
    """A bad duration, and a file that is something else."""
    file = tmp_path / "notes.txt"
    file.write_text("mine")

    done = run(MEMWATCH, "--url", demo.url, "record", str(file), *arguments)

    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert file.read_text() == "mine"
