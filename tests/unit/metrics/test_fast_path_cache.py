"""Test that a cached response is served only while everything that it depends on is unchanged."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from memwatch.core.reading.identity import Identity
from memwatch.core.reading.sampler import Sampler
from memwatch_monitor.feature import MonitorRules
from memwatch_web.asgi.access import AccessControl, WebOptions
from memwatch_web.asgi.login import Login, Token, parse_token
from memwatch_web.asgi.problems import problem_response
from memwatch_web.metrics.endpoint import MetricsEndpoint, MetricsFastPath
from memwatch_web.metrics.families import Exporter
from support.fakes import FakeClock
from support.monitors import create_monitor

FIELDS = ((b"host", b"localhost"), (b"accept", b"*/*"))
LOGIN = WebOptions(login=Login(Token(b"digest")))
PEER = object()


class Door:
    """Fast path with its dependencies; `options` can be replaced, as a reload does."""

    def __init__(self, options: WebOptions | None = None, own_name: Callable[[], str] = lambda: "host") -> None:
        self.options = options or WebOptions()
        self.clock = FakeClock()
        self.monitor = create_monitor(Sampler([], self.clock), self.clock, MonitorRules(), Identity("host", "boot"))
        self.monitor.tick()
        dates: list[tuple[bytes, bytes]] = [(b"date", b"")]
        refused = problem_response(404, "nothing.")
        access = AccessControl(
            refused,
            lambda: self.options,
            dates,
            own_names=lambda: frozenset({own_name().lower()}),
            wall=self.clock.wall,
        )
        endpoint = MetricsEndpoint(self.monitor, lambda: Exporter("1", max_processes=lambda: 0)).prepare()
        self.ask = MetricsFastPath(access, endpoint, dates, self.clock.wall)


def test_equal_fields_get_the_cached_response() -> None:
    """Equal fields count as the same, even as different objects."""
    door = Door()

    first, second = door.ask(FIELDS, None), door.ask(tuple(map(tuple, map(list, FIELDS))), None)  # type: ignore[arg-type]

    assert first is not None
    assert first.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert first is second


def test_cached_response_ends_with_a_tick() -> None:
    """No client gets values from before the last tick."""
    door = Door()

    before = door.ask(FIELDS, None)
    door.clock.now += 0.5
    door.monitor.tick()

    assert before != door.ask(FIELDS, None)


def test_cached_response_ends_after_a_second() -> None:
    """The Date header is that of the response."""
    door = Door()

    before = door.ask(FIELDS, None)
    door.clock.now += 0.999
    within = door.ask(FIELDS, None)
    door.clock.now += 0.001
    after = door.ask(FIELDS, None)

    assert before is not None
    assert within is before
    assert after is not None
    assert before[:100] != after[:100]
    assert before.partition(b"\r\n\r\n")[2] == after.partition(b"\r\n\r\n")[2]


def test_cached_response_ends_with_a_reload() -> None:
    """Clients admitted before need a login that is now required, and a removed host name is rejected."""
    door = Door(WebOptions(hosts=("board",)))
    named = ((b"host", b"board"),)

    before = door.ask(FIELDS, None), door.ask(named, None)
    door.options = WebOptions()
    without_name = door.ask(FIELDS, None), door.ask(named, None)
    door.options = LOGIN
    with_login = door.ask(FIELDS, None), door.ask(named, None)

    assert None not in before
    assert (without_name[0] is None, without_name[1]) == (False, None)
    assert with_login == (None, None)


def test_response_to_a_peer_is_not_served_to_others() -> None:
    """The kernel authenticates one peer of the Unix socket, not the next client with the same fields."""
    door = Door(LOGIN)

    answers = [door.ask(FIELDS, peer) for peer in (PEER, None, PEER)]

    assert [answer is None for answer in answers] == [False, True, False]


def test_unknown_fields_take_no_memory() -> None:
    """10,000 requests in one tick, each with a different field of 1 kB."""
    door = Door()
    door.ask(FIELDS, None)
    tracemalloc.start()

    answers = [door.ask((*FIELDS, (b"x-number", b"%01000d" % number)), None) for number in range(10_000)]
    answered = len(answers) - answers.count(None)
    del answers
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert answered == 10_000
    assert kept < 500_000


def test_new_host_name_is_accepted_within_a_second() -> None:
    """After a rename the new host name is accepted and the old one rejected."""
    called = ["spark-1"]
    door = Door(own_name=lambda: called[-1])
    names = {name: ((b"host", name.encode()),) for name in ("spark-1", "spark-2")}

    def answered() -> dict[str, bool]:
        return {name: door.ask(fields, None) is not None for name, fields in names.items()}

    before = answered()
    called.append("Spark-2")
    door.clock.now += 1.0

    assert before == {"spark-1": True, "spark-2": False}
    assert answered() == {"spark-1": False, "spark-2": True}


def test_right_token_is_answered_and_a_wrong_one_is_not() -> None:
    """Also from the cache. Wrong tokens are refused, counted and logged on the ASGI path."""
    token = "0123456789abcdef"
    door = Door(WebOptions(login=Login(parse_token(token))))
    right = (*FIELDS, (b"authorization", b"Bearer " + token.encode()))
    wrong = (*FIELDS, (b"authorization", b"Bearer 0123456789abcdeF"))

    answers = [door.ask(fields, None) is not None for fields in (right, wrong, right, wrong, (*right, right[-1]))]

    assert answers == [True, False, True, False, False]
