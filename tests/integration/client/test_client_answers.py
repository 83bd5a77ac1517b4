"""Output of `memwatch` for an unreachable daemon, a rejected request, and a server that is not memwatchd."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from memwatch.cli.http import DaemonUnreachableError, ask, parse_url
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from support.client_process import COMMANDS, call_memwatch
from support.daemon_process import running_daemon
from support.dead_address import dead_port
from support.http_site import http, site
from support.sample_snapshots import critical_gb10, hostile_names


@pytest.mark.parametrize("command", ["events", "release"])
def test_events_and_release_need_a_daemon(command: str) -> None:
    """The error has the address, the reason, and the command that starts a daemon."""
    port = dead_port()

    done = call_memwatch(command, "--url", f"http://127.0.0.1:{port}")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"memwatch: cannot reach memwatchd at http://127.0.0.1:{port} (connection refused); "
        f"start one with: memwatchd --listen 127.0.0.1:{port}, or set another address with --url\n"
    )


@pytest.mark.parametrize(
    ("url", "error", "sentence"),
    [
        (
            "http://gpu7:6360",
            socket.gaierror(-2, "Name or service not known"),
            "cannot resolve the host name gpu7 (name or service not known); correct it, "
            "or set another address with --url",
        ),
        (
            "http://gpu7:7000",
            ConnectionRefusedError(111, "Connection refused"),
            "cannot reach memwatchd at http://gpu7:7000 (connection refused); start one there with a login "
            '(listen = ["0.0.0.0:7000"] under [web], and a bearer_token under [web.auth]), '
            "or set another address with --url",
        ),
        (
            "http://gpu7:7000",
            OSError(113, "No route to host"),
            "cannot reach memwatchd at http://gpu7:7000 (no route to host); check that the machine is up and its "
            "firewall allows port 7000, or set another address with --url",
        ),
        (
            "http://127.0.0.1:7000",
            TimeoutError(),
            "cannot reach memwatchd at http://127.0.0.1:7000 (no response within 10 s); start one with: "
            "memwatchd --listen 127.0.0.1:7000, or set another address with --url",
        ),
    ],
)
def test_advice_depends_on_the_connection_error(url: str, error: OSError, sentence: str) -> None:
    """An unknown name, a refused connection, an unreachable machine. No advice suggests running without a login."""
    assert str(DaemonUnreachableError(parse_url(url), error, 10.0)) == sentence


def test_unresolvable_host_name_is_reported() -> None:
    """With the resolver's message. .invalid is reserved for names that never exist (RFC 6761)."""
    done = call_memwatch("status", "--url", "http://gpu7.invalid:6360")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("memwatch: cannot resolve the host name gpu7.invalid (")


# Required arguments.
ARGUMENTS = {"fit": ("20GiB",), "room": ("20GiB",), "silence": ("all",), "wait": ("--free", "1GiB")}


# `run` continues without a daemon: the program matters more than its report. `check` has its own exit codes; 1 of
# `fit` and `room` is a no.
@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in ("check", "run")])
def test_unreachable_machine_is_not_replaced_by_this_one(command: str) -> None:
    """0.0.0.0 is not a loopback address: an unreachable daemon is an error there, not this machine's figures."""
    done = call_memwatch(command, "--url", f"http://0.0.0.0:{dead_port()}", *ARGUMENTS.get(command, ()))

    assert (done.returncode, done.stdout) == (3 if command in ("fit", "room") else 1, "")
    assert "connection refused" in done.stderr
    assert "reading this machine directly" not in done.stderr


def test_unusable_socket_is_reported(tmp_path: Path) -> None:
    """A path that is no socket, and a missing one."""
    plain = tmp_path / "plain"
    plain.write_text("")

    rejected = call_memwatch("events", "--url", f"unix:{plain}")
    missing = call_memwatch("events", "--url", f"unix:{tmp_path}/missing")

    assert "(connection refused)" in rejected.stderr
    assert "(no such file or directory); start one with: memwatchd --listen unix:" in missing.stderr


def test_rejection_shows_the_message_of_the_daemon(tmp_path: Path) -> None:
    """It is the `detail` of problem+json."""
    with running_daemon(tmp_path) as daemon:
        done = call_memwatch("events", "--url", f"{daemon.url}/wrong")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"memwatch: {daemon.url}/wrong rejected the request: "
        "No such path. The available paths are listed at /docs.\n"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http(b"<html>", "text/html"), "is not a memwatchd: it sent text/html"),
        (http(b"<html>", "text/html", "500 Internal Server Error"), "returned 500 Internal Server Error"),
        (http(b'{"detail": 7}', status="403 Forbidden"), "returned 403 Forbidden"),
        (http(b"{", "application/json"), "not valid JSON"),
        (http(b"[" * 100_000, "application/json"), "not valid JSON"),
        (http(b"\xff\xfe\xff", "application/json"), "not valid JSON"),
        (http(b"[]"), "unexpected response from"),
        (http(b"{}"), "unexpected response from"),
        (http(b'{"pools": [1], "unix": 1.0}'), "unexpected response from"),
        (http(b'{"pools": {}, "unix": "soon"}'), "unexpected response from"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "is not a memwatchd"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", "returned 302 Found"),
    ],
    ids=[
        "html",
        "500",
        "problem",
        "cut",
        "bomb",
        "bytes",
        "list",
        "empty",
        "shape",
        "type",
        "ssh",
        "short",
        "redirect",
    ],
)
@pytest.mark.parametrize("command", ["status", "watch"])
def test_response_of_another_server_is_an_error(answer: bytes, words: str, command: str) -> None:
    """One line, exit code 1, no traceback, and no figures of this machine instead."""
    with site(answer) as port:
        done = call_memwatch(command, "--url", f"http://127.0.0.1:{port}")

    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_silent_server_times_out() -> None:
    """The server accepts the connection and sends nothing."""
    with site(None) as port, pytest.raises(DaemonUnreachableError, match=r"no response within 0.5 s"):
        ask(parse_url(f"http://127.0.0.1:{port}"), "/api/v1/snapshot", seconds=0.5)


def test_old_snapshot_is_shown_as_stale() -> None:
    """By the daemon's clock: its Date header is minutes after its snapshot."""
    snapshot = to_bytes(snapshot_json(critical_gb10()))
    with site(http(snapshot, "application/json", "200 OK", "Date: Sat, 21 Nov 2026 10:25:33 GMT")) as port:
        done = call_memwatch("status", "--url", f"http://127.0.0.1:{port}")

    assert done.returncode == 0
    assert "Stale data, from 3 min ago: memwatchd is not sampling." in done.stdout


def test_control_characters_in_names_are_escaped() -> None:
    """Escape sequences and direction marks do not reach the terminal."""
    found = json.loads(to_bytes(snapshot_json(hostile_names())))
    found["host"] = "gpu\x1b]0;owned\x07\u202e"
    with site(http(json.dumps(found).encode())) as port:
        done = call_memwatch("status", "--url", f"http://127.0.0.1:{port}")

    assert done.returncode == 0
    assert "gpu\\u001b]0;owned\\u0007\\u202e" in done.stdout
    assert "\x1b" not in done.stdout
