"""Names chosen by users reach no terminal, log, page or message with a control character in them."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from memwatch.core.printable import printable
from memwatch_web.api_app import api_routes
from memwatch_web.pages_app import PAGES
from support.alert_machine import quick_config
from support.client_process import memwatch
from support.daemon_process import MEMWATCHD, RunningDaemon, run_program, running_daemon
from support.hostile_names import (
    ESCAPES,
    HOSTILE,
    find_controls,
    find_controls_in_json,
    hostile_machine,
    log_hostile_oom_kill,
)
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

NAMED = "owned"
CONFIG = """
[processes]
interval = "1s"
command_lines = true
"""
EVENTS = 'events = ["pressure.critical", "kernel.oom_kill", "driver.error"]\n'
# Every line of the log begins with the time.
LOG_LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?:DEBUG|INFO|WARNING|ERROR) ")
STREAMS = ("/api/v1/stream", "/live?page=processes", "/live?page=overview", "/live?page=alerts")
PAGE_PATHS = [one.path for one in PAGES if one.method == "GET" and one.path != "/live"]
REFLECTING = ("/api/v1/history?series=", "/api/v1/owners?by=", "/fit?dtype=", "/history?series=")


class Attacked(Struct):
    """The daemon of a hostile machine after an alert, and what its receivers got."""

    daemon: RunningDaemon
    arguments: list[str]
    config: Path
    webhook: Site
    alertmanager: Site
    apprise: Site


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """Fill the machine's memory and kill its largest process, with all three kinds of receivers."""
    folder = tmp_path_factory.mktemp("hostile")
    machine = hostile_machine(folder)
    with receiving(200) as webhook, receiving(200) as alertmanager, receiving(200) as apprise:
        roots = [*machine.arguments, "--state-dir", str(folder / "state")]
        config = CONFIG + quick_config(webhook, extra=EVENTS + receivers(alertmanager, apprise))
        with running_daemon(folder, *roots, config=config) as daemon:
            daemon.wait_for("/api/v1/processes", lambda found: NAMED in str(found))
            machine.fill()
            log_hostile_oom_kill(machine)
            for site in (webhook, alertmanager, apprise):
                wait_until(lambda site=site: len(site.deliveries) >= 2)  # type: ignore[misc]
            daemon.wait_for("/api/v1/events", lambda found: "OOM killer" in str(found))
            yield Attacked(daemon, machine.arguments, folder / "memwatchd.toml", webhook, alertmanager, apprise)


def receivers(alertmanager: Site, apprise: Site) -> str:
    """Return the tables of an Alertmanager and of an Apprise service, at these sites."""
    url, _, _ = alertmanager.url.partition("?")
    chat = apprise.url.replace("http://", "json://").replace("?key=value", "")
    return (
        f'[[alerts.alertmanagers]]\nname = "am"\nurl = "{url}"\n{EVENTS}'
        f'[[alerts.apprise]]\nname = "chat"\nurl = "{chat}"\n{EVENTS}'
    )


def api_paths() -> list[str]:
    plain = [one.path for one in api_routes() if one.method == "GET" and "{" not in one.path]
    parts = [f"/api/v1/owners?by={kind}" for kind in ("unit", "container", "user")]
    return [*(path for path in plain if path not in STREAMS and path != "/metrics"), *parts, "/openapi.json"]


@pytest.mark.parametrize("path", api_paths())
def test_json_has_no_control_character(path: str, attacked: Attacked) -> None:
    """Neither the raw bytes nor a decoded text."""
    answer = attacked.daemon.get(path)

    assert not find_controls_in_json(answer.body, allowed="\n" if path == "/openapi.json" else "")


def test_hostile_names_are_shown_escaped(attacked: Attacked) -> None:
    """The attack arrived: each name is there, in its visible form."""
    snapshot = attacked.daemon.get("/api/v1/snapshot").json
    process = next(one for one in snapshot["processes"] if one["pid"] == 4242)
    events = attacked.daemon.get("/api/v1/events").text

    assert process["name"] == printable(HOSTILE)
    assert process["user"] == printable(f"mallory{ESCAPES}")
    assert process["unit"] == printable(f"evil{ESCAPES}.service in lxc/box{ESCAPES}")
    assert process["container"] == printable(f"box{ESCAPES}")
    assert process["command"] == f"{printable(HOSTILE)} \\xff"
    assert snapshot["host"] == printable(f"box{ESCAPES}")
    assert snapshot["machine"]["name"] == printable(f"Acme Board{ESCAPES}")
    assert "OOM killer: killed \\\\u001b]0;owned" in events


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_page_has_no_control_character(path: str, attacked: Attacked) -> None:
    answer = attacked.daemon.get(path, accept="text/html")

    assert not find_controls(answer.body)


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/metrics", "text/plain"),
        ("/metrics", "application/openmetrics-text; version=1.0.0"),
        ("/api/v1/history?format=csv", "text/csv"),
    ],
)
def test_text_for_programs_has_no_control_character(path: str, accept: str, attacked: Attacked) -> None:
    answer = attacked.daemon.get(path, accept=accept)

    assert answer.status == 200
    assert not find_controls(answer.body, allowed="\r\n" if "csv" in path else "\n")


@pytest.mark.parametrize("path", STREAMS)
def test_stream_has_no_control_character(path: str, attacked: Attacked) -> None:
    """The first events of the stream: the whole snapshot, the parts of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", attacked.daemon.port, timeout=MAX_WAIT_SECONDS)
    connection.request("GET", path)
    response = connection.getresponse()
    found = b"".join(response.readline() for _ in range(6))
    connection.close()

    assert response.status == 200, found
    assert b"data:" in found
    assert not find_controls(found)


def test_log_has_one_line_per_message(attacked: Attacked) -> None:
    """The log names the killed process and the driver's message, and no line is forged."""
    log = attacked.daemon.log.read_bytes()

    assert b"OOM killer: killed" in log
    assert not find_controls(log)
    assert all(LOG_LINE.match(line) for line in log.splitlines())


def test_messages_have_no_control_character(attacked: Attacked) -> None:
    """Bodies and headers of all three kinds; the texts for Alertmanager and Apprise have lines of their own."""
    for site in (attacked.webhook, attacked.alertmanager, attacked.apprise):
        assert any(NAMED in one.body.decode() for one in site.deliveries)
        for delivery in site.deliveries:
            assert not find_controls_in_json(delivery.body, allowed="" if site is attacked.webhook else "\n")
            assert not find_controls("".join(delivery.headers.values()).encode(), allowed="")


@pytest.mark.parametrize("flags", [["--once"], ["--once", "--json"]], ids=["text", "json"])
def test_one_sample_has_no_control_character(flags: list[str], attacked: Attacked) -> None:
    done = run_program(MEMWATCHD, *flags, "--config", attacked.config, *attacked.arguments)

    assert done.returncode == 0
    assert NAMED in done.stdout
    assert not find_controls((done.stdout + done.stderr).encode())


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["top"],
        ["devices"],
        ["backends"],
        ["doctor"],
        ["events"],
        ["history", "--last", "1m"],
        ["fit", "1GiB"],
        ["advise"],
        ["watch", "--count", "1"],
        ["watch", "--count", "1", "--csv"],
        ["run", "--", "true"],
        ["top", "--json"],
        ["events", "--json"],
    ],
    ids=" ".join,
)
def test_client_prints_no_control_character(command: list[str], attacked: Attacked) -> None:
    done = memwatch("--url", attacked.daemon.url, *command)

    assert not find_controls((done.stdout + done.stderr).encode())


@pytest.mark.parametrize("path", REFLECTING)
def test_rejected_request_is_quoted_escaped(path: str, attacked: Attacked) -> None:
    """A script that requests a name and prints the error is not attacked by it."""
    quoted = "%1b%5b2J%c2%9b31m%0d%0aforged%e2%80%ae"
    answer = attacked.daemon.get(path + quoted)

    find = find_controls_in_json if "json" in answer.headers["content-type"] else find_controls
    assert answer.status >= 400
    assert not find(answer.body)
