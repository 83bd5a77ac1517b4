"""A round with model servers: all are asked at once, each has a share, and one that uses it up twice waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.collectors import engines
from memwatch.core.engines.command import Command
from memwatch.core.engines.exchange import MAX_KEPT_BYTES, OVERDUE, SHARE_SECONDS, Exchange, run_all
from memwatch.core.engines.kinds import KIND_BY_NAME
from memwatch.core.engines.records import Address, Engine, EngineReading
from memwatch.core.engines.server import DEFECT, EngineServer
from memwatch.core.http import AddressInfo, GetError, GetTimeoutError
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent
from support import engine_texts as texts
from support.thread_limit import no_threads
from support.waiting import wait_until

VLLM = KIND_BY_NAME["vllm"]
ANSWERS = texts.vllm()
NONE = Command()
FAR = time.monotonic() + 86_400.0
# A server that is asked after another would wait for the others until then, and fail.
STUCK_SECONDS = 60.0
BLANK = Engine("vllm-8000", "vllm", "vLLM", "http://chat.example:8000")

Fetch = Callable[[str, int, float], bytes]


def exchange(fetch: Fetch, deadline: float = FAR) -> Exchange:
    return Exchange(VLLM, fetch, {}, NONE, NONE, True, deadline)


class SlowServer:
    """A server that takes as long for each answer. Its clock is the only one."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0
        self.asked: list[str] = []

    def fetch(self, path: str, _max_bytes: int, deadline: float) -> bytes:
        self.asked.append(path)
        self.now = min(self.now + self.seconds, deadline)
        if self.now >= deadline:
            raise GetTimeoutError("late")
        return ANSWERS[path]


class HangingNames:
    """A name service that gives no answer until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked = 0

    def resolve(self, *_: object, **__: object) -> list[AddressInfo]:
        self.asked += 1
        self.released.wait()
        return []


def ask(server: EngineServer, deadline: float) -> tuple[Exchange | None, Engine]:
    begun = server.begin(NONE, NONE, deadline)
    if begun is not None:
        run_all(*(([], [begun]) if server.may_hang else ([begun], [])), deadline)
        server.take(begun, NONE, NONE)
    return begun, server.build(BLANK)


def test_all_servers_are_asked_at_once() -> None:
    """Each of 16 answers when all have been asked."""
    together = threading.Barrier(16)

    def fetch(path: str, _max_bytes: int, _deadline: float) -> bytes:
        together.wait(STUCK_SECONDS)
        return ANSWERS[path]

    begun = [exchange(fetch) for _ in range(16)]
    run_all(begun[:12], begun[12:], FAR)
    assert [set(one.bodies) for one in begun] == [set(ANSWERS)] * 16


def test_one_server_is_asked_without_another_thread() -> None:
    threads: list[threading.Thread] = []

    def fetch(path: str, _max_bytes: int, _deadline: float) -> bytes:
        threads.append(threading.current_thread())
        return ANSWERS[path]

    run_all([exchange(fetch)], [], FAR)
    assert set(threads) == {threading.current_thread()}


def test_fifteen_servers_that_take_their_time_have_one_share_each() -> None:
    """They answered after 1.9 s each, and one after the other: a round took 87 s."""
    slow = [SlowServer(0.95 * SHARE_SECONDS) for _ in range(15)]
    begun = [exchange(one.fetch, SHARE_SECONDS) for one in slow]
    for one in begun:
        one.run()
    assert max(one.now for one in slow) == SHARE_SECONDS
    assert {tuple(one.asked) for one in slow} == {("/metrics", "/version")}
    assert all(one.bodies.keys() == {"/metrics"} for one in begun)


def test_name_that_does_not_resolve_delays_no_other_server() -> None:
    names = HangingNames()
    hanging = EngineServer(VLLM, Address("chat.example", 8000), None, lambda: 0.0, None, names.resolve)
    begun = hanging.begin(NONE, NONE, 0.0)
    assert begun is not None
    other = exchange(SlowServer(0.0).fetch)
    run_all([other], [begun], 0.0)  # it returns although the name service does not
    hanging.take(begun, NONE, NONE)
    found = hanging.build(BLANK)
    names.released.set()

    assert set(other.bodies) == set(ANSWERS)
    assert found.weights_bytes is Absent.NOT_AVAILABLE
    assert found.notes == (f"http://chat.example:8000: {OVERDUE}.",)


def test_name_is_looked_up_by_one_thread_at_a_time() -> None:
    names = HangingNames()
    clock = [0.0]
    server = EngineServer(VLLM, Address("chat.example", 8000), None, lambda: clock[-1], None, names.resolve)
    found = []
    for _ in range(100):
        found.append(ask(server, 0.0)[0])
        clock.append(clock[-1] + 5.0)
    (first,) = [one for one in found if one]
    names.released.set()
    wait_until(lambda: first.is_done)

    assert names.asked == 1
    assert ask(server, 0.0)[0] is not None


def test_server_that_uses_up_its_share_twice_waits_longer_each_time() -> None:
    """The deadline has passed when it is asked. A round is every 5 s."""
    clock = [0.0]
    server = EngineServer(VLLM, Address("127.0.0.1", 1), None, lambda: clock[-1])
    asked, notes = [], set()
    while clock[-1] <= 1000.0:
        begun, record = ask(server, 0.0)
        asked += [clock[-1]] if begun else []
        notes.add(record.notes)
        clock.append(clock[-1] + 5.0)

    assert asked == [0.0, 5.0, 35.0, 95.0, 215.0, 455.0, 755.0]
    assert notes == {(f"{BLANK.url}: no complete answer within 2 s.",)}


def test_server_that_answers_again_has_its_first_pause_again() -> None:
    clock, late = [0.0], [True]
    server = EngineServer(VLLM, Address("127.0.0.1", 1), None, lambda: clock[-1])

    def ask_once() -> bool:
        begun = server.begin(NONE, NONE, FAR)
        if begun is not None:
            answers = Exchange(VLLM, SlowServer(9.0 if late[-1] else 0.0).fetch, {}, NONE, NONE, False, 2.0)
            answers.run()
            begun.bodies, begun.failure, begun.is_done = answers.bodies, answers.failure, True
            server.take(begun, NONE, NONE)
        clock.append(clock[-1] + 5.0)
        return begun is not None

    assert [ask_once() for _ in range(8)] == [True, True, False, False, False, False, False, True]
    clock.append(1000.0)
    late.append(False)
    assert ask_once()
    late.append(True)
    assert [ask_once() for _ in range(3)] == [True, True, False]


class CostlyAnswers:
    """A server that is asked every 5 s, whose answers take as much CPU time to parse."""

    def __init__(self, cost_seconds: float) -> None:
        self.clock, self.cpu, self.cost = 0.0, 0.0, cost_seconds
        self.server = EngineServer(VLLM, Address("127.0.0.1", 1), None, lambda: self.clock, cpu_time=self.spend)

    def spend(self) -> float:
        self.cpu += self.cost
        return self.cpu

    def ask(self) -> tuple[bool, Engine]:
        begun = self.server.begin(NONE, NONE, FAR)
        if begun is not None:
            begun.bodies, begun.is_done = dict(ANSWERS), True
            self.server.take(begun, NONE, NONE)
        self.clock += 5.0
        return begun is not None, self.server.build(BLANK)


@pytest.mark.parametrize(("cost", "asked"), [(0.002, 60), (0.024, 60), (0.09, 15), (9.0, 1)])
def test_server_with_expensive_answers_is_asked_less_often(cost: float, asked: int) -> None:
    """For 300 s."""
    costly = CostlyAnswers(cost)
    assert sum(costly.ask()[0] for _ in range(60)) == asked


@pytest.mark.parametrize(("cost", "asked"), [(0.002, 10), (0.5, 3), (9.0, 1)])
def test_server_whose_failure_is_expensive_to_receive_is_asked_less_often(cost: float, asked: int) -> None:
    """For 300 s. After a failure without an answer, the next request is 30 s later anyway."""
    clock, cpu = 0.0, iter(float(number) * cost for number in range(1000))
    server = EngineServer(
        VLLM, Address("nowhere", 1), None, lambda: clock, None, lambda *_, **__: [], lambda: next(cpu)
    )
    times = 0
    while clock < 300:
        if (begun := server.begin(NONE, NONE, FAR)) is not None:
            begun.run()
            server.take(begun, NONE, NONE)
            times += 1
        clock += 5
    assert times == asked


def test_figures_between_expensive_answers_are_stale() -> None:
    costly = CostlyAnswers(0.09)
    rounds = [costly.ask()[1] for _ in range(5)]
    assert [one.requests_running for one in rounds] == [3, *[Absent.STALE] * 3, 3]
    assert rounds[1].notes == ("Its answers take 0.09 s of CPU time, so that it is asked every 18 s.",)
    assert rounds[1].model == "Qwen/Qwen3-32B"


@pytest.mark.parametrize("path", ["/version", "/v1/models"])
def test_answer_that_is_kept_is_small(path: str) -> None:
    limits: dict[str, int] = {}

    def fetch(asked: str, max_bytes: int, _deadline: float) -> bytes:
        limits[asked] = max_bytes
        return ANSWERS[asked]

    exchange(fetch).run()
    assert limits[path] == MAX_KEPT_BYTES < limits["/metrics"]


def test_defect_of_one_server_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def defect(*_: object) -> bytes:
        raise ZeroDivisionError

    broken, other = exchange(defect), exchange(SlowServer(0.0).fetch)
    run_all([broken, other], [], FAR)
    assert (broken.bodies, broken.is_done) == ({}, True)
    assert set(other.bodies) == set(ANSWERS)
    assert "Defect while a model server was asked" in caplog.text


def test_answers_that_reveal_a_defect_cost_the_other_servers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An error in the parsing of one would leave all without figures, round after round."""

    def parse(_: object) -> EngineReading:
        raise ZeroDivisionError

    server = EngineServer(replace(VLLM, parse=parse), Address("127.0.0.1", 1), None, lambda: 0.0)
    for _ in range(3):
        begun = server.begin(NONE, NONE, FAR)
        assert begun is not None
        begun.bodies, begun.is_done = dict(ANSWERS), True
        server.take(begun, NONE, NONE)
    found = server.build(BLANK)
    assert found.notes == (f"{BLANK.url}: {DEFECT}.",)
    assert caplog.text.count("Defect while the answers of http://127.0.0.1:1 were parsed") == 1


def test_server_without_a_thread_has_a_reason_and_is_asked_again() -> None:
    first, second = exchange(SlowServer(0.0).fetch), exchange(SlowServer(0.0).fetch)
    with no_threads():
        run_all([first, second], [], FAR)
    assert set(first.bodies) == set(ANSWERS)
    assert isinstance(second.failure, GetError)
    assert "no thread could be started" in str(second.failure)
    assert second.is_done


def test_machine_without_a_server_is_searched_less_often(tmp_path: Path) -> None:
    """Its thread would wake up every 5 s for nothing."""
    (tmp_path / "proc").mkdir()
    collector = engines.Collector(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))
    before, found = collector.period_seconds, collector.collect()
    collector.close()

    assert found.engines == ()
    assert (before, collector.period_seconds) == (engines.PERIOD_SECONDS, engines.NO_SERVER_SECONDS)
