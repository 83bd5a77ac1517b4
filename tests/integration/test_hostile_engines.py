"""Attacks on the collector of model servers by the processes of other users: real servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from memwatch.core.collectors.engines import Collector
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from support import engine_texts as texts
from support.engine_host import EngineHost
from support.engine_servers import Answer, EngineSite, Handler, engine_site
from support.open_things import close_at_end
from support.waiting import wait_until

VLLM = ("vllm", "serve", "Qwen/Qwen3-32B")
GOOD = 600


class BadServers:
    """Answers that never end, until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def hang(self, _: Handler) -> None:
        self.released.wait()

    def trickle(self, handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not self.released.wait(0.1):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    def answer_the_first_path_only(self, handler: Handler) -> None:
        if handler.path == "/metrics":
            handler.reply(200, texts.vllm_metrics())
        else:
            self.released.wait()

    @property
    def kinds(self) -> tuple[Answer, ...]:
        return self.hang, self.trickle, self.answer_the_first_path_only


@pytest.fixture
def bad() -> Iterator[BadServers]:
    found = BadServers()
    yield found
    found.released.set()


@pytest.fixture
def host(tmp_path: Path) -> EngineHost:
    return EngineHost(tmp_path)


def start(stack: ExitStack, host: EngineHost, pid: int, answer: Answer | None) -> EngineSite:
    """Start a server of a process; one without an answer is good."""
    answers = texts.vllm() if answer is None else dict.fromkeys(texts.vllm(), answer)
    site = stack.enter_context(engine_site(answers))
    host.add(pid, VLLM)
    host.listen(pid, site.port)
    return site


def test_good_server_is_shown_beside_fifteen_bad_ones(host: EngineHost, bad: BadServers) -> None:
    """None of them ends an answer while the round runs, and the good one is found last."""
    with ExitStack() as stack:
        sites = [start(stack, host, 500 + number, bad.kinds[number % 3]) for number in range(15)]
        start(stack, host, GOOD, None)
        collector = close_at_end(Collector(host.roots, True, (), None, host.net))

        rounds: list[dict[int | Absent, Engine]] = []

        def has_good_figures() -> bool:
            rounds.append({one.pid: one for one in collector.collect().engines})
            return rounds[-1][GOOD].requests_running == 3

        wait_until(has_good_figures)
        assert len(rounds[-1]) == 16
        assert rounds[-1][GOOD].version == "0.11.0"
        assert all(site.requests for site in sites)
        bad.released.set()


BYTES = 160_000
ROUNDS = 12


def answer_in_single_bytes(handler: Handler) -> None:
    """Send good figures in chunks of one byte. They are below the limit of bytes, and take 0.1 s to receive."""
    body = texts.vllm_metrics().ljust(BYTES, b"#")
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n")


def test_server_that_answers_in_single_bytes_is_asked_less_often(host: EngineHost) -> None:
    """For a minute. Another server is asked in each round, every 5 s."""
    with ExitStack() as stack:
        costly, usual = start(stack, host, 500, answer_in_single_bytes), start(stack, host, GOOD, None)
        now = [0.0]
        collector = close_at_end(Collector(host.roots, True, (), None, host.net, lambda: now[0]))
        for _ in range(ROUNDS):
            found = {one.pid: one for one in collector.collect().engines}
            now[0] += 5.0
        asked, expected = [sum(path == "/metrics" for _, path in site.requests) for site in (costly, usual)]

    assert expected == ROUNDS
    assert asked <= ROUNDS // 2
    assert found[500].model == "Qwen/Qwen3-32B"
