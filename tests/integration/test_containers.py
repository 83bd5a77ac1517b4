"""Container names from a runtime's socket: bounded, non-blocking, and only if configured."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.collectors.containers import MAX_ANSWER_BYTES, Options, RuntimeCollector, parse_containers
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatchd.settings.schema import Settings
from memwatchd.wiring import build_host
from support.container_host import OFTEN, simulated
from support.daemon_process import running_daemon
from support.settings_sample import problems_from, settings_from
from support.waiting import MAX_WAIT_SECONDS

ID = "c0ffee" * 10 + "beef"
LISTED = json.dumps([{"Id": ID, "Names": ["/vllm"], "Image": "vllm"}, {"Id": "f" * 64, "Names": []}]).encode()


def answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def runtime(tmp_path: Path, response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every connection with these bytes; yield the socket's address and the requests."""
    path = tmp_path / "run.sock"
    requests: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    request = connection.recv(65536)
                    if not request:
                        return
                    requests.append(request)
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix:{path}", requests
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
            last.shutdown(socket.SHUT_WR)
            thread.join(MAX_WAIT_SECONDS)


def test_container_names_are_listed_by_id(tmp_path: Path) -> None:
    """The first name of each container, without Docker's slash. A container without a name is left out."""
    with runtime(tmp_path, answer(LISTED)) as (address, requests):
        collector = RuntimeCollector(address)
        findings = collector.collect()
        collector.close()

    assert findings.container_names == {ID[:12]: "vllm"}
    assert requests[0].startswith(b"GET /containers/json HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (answer(b'{"message": "no"}', "403 Forbidden"), "status 403 instead of a list"),
        (answer(b'{"message": "no"}'), "is not a list of containers"),
        (answer(b"[" * 100_000), "is not a list of containers"),
        (answer(b'[{"Id": 5, "Names": ["/a"]}]'), "is not a list of containers"),
        (answer(b"\xff\xfe"), "is not a list of containers"),
        (b"nonsense\r\n\r\n", "instead of an HTTP response"),
        (b"", "instead of an HTTP response"),
        (answer(b" " * (MAX_ANSWER_BYTES + 1)), "a list of more than"),
    ],
    ids=["refused", "no-list", "nested", "no-id", "no-text", "no-http", "silent", "endless"],
)
def test_invalid_response_is_rejected_with_a_reason(response: bytes, reason: str, tmp_path: Path) -> None:
    with runtime(tmp_path, response) as (address, _), pytest.raises(ParseError, match=reason):
        RuntimeCollector(address).collect()


def test_missing_socket_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"nowhere\.sock: No such file"):
        RuntimeCollector(f"unix:{tmp_path}/nowhere.sock").collect()


def test_stopped_docker_is_not_started_again(tmp_path: Path) -> None:
    """wtfutil/wtf#2176: a request to the socket starts a stopped Docker. It removes its pid file as it ends."""
    pid_file = tmp_path / "run.pid"
    with runtime(tmp_path, answer(LISTED)) as (address, requests):
        collector = RuntimeCollector(address)
        pid_file.write_text("4711")
        collector.collect()
        pid_file.unlink()
        with pytest.raises(ParseError, match=r"run\.sock: Docker was stopped, and a request could start it again"):
            collector.collect()
        asked = len(requests)
        pid_file.write_text("4712")
        findings = collector.collect()

    assert asked == 1
    assert findings.container_names == {ID[:12]: "vllm"}


def test_long_names_are_truncated() -> None:
    """A name stays within one line."""
    data = json.dumps([{"Id": ID, "Names": ["/" + "x" * 10_000]}]).encode()

    assert parse_containers(data) == {ID[:12]: "x" * 128}


def test_no_socket_is_opened_unless_configured(tmp_path: Path) -> None:
    """Existing sockets make no difference."""
    assert build_host(Settings()).options_for(Options).socket is None
    with pytest.raises(SourceUnavailable, match="no container runtime socket is configured"):
        RuntimeCollector(None)
    assert settings_from(tmp_path, '[collectors.containers]\nsocket = "unix:/run/x.sock"\n')
    (problem,) = problems_from(tmp_path, '[collectors.containers]\nsocket = "/run/x.sock"\n')
    assert "unix:/run/docker.sock" in problem


def test_container_name_is_shown_in_api_and_page(tmp_path: Path) -> None:
    """Through the daemon: in the owners, with the process and on the page."""
    with runtime(tmp_path, answer(LISTED)) as (address, _):
        config = f'{OFTEN}[collectors.containers]\nsocket = "{address}"\n'
        with running_daemon(
            tmp_path, "--interval", "200ms", *simulated(tmp_path / "host"), config=config
        ) as daemon:
            daemon.wait_until_ok("containers")
            (process,) = daemon.wait_for(
                "/api/v1/processes", lambda found: found and found[0]["container_name"] is not None
            )
            (owner,) = daemon.get("/api/v1/owners?by=container").json["owners"]
            page = daemon.get("/processes").text

    assert process["container_name"] == owner["container_name"] == "vllm"
    assert owner["name"] == ID[:12]
    assert "vllm" in page
