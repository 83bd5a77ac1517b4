"""A slow event stream does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memwatch.core.budget import EVENT_STREAMS, ROOT, Account, Budget, Rank
from memwatch.core.linux.tcp_peer import TcpEnd
from memwatch.core.snapshot import Snapshot
from memwatch_web.asgi.broker import Broker, Stream
from memwatch_web.asgi.caller import MAX_LOOKUPS, CallerLookup, PeerLookups
from memwatch_web.asgi.sse import EventStream, Identity
from memwatch_web.asgi.threads import QueueFullError


async def find_account(scope: Any) -> Account:
    return Account(scope.get("memwatch.cli", ""))


async def stay() -> Any:
    """Receive nothing: the client stays."""
    await asyncio.Event().wait()


def answer_of(broker: Broker, find: Callable[[Any], Awaitable[Account]], **scope: str) -> list[Any]:
    """Return the messages that a client gets who stays until its request is answered."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(EventStream(broker, Identity(lambda _: b""), find)({"type": "http", **scope}, stay, send))
    return sent


def test_stream_as_slow_as_sampling_yields_to_other_tasks() -> None:
    """A newer snapshot is always there. Other tasks still get every second turn of the loop."""
    numbers = count()
    rendered: list[int] = []
    turns_of_another = 0

    def chunk_of(number: Snapshot) -> bytes:
        rendered.append(cast("int", number))
        if len(rendered) == 50:
            broker.close()
        return b"data: x\n\n"

    async def send(_: Any) -> None:
        """Return at once, as a server does while the socket is writable."""

    async def another() -> None:
        nonlocal turns_of_another
        while not broker.closed:
            turns_of_another += 1
            await asyncio.sleep(0)

    async def both() -> None:
        stream = EventStream(broker, Identity(chunk_of), find_account)
        await asyncio.gather(stream({"type": "http"}, stay, send), another())

    broker = Broker(lambda: cast("Snapshot", next(numbers)), budget(10))
    asyncio.run(both())

    assert len(rendered) == 50
    assert rendered == sorted(set(rendered))
    assert turns_of_another >= 49
    assert broker.streams == 0


def test_stream_that_cannot_be_rendered_ends_with_its_reason_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    def chunk_of(_number: Snapshot) -> bytes:
        raise LookupError("no such template")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    numbers = count()
    broker = Broker(lambda: cast("Snapshot", next(numbers)), budget(10))
    for _ in range(2):
        asyncio.run(EventStream(broker, Identity(chunk_of), find_account)({"type": "http"}, receive, send))

    assert caplog.messages == ["a live stream ended: LookupError: no such template"]
    assert [message.get("more_body") for message in sent] == [None, False] * 2
    assert broker.streams == 0


def budget(most: int) -> Budget:
    return Budget(EVENT_STREAMS, most)


def opened(broker: Broker, *clients: str) -> list[Stream | None]:
    return [broker.join(client, Account(client)) for client in clients]


def test_account_with_the_most_streams_gives_one_to_another() -> None:
    """Its oldest ends. With one stream less than the most there is none, or two would take turns for ever."""
    broker = Broker(lambda: None, budget(7))
    streams = opened(broker, "a", "a", "a", "b", "b")

    assert opened(broker, "a", "b") == [None, None]
    (own,) = opened(broker, "c")

    assert [one is not None and one.ended for one in streams] == [True, False, False, False, False]
    assert (broker.streams, broker.count("a"), broker.count("c")) == (5, 2, 1)
    assert opened(broker, "a", "b", "c") == [None] * 3
    for one in (streams[0], own):
        assert one is not None
        broker.leave(one)
    assert (broker.streams, broker.count("c")) == (4, 0)


def test_account_may_have_three_quarters_of_all_streams() -> None:
    broker = Broker(lambda: None, budget(64))

    assert None not in opened(broker, *["a"] * 48)
    assert opened(broker, "a") == [None]
    assert broker.budget.describe(Account("a")) == "a has 48 of 64 open pages and other event streams, its share"
    assert None not in opened(broker, "b")


def test_streams_of_users_leave_a_quarter_to_operators_and_none_is_refused_to_root() -> None:
    broker = Broker(lambda: None, budget(8))
    opened(broker, *"abcdef")

    assert opened(broker, "g") == [None]
    assert broker.join("loopback", Account("uid 1000").as_operator())
    assert all(broker.join("loopback", ROOT) for _ in range(20))
    assert broker.streams == 7 + 8  # of root's own the oldest ended


def test_refused_stream_is_a_problem_with_a_pause() -> None:
    broker = Broker(lambda: None, budget(4))
    opened(broker, "a", "a", "a")
    sent = answer_of(broker, find_account, **{"memwatch.cli": "a"})

    assert sent[0]["status"] == 503
    assert (b"retry-after", b"30") in sent[0]["headers"]
    assert b"a has 3 of 4 open pages and other event streams, its share: close some" in sent[1]["body"]


def test_client_that_leaves_during_the_lookup_holds_no_place() -> None:
    """Its account is looked up in a thread that may be busy. A flood of such clients would fill the streams."""
    has_asked = asyncio.Event()

    async def find_slowly(_scope: Any) -> Account:
        has_asked.set()
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is sent to a client that has left")

    async def receive() -> Any:
        await has_asked.wait()
        return {"type": "http.disconnect"}

    broker = Broker(lambda: None, budget(4))
    stream = EventStream(broker, Identity(lambda _: b""), find_slowly)
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), 5))
    assert (broker.streams, broker.budget.held) == (0, 0)


def test_streams_count_from_their_request_on_not_from_the_end_of_the_lookup() -> None:
    """The server limits connections, and streams come on top. A thousand that wait for one lookup were reset."""
    is_found = asyncio.Event()

    async def find(scope: Any) -> Account:
        await is_found.wait()
        return await find_account(scope)

    async def send(_message: Any) -> None:
        """Return at once, as a server does while the socket is writable."""

    async def counts() -> tuple[int, int, int]:
        for _ in range(20):
            await asyncio.sleep(0)
        return broker.count(None), broker.count("a"), broker.streams

    async def all_of_them() -> list[tuple[int, int, int]]:
        streams = [(EventStream(broker, Identity(lambda _: b""), find), client) for client in "abc" * 3]
        running = asyncio.gather(*(one({"type": "http", "memwatch.cli": its}, stay, send) for one, its in streams))
        asking = await counts()
        is_found.set()
        opened = await counts()
        broker.close()
        await running
        return [asking, opened, await counts()]

    broker = Broker(lambda: None, budget(12))
    assert asyncio.run(all_of_them()) == [(9, 3, 0), (9, 3, 9), (0, 0, 0)]


def test_stream_whose_account_cannot_be_looked_up_soon_gets_503_and_no_place_of_another() -> None:
    async def is_busy(_scope: Any) -> Account:
        raise QueueFullError

    broker = Broker(lambda: None, budget(4))
    sent = answer_of(broker, is_busy)
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    assert broker.budget.held == 0


def test_lookup_that_is_cancelled_as_the_daemon_stops_is_answered() -> None:
    """Without an answer the server writes a traceback."""

    async def is_cancelled(_scope: Any) -> Account:
        broker.close()
        raise asyncio.CancelledError

    broker = Broker(lambda: None, budget(4))
    sent = answer_of(broker, is_cancelled)
    assert sent[0]["status"] == 503


def test_all_clients_that_wait_are_one_lookup() -> None:
    """A user who opens hundreds of streams at once keeps no other user waiting for more than one lookup."""
    asked: list[int] = []

    def find_uids(connections: Sequence[Any]) -> list[int | None]:
        asked.append(len(connections))
        return [client.port for client, _ in connections]

    async def all_of_them() -> list[Account]:
        scopes = [{"headers": [], **HERE, "client": ("127.0.0.1", 1000 + number)} for number in range(500)]
        return await asyncio.gather(*map(CallerLookup(find_uids).account, scopes))

    accounts = asyncio.run(all_of_them())
    assert [one.name for one in accounts] == [f"uid {1000 + number}" for number in range(500)]
    assert len(asked) <= 2


def test_lookups_are_bounded_and_go_on_after_one_that_fails() -> None:
    def fail_once(connections: Sequence[Any]) -> list[int | None]:
        asked.append(len(connections))
        if len(asked) == 1:
            raise MemoryError
        return [7] * len(connections)

    async def ask(lookups: PeerLookups, count: int) -> list[Any]:
        end = TcpEnd("127.0.0.1", 1)
        return await asyncio.gather(*(lookups.find((end, end)) for _ in range(count)), return_exceptions=True)

    async def ask_twice() -> tuple[list[Any], list[Any]]:
        lookups = PeerLookups(fail_once)
        return await ask(lookups, MAX_LOOKUPS + 1), await ask(lookups, 3)

    asked: list[int] = []
    first, second = asyncio.run(ask_twice())
    assert [type(one) for one in first] == [QueueFullError] * (MAX_LOOKUPS + 1)
    assert (asked[0], second) == (MAX_LOOKUPS, [7, 7, 7])


HERE = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 6360), "memwatch.cli": "loopback"}


def account_of(uid: int | None, *headers: tuple[bytes, bytes], **scope: Any) -> Account:
    lookup = CallerLookup(lambda connections: [uid] * len(connections))
    return asyncio.run(lookup.account({"headers": list(headers), **HERE, **scope}))


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"x-forwarded-for", b"203.0.113.7")], "203.0.113.7"),
        ([(b"x-forwarded-for", b"198.51.100.1, 203.0.113.7")], "203.0.113.7"),  # the first one is the client's word
        ([(b"x-real-ip", b"203.0.113.7")], "203.0.113.7"),
        ([(b"x-forwarded-for", b"2001:db8:1:2:3::4")], "2001:db8:1:2::/64"),
        ([(b"x-forwarded-for", b"nonsense")], "clients of uid 33"),
        ([(b"via", b"1.1 proxy")], "clients of uid 33"),
    ],
)
def test_clients_of_a_proxy_that_is_a_service_are_counted_by_the_address_it_saw(
    headers: list[tuple[bytes, bytes]], name: str
) -> None:
    account = account_of(33, *headers)
    assert (account.name, account.rank) == (name, Rank.USER)


def test_clients_of_a_proxy_of_root_have_no_place_of_root() -> None:
    account = account_of(0, (b"x-forwarded-for", b"203.0.113.7"))
    assert (account.name, account.rank) == ("203.0.113.7", Rank.USER)
    assert account_of(0, (b"via", b"1.1 proxy")).rank is Rank.USER


def test_user_who_claims_to_be_a_proxy_stays_one_account() -> None:
    names = {account_of(4321, (b"x-forwarded-for", f"203.0.113.{n}".encode())).name for n in range(9)}
    assert names == {"uid 4321"}


def test_user_over_the_socket_file_and_over_tcp_is_one_account() -> None:
    over_file = account_of(None, **{"memwatch.peer": SimpleNamespace(uid=4321)})
    assert over_file == account_of(4321)
    assert (over_file.rank, account_of(4321).rank) == (Rank.SYSTEM, Rank.USER)
