"""Limits on open connections: which one is closed, and which clients share a limit."""

from __future__ import annotations

import pytest

from memwatchd.http_server.limits import Connections, Group, Limits, name_client
from memwatchd.sockets import Peer


class FakeConnection:
    """Connection in a given state."""

    def __init__(self, client: str = "192.0.2.1") -> None:
        self.client_name = client
        self.group: Group | None = None
        self.used_at = 0.0
        self.is_sending = False
        self.stalled = 0.0
        self.is_closed = False

    def is_idle(self) -> bool:
        return not self.is_sending

    def stalled_seconds(self) -> float:
        return self.stalled

    def evict(self) -> None:
        self.is_closed = True


def connect(connections: Connections, count: int, client: str = "192.0.2.1") -> list[FakeConnection]:
    made = [FakeConnection(client) for _ in range(count)]
    for one in made:
        connections.admit(one)
    return made


def serve(connections: Connections, served: list[FakeConnection], is_sending: bool = False) -> None:
    for one in served:
        one.is_sending = is_sending
        connections.serve(one)


@pytest.mark.parametrize(
    ("host", "peer", "client"),
    [
        ("192.0.2.7", None, "192.0.2.7"),
        ("127.0.0.1", None, "loopback"),
        ("127.8.9.10", None, "loopback"),
        ("::1", None, "loopback"),
        ("2001:db8:1:2:aaaa::1", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", None, "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", None, "2001:db8:1:3::/64"),
        ("fe80::1%eth0", None, "fe80::/64"),
        ("::ffff:192.0.2.7", None, "192.0.2.7"),
        ("::ffff:127.0.0.9", None, "loopback"),
        (None, Peer(1, 1000, 1000), "uid 1000"),
    ],
)
def test_addresses_of_one_client_share_a_name(host: str | None, peer: Peer | None, client: str) -> None:
    assert name_client(host, peer) == client


def test_connection_idle_longest_is_closed() -> None:
    """Idle ones go before older ones without a request. A later request makes a connection younger."""
    connections = Connections(Limits(connections=32))
    waiting, first, second, third = connect(connections, 4)
    serve(connections, [first, second, third])
    third.used_at, second.used_at, first.used_at = 3.0, 2.0, 4.0
    connect(connections, 4)

    connect(connections, 1)

    assert [one.is_closed for one in (waiting, first, second, third)] == [False, False, True, False]


def test_connection_with_a_running_response_stays() -> None:
    """The oldest without a request is closed; if there is none, the new one is closed."""
    connections = Connections(Limits(connections=32))
    sending = connect(connections, 7)
    serve(connections, sending, is_sending=True)
    (waiting,) = connect(connections, 1)

    newer, newest = connect(connections, 2)
    serve(connections, [newest], is_sending=True)
    (refused,) = connect(connections, 1)

    assert not any(one.is_closed for one in (*sending, newest))
    assert (waiting.is_closed, newer.is_closed, refused.is_closed) == (True, True, True)
    assert len(connections) == 8


def test_client_that_does_not_read_is_closed_for_others() -> None:
    """Only if all connections are sending: the one stalled longest, after five seconds."""
    connections = Connections(Limits(connections=32))
    sending = connect(connections, 8)
    serve(connections, sending, is_sending=True)
    sending[3].stalled, sending[5].stalled = 4.0, 4.9
    (early,) = connect(connections, 1)
    sending[3].stalled, sending[5].stalled = 6.0, 6.9

    (late,) = connect(connections, 1)

    assert early.is_closed
    assert not late.is_closed
    assert [one.is_closed for one in sending] == [False] * 5 + [True] + [False] * 2


def test_client_at_its_share_closes_its_own_connections_only() -> None:
    """A quarter of all for an address, half for loopback, which all local users share."""
    connections = Connections(Limits(connections=100))
    other = connect(connections, 5, "192.0.2.2")
    flood = connect(connections, 60)
    local = connect(connections, 80, "loopback")

    assert not any(one.is_closed for one in other)
    assert [one.is_closed for one in flood] == [True] * 35 + [False] * 25
    assert [one.is_closed for one in local] == [True] * 30 + [False] * 50


def test_limit_of_all_clients_holds_for_many_addresses() -> None:
    connections = Connections(Limits(connections=100))
    scraper = connect(connections, 1, "198.51.100.1")
    flood = [connect(connections, 1, f"192.0.2.{number}")[0] for number in range(200)]
    serve(connections, flood[150:], is_sending=True)
    newest = connect(connections, 10, "198.51.100.2")

    assert len(connections) == 100
    assert scraper[0].is_closed
    assert not any(one.is_closed for one in (*newest, *flood[150:]))


def test_streams_come_on_top_of_the_limits() -> None:
    connections = Connections(Limits(connections=40), {None: 20, "192.0.2.1": 20}.get)  # type: ignore[arg-type]
    streams = connect(connections, 20)
    serve(connections, streams, is_sending=True)
    others = connect(connections, 10)

    assert not any(one.is_closed for one in (*streams, *others))
    connect(connections, 1)
    assert others[0].is_closed


def test_closed_connections_are_not_counted() -> None:
    """A client that leaves leaves no entry. A connection that was closed to make room counts once."""
    connections = Connections(Limits(connections=32))
    for one in connect(connections, 20):
        connections.release(one)
        connections.wait(one)
        connections.serve(one)

    assert len(connections) == 0
    assert not any(one.is_closed for one in connect(connections, 8))
