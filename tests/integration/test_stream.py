"""Event streams: every tick, resumption without lost events, and slow or too many clients."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import statistics
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from memwatch.core.linux.accounts import MIN_USER_ID
from memwatch_web.asgi.sse import shorten
from support.budget import within
from support.daemon_process import RunningDaemon, get, running_daemon
from support.other_user import CAN_SWITCH, connect_as
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS

# A client behind a proxy, whose user is not known. Root, which may run the tests, is never refused.
PROXIED = {"X-Forwarded-For": "203.0.113.7"}
# The header of a proxy that is no service is not believed.
OF_PROXY = "203.0.113.7" if os.geteuid() < MIN_USER_ID else f"uid {os.geteuid()}"
GZIP = 31  # wbits of zlib for a gzip header and its CRC-32


class Listener(Struct):
    """Reads server-sent events from a socket, one at a time."""

    connection: socket.socket
    buffer: bytes = b""
    ids: list[str] = field(default_factory=list)

    def next(self) -> tuple[str, Any]:
        """Return the name and the data of the next event."""
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
        """Read until `wanted` consecutive snapshots have arrived.

        Where the daemon could not run for longer than a tick, two are ready at once, and the older one is not sent.
        """
        numbers: list[int] = []
        while len(numbers) < most:
            numbers.append(self.until("snapshot")["seq"])
            assert len(numbers) < 2 or numbers[-1] > numbers[-2]
            if numbers[-wanted:] == list(range(numbers[-1] - wanted + 1, numbers[-1] + 1)):
                return
        raise AssertionError(f"never {wanted} in a row: {numbers}")


@contextmanager
def listening(daemon: RunningDaemon, path: str = "/api/v1/stream", **headers: str) -> Iterator[Listener]:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{lines}\r\n".encode())
        yield Listener(connection)


@pytest.mark.host
def test_every_tick_is_sent(tmp_path: Path) -> None:
    """Ten ticks give ten snapshots with consecutive numbers."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        daemon.snapshot()  # the API is created by the first request
        with listening(daemon) as listener:
            listener.until_in_a_row(10, most=300)


def test_reconnected_client_gets_the_events_it_missed(tmp_path: Path) -> None:
    """A Last-Event-ID of this run resumes the stream. That of another run starts a new one."""
    settings = tmp_path / "memwatchd.toml"
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        with listening(daemon, "/api/v1/stream?events=event") as listener:
            listener.until("tick")
            last = listener.ids[-1]
        settings.write_text("[pressure]\nclear_points = 2\n")
        daemon.process.send_signal(1)
        daemon.wait_for("/api/v1/events", lambda events: any(one["kind"] == "reloaded" for one in events))

        with listening(daemon, "/api/v1/stream?events=event", Last_Event_ID=last) as resumed:
            missed = resumed.until("event")
        with listening(daemon, "/api/v1/stream?events=event", Last_Event_ID="0000-1") as unrelated:
            first, _ = unrelated.next()

    assert missed["kind"] == "reloaded"
    assert first == "tick"


def test_streams_are_limited_and_metrics_are_not(tmp_path: Path) -> None:
    """The client above the limit gets 503 with Retry-After. A scrape still works."""
    with running_daemon(tmp_path, config="[web]\nmax_streams = 4\n") as daemon:
        opened = [listening(daemon, X_Forwarded_For="203.0.113.7") for _ in range(3)]
        for one in opened:
            one.__enter__().until("snapshot")
        rejected = get(daemon.port, "/api/v1/stream", headers=PROXIED)
        scraped = daemon.get("/metrics")
        for one in opened:
            one.__exit__(None, None, None)
        freed = status_when_freed(daemon)

    assert freed == b"200"
    assert rejected.status == 503
    assert rejected.headers["retry-after"] == "30"
    assert f"{OF_PROXY} has 3 of 4 open pages and other event streams, its share" in rejected.json["detail"]
    assert scraped.status == 200


def open_stream(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection.recv(100)[9:12]


def test_users_of_this_machine_take_no_stream_from_each_other(tmp_path: Path) -> None:
    """One has all streams of users, also by its subordinate ids. Its oldest ends cleanly for another user."""
    rootfs = tmp_path / "root"
    (rootfs / "etc").mkdir(parents=True)
    (rootfs / "etc/subuid").write_text("54321:100000:65536\n")
    arguments = ("--interval", "100ms", "--rootfs", str(rootfs))
    with running_daemon(tmp_path, *arguments, config="[web]\nmax_streams = 4\n") as daemon, ExitStack() as stack:
        many = [stack.enter_context(connect_as(uid, daemon.port)) for uid in (54321, 100_000, 165_535, 100_001)]
        opened = [open_stream(one) for one in many]
        other = stack.enter_context(connect_as(54322, daemon.port))
        opened.append(open_stream(other))
        rest, until = b"", time.monotonic() + MAX_WAIT_SECONDS
        while CAN_SWITCH and not rest.endswith(b"\r\n0\r\n\r\n"):
            assert time.monotonic() < until
            rest += many[0].recv(1 << 20)
        opened.append(open_stream(stack.enter_context(connect_as(0, daemon.port))))

    if CAN_SWITCH:
        assert opened == [b"200", b"200", b"200", b"503", b"200", b"200"]


def test_account_gets_three_quarters_of_the_streams(tmp_path: Path) -> None:
    """48 of 64. The 503 names the share."""
    with running_daemon(tmp_path) as daemon, ExitStack() as stack:
        for _ in range(48):
            stack.enter_context(listening(daemon, X_Forwarded_For="203.0.113.7")).next()
        assert get(daemon.port, "/live", method="HEAD", headers=PROXIED).status == 503
        refused = get(daemon.port, "/live", headers=PROXIED)

    assert refused.headers["retry-after"] == "30"
    assert (
        f"{OF_PROXY} has 48 of 64 open pages and other event streams, its share: close some"
        in refused.json["detail"]
    )


def status_when_freed(daemon: RunningDaemon, seconds: float = MAX_WAIT_SECONDS) -> bytes:
    """Request a stream until one is available. Return the last status."""
    until = time.monotonic() + seconds
    while True:
        with listening(daemon, X_Forwarded_For="203.0.113.7") as late:
            status = late.connection.recv(200).split(b" ")[1]
        if status == b"200" or time.monotonic() > until:
            return status
        time.sleep(0.1)


@pytest.mark.measure
def test_client_that_never_reads_does_not_delay_others(tmp_path: Path) -> None:
    """Its socket fills up. The others get every tick, and the daemon's memory does not grow."""
    with running_daemon(tmp_path, "--interval", "100ms") as daemon:
        with listening(daemon) as first:  # the first stream creates the API and its streams
            for _ in range(15):  # the daemon's own memory is up to a second old
                before = first.until("snapshot")
        stuck = []
        for _ in range(5):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", daemon.port))
            connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stuck.append(connection)
        with listening(daemon) as listener:
            listener.until_in_a_row(10, most=300)
            after = listener.until("snapshot")
        for connection in stuck:
            connection.close()

    grown = after["self"]["rss_bytes"] - before["self"]["rss_bytes"]
    within("RSS of a client that never reads", grown, 2 << 20, "bytes")


def test_live_stream_sends_html_of_the_page(tmp_path: Path) -> None:
    """The browser inserts this HTML. An unknown page is rejected with the list of pages."""
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


def test_compressed_stream_has_the_same_ticks_in_a_tenth_of_the_bytes(tmp_path: Path) -> None:
    """A part of the page that is the same as in the tick before is an empty element there."""
    with running_daemon(tmp_path, "--interval", "500ms") as daemon, ExitStack() as stack:
        plain, packed = (stack.enter_context(live_stream(daemon, coding)) for coding in ("identity", "gzip"))
        pieces = [packed.read1(1 << 20) for _ in range(6)]
        text = b""
        while text.count(b"\n\n") < 6:
            text += plain.read1(1 << 20)

    whole = text.split(b"\n\n")[:-1]
    ticks = {*whole, *(shorten(after, before) for before, after in pairwise(whole))}
    decoded = zlib.decompressobj(GZIP).decompress(b"".join(pieces)).split(b"\n\n")[:-1]
    assert len(ticks & set(decoded)) >= 4
    assert len(pieces[0]) < len(decoded[0]) / 3
    assert statistics.median(map(len, pieces[1:])) < len(decoded[0]) / 10


@pytest.mark.long  # twenty seconds each: samples that a busy machine skips would be longer
@pytest.mark.parametrize(("demo", "most"), [("dgx-spark", 50_000), ("h100x8-mig", 250_000)])
def test_a_minute_of_the_overview_while_memory_fills_up_is_small(tmp_path: Path, demo: str, most: int) -> None:
    """Compressed bytes of a third of a minute, without the first event, which is the page."""
    with (
        running_daemon(tmp_path, "--demo", demo, "--at", "200s", "--speed", "1") as daemon,
        live_stream(daemon, "gzip", "&form=wide") as packed,
    ):
        inflate, received, text, first = zlib.decompressobj(GZIP), 0, b"", 0
        while text.count(b"\n\n") <= 20:
            piece = packed.read1(1 << 20)
            received += len(piece)
            text += inflate.decompress(piece)
            first = first or (received if b"\n\n" in text else 0)

    assert len(set(re.findall(rb'"verdict":"([^"]+)"', text))) > 10
    assert 0 < received - first <= most / 3


def test_stream_has_the_form_that_the_page_shows(shared_daemons: SharedDaemons) -> None:
    """The other form is an empty element, which stays as it is. Without a form both are sent."""
    daemon, found = shared_daemons.demo("dgx-spark"), {}
    for form in ("", "&form=wide", "&form=narrow"):
        with live_stream(daemon, "identity", form) as stream:
            text = b""
            while b"\n\n" not in text:
                text += stream.read1(1 << 20)
            found[form] = text
    refused = daemon.get("/live?page=overview&form=tall")

    forms = {form: set(re.findall(rb'<svg class="now-(\w+)"', text)) for form, text in found.items()}
    assert forms == {"": {b"wide", b"narrow"}, "&form=wide": {b"wide"}, "&form=narrow": {b"narrow"}}
    assert b'<svg id="now-narrow-ram" data-same></svg>' in found["&form=wide"]
    assert refused.status == 422


@contextmanager
def live_stream(daemon: RunningDaemon, coding: str, more: str = "") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    connection.request("GET", f"/live?page=overview{more}", headers={"Accept-Encoding": coding})
    try:
        with connection.getresponse() as response:
            assert response.headers.get("content-encoding", "identity") == coding
            yield response
    finally:
        connection.close()


def test_stream_for_hidden_pages_has_the_title_and_no_page(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, "--interval", "100ms") as daemon,
        listening(daemon, "/live?page=title") as listener,
    ):
        latest = listener.until("title")
        host = daemon.snapshot()["host"]

    assert latest["title"].endswith(host)
    assert {"seq", "unix", "level", "verdict", "title"} <= set(latest)
