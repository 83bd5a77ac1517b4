"""Servers that send a byte now and then: each exchange has one deadline. Real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from memwatch.cli.http import DaemonUnreachableError, ask, parse_url
from memwatch.core.collectors.containers import RuntimeCollector as Containers
from memwatch.core.linux.files import ParseError
from memwatch.library.daemon_client import Daemon
from memwatch_monitor.notify.apprise import NOT_ENDED, AppriseChannel, load_service
from memwatchd.neighbours.connection import ANSWER_SECONDS, QUIET_SECONDS, Connection, connect
from memwatchd.settings.endpoints import Peer
from support.neighbours import HEAD, event, serving, tick_data
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import dripping, raw_receiver, receiving

SECONDS = 0.4
MESSAGE = b'{"title": "t", "text": "t", "type": "info"}'


def dripping_body(connection: socket.socket) -> None:
    """Send a head at once, and the body byte by byte."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n[")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("talk", [dripping, dripping_body])
def test_command_ends_at_its_deadline(talk: Callable[[socket.socket], None]) -> None:
    with raw_receiver(talk) as url:
        began = time.monotonic()
        with pytest.raises(DaemonUnreachableError, match=f"no response within {SECONDS:g} s"):
            ask(parse_url(url), "/api/v1/snapshot", seconds=SECONDS)
    assert time.monotonic() - began >= SECONDS


@pytest.mark.parametrize("talk", [dripping, dripping_body])
def test_library_ends_at_its_deadline(talk: Callable[[socket.socket], None]) -> None:
    with raw_receiver(talk) as url:
        client = Daemon(url)
        assert client.get("/api/v1/snapshot", SECONDS) is None
        assert client.is_silent


def test_socket_of_containers_ends_at_its_deadline(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwatch.core.collectors.containers.TIMEOUT_SECONDS", SECONDS)
    path = f"{tmp_path}/docker.sock"
    with raw_receiver(dripping, path), pytest.raises(ParseError, match="timed out"):
        Containers(f"unix:{path}").collect()


@pytest.mark.parametrize("talk", [dripping, dripping_body])
def test_attempt_by_apprise_ends_at_its_deadline(talk: Callable[[socket.socket], None]) -> None:
    """Its timeout is for each read. The next attempt starts no second exchange until it has ended."""
    with raw_receiver(talk) as url:
        channel = AppriseChannel("chat", load_service(url.replace("http", "json")), seconds=SECONDS)
        result = channel.send("id", MESSAGE)
        again = channel.send("id", MESSAGE)
    assert (result.success, result.may_have_arrived) == (False, True)
    assert result.failure == f"no complete answer within {SECONDS:g} s"
    assert again.failure == NOT_ENDED
    with receiving(port=int(urlsplit(url).port or 0)):
        wait_until(lambda: channel.send("id", MESSAGE).success)


def test_waiting_for_apprise_ends_when_memwatchd_stops() -> None:
    with raw_receiver(dripping) as url:
        channel = AppriseChannel("chat", load_service(url.replace("http", "json")))
        threading.Timer(0.1, channel.abort).start()
        assert channel.send("id", MESSAGE).failure == "memwatchd is stopping"


def test_head_of_a_neighbour_that_drips_is_overdue() -> None:
    """Its bytes come, and none of them is an answer."""

    async def follow(peer: Peer) -> None:
        connection = await connect(peer, lambda _: None)
        now = asyncio.get_running_loop().time()
        await wait_for_bytes(connection)
        assert not connection.is_overdue(now)
        assert connection.is_overdue(now + ANSWER_SECONDS + 0.01)
        connection.close()

    with raw_receiver(dripping) as url:
        asyncio.run(follow(peer_at(url)))


def test_event_of_a_neighbour_that_drips_is_overdue() -> None:
    """A complete event counts, and the bytes of one that does not end do not."""
    taken: list[bytes] = []

    def send(connection: socket.socket) -> None:
        connection.sendall(HEAD + event(tick_data()))
        while True:
            connection.sendall(b"d")
            time.sleep(0.02)

    async def follow(peer: Peer) -> None:
        connection = await connect(peer, taken.append)
        while not taken:
            await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(0.2)
        assert not connection.is_overdue(now)
        assert connection.is_overdue(now + QUIET_SECONDS + 0.01)
        connection.close()

    with serving(send) as url:
        asyncio.run(follow(peer_at(url)))


async def wait_for_bytes(connection: Connection) -> None:
    end = time.monotonic() + MAX_WAIT_SECONDS
    while connection.head_bytes < 32:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def peer_at(url: str) -> Peer:
    parts = urlsplit(url)
    return Peer("one", url, "http", str(parts.hostname), int(parts.port or 0))
