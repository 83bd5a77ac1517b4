"""Demos and recordings: the simulated mark in every interface, and errors for unusable recordings."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch_monitor.render.owners_json import owners_json
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import build_findings, open_recording, read_frames
from memwatchd.settings.schema import DEMOS
from support.api_schema import check_answer
from support.daemon_process import (
    MEMWATCHD,
    POWERLESS,
    RunningDaemon,
    clean_environment,
    get,
    run_program,
    running_daemon,
)
from support.http_exchange import exchange
from support.ingest_client import own_ticks, post
from support.login_settings import login_config
from support.pages import fences
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

MEMWATCH = str(Path(MEMWATCHD).with_name("memwatch"))
PATHS = ("snapshot", "pools", "shares", "devices", "processes", "pressure", "collectors", "alerts", "events")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Run the DGX Spark demo."""
    with running_daemon(tmp_path_factory.mktemp("demo"), "--demo", "dgx-spark", "--speed", "10") as daemon:
        yield daemon


@pytest.mark.parametrize(
    "path", [*PATHS, "history", "ticks", "backends", "last-words", "nonsense", "fit?bytes=20GiB"]
)
def test_every_json_response_is_marked_as_simulated(demo: RunningDaemon, path: str) -> None:
    """In every object, errors included, and in a header, since a list may be empty."""
    answer = demo.get(f"/api/v1/{path}")

    found = answer.json if isinstance(answer.json, list) else [answer.json]
    assert all(one["simulated"] is True for one in found)
    assert answer.headers["memwatch-simulated"] == "true"


def test_responses_to_marks_and_reports_are_marked_as_simulated(demo: RunningDaemon) -> None:
    """A program that posts them can see that they do not reach a real machine."""
    mark = post(demo, "/api/v1/marks", {"text": "Before VAE Load"})
    own = {"pid": os.getpid(), "start_ticks": own_ticks(), "claims": []}
    report = post(demo, "/api/v1/reports", own)

    assert (mark[0], mark[1]["simulated"]) == (200, True)
    assert report == (200, {"simulated": True, "claims": 0})


def test_stream_tick_is_marked_as_simulated(demo: RunningDaemon) -> None:
    """Also for clients that do not subscribe to snapshots."""
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
def test_early_rejections_are_marked_as_simulated(
    demo: RunningDaemon, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """The mark is present although the request does not reach a handler."""
    answer = get(demo.port, path, headers, method)

    assert answer.status == status
    assert answer.json["simulated"] is True
    assert answer.headers["memwatch-simulated"] == "true"


def test_malformed_request_is_rejected_with_the_mark(demo: RunningDaemon) -> None:
    """Errors of the HTTP parser are marked as well."""
    answer = exchange(demo.port, b"HELO demo\r\n\r\n")

    assert answer.status == 400
    assert json.loads(answer.body)["simulated"] is True
    assert b"memwatch-simulated: true" in answer.head


def test_unauthorized_response_is_marked_as_simulated(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--demo", "strix-halo", config=login_config(tmp_path)) as daemon:
        answer = daemon.get("/api/v1/pools")

    assert (answer.status, answer.json["simulated"]) == (401, True)


@pytest.mark.parametrize(
    "path", ["/", "/history", "/history?range=2h", "/processes", "/about", "/docs", "/last-words"]
)
def test_every_page_has_a_simulated_data_banner(demo: RunningDaemon, path: str) -> None:
    assert "<b>Simulated data</b>" in demo.get(path).text


def test_recording_recommends_no_state_folder(demo: RunningDaemon) -> None:
    """A recording is not stored, whatever --state-dir says."""
    pages = [demo.get(path).text for path in ("/about", "/last-words", "/api/v1/last-words")]

    assert "The history of a recording is not written to disk" in pages[0]
    assert "a recording has no previous run" in pages[1]
    assert "a recording has no previous run" in pages[2]
    assert not any("--state-dir" in one for one in pages)


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
def test_every_command_prints_a_simulated_data_notice(demo: RunningDaemon, command: list[str]) -> None:
    """Once, on stderr. With --json there is no notice, since JSON has a field for it."""
    done = run_program(MEMWATCH, "--url", demo.url, *command)

    assert (done.returncode, done.stderr) == (0, SIMULATED)
    assert done.stdout
    if "--csv" not in command:
        assert run_program(MEMWATCH, "--url", demo.url, "--json", *command).stderr == ""


def test_run_and_wait_print_a_simulated_data_notice(demo: RunningDaemon) -> None:
    """`wait` prints it before starting the program, even with --json. `run` has it in its report."""
    started = run_program(MEMWATCH, "--url", demo.url, "--json", "wait", "--free", "1MiB", "--", "echo", "started")
    report = run_program(MEMWATCH, "--url", demo.url, "run", "--", "sleep", "2").stderr
    as_json = run_program(MEMWATCH, "--url", demo.url, "--json", "run", "--", "sleep", "2").stderr

    assert (started.stdout, started.stderr) == ("started\n", SIMULATED)
    assert (
        "  Simulated data: replayed from a recording, not measured on this machine. "
        "Peaks of pools and GPUs are of that machine.\n" in report
    )
    assert json.loads(as_json)["exit_code"] == 0


def test_metrics_are_marked_as_simulated(demo: RunningDaemon) -> None:
    """A dashboard can filter by the label of build_info."""
    assert re.search(r'^memwatch_build_info\{[^}]*simulated="true"', demo.get("/metrics").text, re.MULTILINE)


def test_demo_responses_match_the_schema(demo: RunningDaemon) -> None:
    """The mark is part of the schema."""
    check_answer(demo.get("/api/v1/snapshot").body, "Snapshot")
    check_answer(demo.get("/api/v1/pools").body, "Pool[]")
    check_answer(demo.get("/api/v1/history").body, "History")


def test_demo_starts_with_a_filled_history(demo: RunningDaemon) -> None:
    """The chart is full at once, from calm to critical and back. Time passes ten times as fast."""
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
def test_once_prints_every_demo(name: str) -> None:
    """The mark is in the text."""
    done = run_program(MEMWATCHD, "--demo", name, "--once")

    assert done.returncode == 0, done.stderr
    assert "Simulated data" in done.stdout


@pytest.mark.parametrize("kind", ["user", "container", "unit"])
def test_demo_owners_are_summed_from_its_processes(demo: RunningDaemon, kind: str) -> None:
    """Recordings contain no owners, but demos list every process."""
    answer, processes = demo.get(f"/api/v1/owners?by={kind}").json, demo.snapshot()["processes"]

    assert answer["process_list"] == "complete"
    assert {owner["name"] for owner in answer["owners"]} == {process[kind] for process in processes}
    for owner in answer["owners"]:
        mine = [process for process in processes if process[kind] == owner["name"]]
        assert abs(owner["processes"] - len(mine)) <= 1  # one is killed in this demo, maybe between both
    assert f"by={kind}" in demo.get("/processes").text


def test_recording_of_the_largest_processes_has_no_owners() -> None:
    """It has 4 of 412 processes: no sums, and a note with the reason."""
    snapshot = open_recording(path_of("macbook"), salvage=False).first

    answer = owners_json(replace(snapshot, owners=build_findings(snapshot).owners), "user")

    assert (answer["owners"], answer["process_list"]) == ([], "partial")
    assert "contains only the largest processes" in answer["note"]


def shown_by(page: str, command: str) -> str:
    """Return the sample of a page that begins with this command, without it."""
    (block,) = [one.code for one in fences((ROOT / page).read_text()) if one.code.startswith(f"$ {command}\n")]
    return block.partition("\n")[2]


def test_sample_of_the_readme_is_what_its_command_prints() -> None:
    command = "memwatchd --demo dgx-spark --at 3m --once"

    done = run_program(MEMWATCHD, *command.split()[1:])

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown_by("README.md", command)


def test_first_look_shows_what_the_demo_shows_at_its_start(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--demo", "dgx-spark", "--speed", "0.1") as daemon:
        done = run_program(MEMWATCH, "--url", daemon.url, "status", "--tree")

    assert done.stdout == shown_by("docs/start/first-look.md", "memwatch --url http://127.0.0.1:8099 status --tree")


def test_time_after_the_end_of_a_demo_is_one_line_and_exit_78(tmp_path: Path) -> None:
    """For one sample, for the daemon, and from a file."""
    file = tmp_path / "late.toml"
    file.write_text('[replay]\ndemo = "gh200"\nat = "8m"\n')

    for arguments in (
        ("--demo", "gh200", "--at", "8m", "--once"),
        ("--config", file),
        ("--config", file, "--once"),
    ):
        done = run_program(MEMWATCHD, *arguments)
        assert done.returncode == 78
        assert done.stderr == (
            "memwatchd: gh200 is 7 min long and cannot begin at 8m; use a time from 0s to 419s, such as --at 0s\n"
        )


def test_demo_list_is_printed() -> None:
    """One line per demo: name and description."""
    done = run_program(MEMWATCHD, "--demo", "list")

    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(DEMOS)


def test_recording_of_a_daemon_is_replayed(tmp_path: Path, demo: RunningDaemon) -> None:
    """The client records one daemon, and another daemon replays the file with the original times."""
    file = tmp_path / "box.memwatch"
    done = run_program(MEMWATCH, "--url", demo.url, "record", str(file), "--for", "2s", "--redact")
    recorded = list(read_frames(file))

    with running_daemon(tmp_path, "--replay", str(file), "--speed", "0.5") as daemon:
        snapshot = daemon.snapshot()
        status = run_program(MEMWATCH, "--url", daemon.url, "status")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 snapshots in ")
    assert snapshot["host"] == "host-1"
    assert recorded[0].unix - 0.01 <= snapshot["unix"] <= recorded[-1].unix + 0.01
    assert snapshot["pools"][0]["size_bytes"] == recorded[0].pools[0].size_bytes
    assert "spark-1a2b" not in status.stdout
    assert "Simulated data" in status.stdout


def test_daemon_continues_its_recording_after_a_restart(tmp_path: Path) -> None:
    """Two runs write one undamaged recording with this machine's host name."""
    file, counts = tmp_path / "box.memwatch", []
    for _ in range(2):
        with running_daemon(tmp_path, "--record", str(file), "--interval", "200ms") as daemon:
            # A busy machine is sampled more often, and recorded once an interval.
            first = daemon.snapshot()
            daemon.wait_for("/api/v1/snapshot", lambda now, at=first: now["unix"] >= at["unix"] + 1.0)
            assert daemon.terminate() == 0
        contents = open_recording(file, salvage=False)
        counts.append(contents.count)

    assert 2 <= counts[0] <= counts[1] - 2
    assert contents.first.host == first["host"]
    assert not contents.first.simulated


def test_damaged_recording_is_replayed_only_with_salvage(tmp_path: Path) -> None:
    """Without the option: exit code 78 and its name. With it, the readable part is served."""
    file = tmp_path / "box.memwatch"
    with running_daemon(tmp_path, "--record", str(file), "--interval", "100ms") as daemon:
        daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 10)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])

    rejected = run_program(MEMWATCHD, "--replay", str(file), "--listen", "127.0.0.1:0")
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
            "box.memwatch: no such file or directory; name a file in a folder that exists",
        ),
    ],
)
def test_unusable_recording_options_are_rejected(arguments: tuple[str, ...], sentence: str) -> None:
    """The error has the option, its value and the valid values, without a traceback."""
    done = run_program(MEMWATCHD, *arguments, "--listen", "127.0.0.1:0")

    assert done.returncode in (2, 78)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_recording_of_another_user_is_not_called_no_recording(tmp_path: Path) -> None:
    file = tmp_path / "box.memwatch"
    file.write_bytes(b"")
    file.chmod(0)
    if POWERLESS:  # as root: the owner of a file may not be the user who reads it
        os.chown(file, 65534, 65534)
    command = [*POWERLESS, MEMWATCHD, "--replay", str(file), "--once"]

    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)

    assert done.returncode == 78
    assert "cannot be read (permission denied); let this user read it" in done.stderr
    assert "is not a recording" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--for", "2d"), "which is not a duration from 1s to 24h; for example 10m"),
        (("--for", "1s"), "is not a recording"),
    ],
)
def test_client_rejects_unusable_recording_arguments(
    tmp_path: Path, demo: RunningDaemon, arguments: tuple[str, ...], sentence: str
) -> None:
    """An invalid duration, and a file that is no recording."""
    file = tmp_path / "notes.txt"
    file.write_text("mine")

    done = run_program(MEMWATCH, "--url", demo.url, "record", str(file), *arguments)

    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert file.read_text() == "mine"
