"""Listeners get every tick, miss no event, and none of them can hurt the daemon or another listener."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS, steal_seconds


class Listener(Struct):
    """Reads server-sent events from a socket, one at a time."""

    connection: socket.socket
    buffer: bytes = b""
    ids: list[str] = field(default_factory=list)

    def next(self) -> tuple[str, Any]:
        """The next event: its name and its data."""
        while b"\n\n" not in self.buffer:
            part = self.connection.recv(65536)
            assert part, "the stream ended"
            self.buffer += part.replace(b"\r\n", b"\n") if b"HTTP/1.1" in part else part
        block, _, self.buffer = self.buffer.partition(b"\n\n")
        fields = [line.partition(": ") for line in block.decode().splitlines()]
        named = {name: value for name, _, value in fields}
        if "id" in named:
            self.ids.append(named["id"])
        if "event" not in named:
            return self.next()
        return named["event"], json.loads(named["data"])

    def until(self, name: str, seconds: float = MAX_WAIT_SECONDS) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found, data = self.next()
            if found == name:
                return data
        raise AssertionError(f"no {name} in {seconds} s")

    def until_in_a_row(self, wanted: int, most: int) -> None:
        """Until so many snapshots followed each other. A hole is a fault, unless this virtual machine's host kept
        time for itself meanwhile (`steal`): two ticks may be ready at once then, and the older is not sent."""
        numbers: list[int] = []
        stolen = steal_seconds()
        while len(numbers) < most:
            numbers.append(self.until("snapshot")["seq"])
            if len(numbers) > 1 and numbers[-1] != numbers[-2] + 1:
                assert steal_seconds() > stolen, f"a hole, and no host to blame: {numbers}"
            if numbers[-wanted:] == list(range(numbers[-1] - wanted + 1, numbers[-1] + 1)):
                return
        raise AssertionError(f"never {wanted} in a row: {numbers}")


@contextmanager
def listening(daemon: RunningDaemon, path: str = "/api/v1/stream", **headers: str) -> Iterator[Listener]:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{lines}\r\n".encode())
        yield Listener(connection)


@pytest.mark.alone
def test_every_tick_is_sent_and_the_snapshots_are_whole(tmp_path: Path) -> None:
    """Ten ticks are ten snapshots, numbered without a hole."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        daemon.snapshot()  # the API is made when it is asked for the first time
        with listening(daemon) as listener:
            listener.until_in_a_row(10, most=300)


def test_a_listener_that_comes_back_gets_the_events_it_missed(tmp_path: Path) -> None:
    """Last-Event-ID of this run resumes; one of another run starts afresh."""
    settings = tmp_path / "memwatchd.toml"
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        with listening(daemon, "/api/v1/stream?events=event") as listener:
            listener.next()
            last = listener.ids[-1]
        settings.write_text("[pressure]\nclear_points = 2\n")
        daemon.process.send_signal(1)
        daemon.wait_for("/api/v1/events", lambda events: any(one["kind"] == "reloaded" for one in events))

        with listening(daemon, "/api/v1/stream?events=event", Last_Event_ID=last) as resumed:
            missed = resumed.until("event")
        with listening(daemon, "/api/v1/stream?events=event", Last_Event_ID="0000-1") as stranger:
            first, _ = stranger.next()

    assert missed["kind"] == "reloaded"
    assert first == "tick"


def test_the_number_of_streams_is_bounded_and_metrics_are_not(tmp_path: Path) -> None:
    """One too many gets a 503 that says when to come back; a scrape is answered all the while."""
    with running_daemon(tmp_path, config="[web]\nmax_streams = 3\n") as daemon:
        opened = [listening(daemon) for _ in range(3)]
        for one in opened:
            one.__enter__().until("snapshot")
        rejected = daemon.get("/api/v1/stream")
        scraped = daemon.get("/metrics")
        for one in opened:
            one.__exit__(None, None, None)
        freed = status_when_freed(daemon)

    assert freed == b"200"
    assert rejected.status == 503
    assert rejected.headers["retry-after"] == "30"
    assert "all 3 streams are in use" in rejected.json["detail"]
    assert scraped.status == 200


def status_when_freed(daemon: RunningDaemon, seconds: float = MAX_WAIT_SECONDS) -> bytes:
    """Ask for a stream until there is one again; the status of the last answer."""
    until = time.monotonic() + seconds
    while True:
        with listening(daemon) as late:
            status = late.connection.recv(200).split(b" ")[1]
        if status == b"200" or time.monotonic() > until:
            return status
        time.sleep(0.1)


@pytest.mark.alone
def test_a_listener_that_never_reads_delays_nobody(tmp_path: Path) -> None:
    """Its socket fills up; the others get their ticks, the daemon its memory back."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        with listening(daemon) as first:  # the API, and all a stream needs, is made for the first who asks
            first.until_in_a_row(5, most=300)
            before = first.until("snapshot")
        deaf = []
        for _ in range(5):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", daemon.port))
            connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            deaf.append(connection)
        with listening(daemon) as listener:
            listener.until_in_a_row(10, most=300)
            after = listener.until("snapshot")
        for connection in deaf:
            connection.close()

    assert after["self"]["rss_bytes"] - before["self"]["rss_bytes"] < 2 << 20


def test_the_live_page_is_a_stream_of_its_own_fragment(tmp_path: Path) -> None:
    """What the browser swaps in is HTML of the page, and an unknown page is refused by name."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
            connection.sendall(b"GET /live?page=overview HTTP/1.0\r\nHost: localhost\r\n\r\n")
            received = b""
            while received.count(b"event: overview") < 2:
                received += connection.recv(65536)
        rejected = daemon.get("/live?page=nonsense")

    assert b"data: <" in received
    assert "System RAM" in received.decode()
    assert rejected.status == 422
    assert "use one of overview, history, processes, " in rejected.json["detail"]
