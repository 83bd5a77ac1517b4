"""`memwatch silence` beside a daemon: create, list, end, and errors with a remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.login_settings import login_config

USAGE = 'memwatch: name a TARGET, such as "memwatch silence ram --for 1h", or use --list or --end ID\n'


def run(daemon: RunningDaemon, *arguments: str) -> str:
    done = call_memwatch("--url", daemon.url, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_silence_is_created_shown_by_every_command_and_ended(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        created = run(daemon, "silence", "all", "--for", "8h", "--comment", "new GPUs")
        (made,) = daemon.get("/api/v1/silences").json
        in_snapshot = daemon.get("/api/v1/snapshot").json["silences"]
        shown = [
            run(daemon, *command) for command in (("status",), ("status", "--tree"), ("top", "--once"), ("alerts",))
        ]
        listed = run(daemon, "silence", "--list")
        ended = run(daemon, "silence", "--end", made["id"])
        after = run(daemon, "silence", "--list"), run(daemon, "status")

    assert ": no one is notified\n" in created
    assert f"end it: memwatch silence --end {made['id']}\n" in created
    assert made["until_unix"] - made["created_unix"] == 8 * 3600
    assert (made["comment"], made["target"], made["event"]) == ("new GPUs", None, None)
    assert f"uid {os.geteuid()}" in made["made_by"]
    assert in_snapshot == [{name: value for name, value in made.items() if name != "note"}]
    assert all(": no one is notified (end it:" in " ".join(text.split()) for text in shown)
    assert made["id"] in listed
    assert "new GPUs" in listed
    assert ended == f"silence ended: {made['id']}\n"
    assert after[0] == "No silences.\n"
    assert "silenced" not in after[1]


def test_silence_of_one_target_names_it_and_notes_that_it_is_missing(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        ram = run(daemon, "silence", "ram")
        event = run(daemon, "silence", "ram", "--event", "pressure.critical", "--for", "30d")
        gone = run(daemon, "silence", "gpu9")
        made = json.loads(run(daemon, "silence", "--list", "--json"))

    assert ram.startswith("System RAM is silenced by ")
    assert event.startswith("pressure.critical alerts of System RAM are silenced by ")
    assert "note: no target 'gpu9' at present; present targets: ram" in gone
    assert [(one["target"], one["event"]) for one in made] == [
        ("ram", None),
        ("ram", "pressure.critical"),
        ("gpu9", None),
    ]
    assert made[0]["until_unix"] - made[0]["created_unix"] == 3600


@pytest.mark.parametrize(
    "arguments", [(), ("ram", "--list"), ("ram", "--end", "sil_1"), ("--list", "--end", "sil_1")]
)
def test_exactly_one_of_target_list_and_end_is_needed(arguments: tuple[str, ...]) -> None:
    done = call_memwatch("silence", *arguments)

    assert (done.returncode, done.stdout, done.stderr) == (2, "", USAGE)


@pytest.mark.parametrize("duration", ["0s", "31d", "soon", ""])
def test_invalid_duration_is_refused_with_the_valid_ones(duration: str) -> None:
    done = call_memwatch("silence", "ram", "--for", duration)

    assert done.returncode == 2
    assert done.stderr == (
        f'memwatch: --for is "{duration}", which is not a duration from 1s to 30d; for example 1h\n'
    )


def test_refusals_name_the_remedy(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        unknown = call_memwatch("--url", daemon.url, "silence", "--end", "sil_9")
        empty = call_memwatch("--url", daemon.url, "silence", "--end", "")
        event = call_memwatch("--url", daemon.url, "silence", "ram", "--event", "fire")
        long = call_memwatch("--url", daemon.url, "silence", "x" * 257)
        made = daemon.get("/api/v1/silences").json

    assert unknown.stderr == 'memwatch: no silence "sil_9"; "memwatch silence --list" lists those in force\n'
    assert empty.stderr == 'memwatch: no silence ""; "memwatch silence --list" lists those in force\n'
    assert "event is 'fire': use one of pressure.critical" in event.stderr
    assert "target" in long.stderr
    assert {one.returncode for one in (unknown, empty, event, long)} == {1}
    assert made == []


def test_silence_without_a_login_is_refused(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=login_config(tmp_path)) as daemon:
        done = call_memwatch("--url", daemon.url, "silence", "all")

    assert done.returncode == 1
    assert "MEMWATCH_TOKEN" in done.stderr
