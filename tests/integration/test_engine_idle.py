"""Test that asking a model server does not change it: an idle server falls asleep, and stays so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatch.core.collectors.engines import PERIOD_SECONDS, Collector, EngineAddress
from memwatch.core.engines.kinds import KINDS, EngineKind
from memwatch.core.engines.llama_cpp import ASLEEP, ASSUMED_CELLS, KEPT_AWAKE, MAYBE_KEPT_AWAKE
from memwatch.core.engines.records import Address, Engine
from memwatch.core.model import Absent
from simulators.llama_server import IK_BUILD, LlamaServer
from support import engine_texts as texts
from support.engine_host import EngineHost
from support.engine_servers import EngineSite, engine_site
from support.open_things import close_at_end

IDLE_SECONDS = 12.0
ROUNDS = int(600 / PERIOD_SECONDS)  # ten minutes
SLEEPY = ("llama-server", "--sleep-idle-seconds", "12", "--metrics")


class Watched:
    """A llama-server and the collector that asks it, on one clock."""

    def __init__(self, site: EngineSite, llama: LlamaServer, collector: Collector, now: list[float]) -> None:
        self.site, self.llama, self.collector, self._now = site, llama, collector, now

    def watch(self, rounds: int) -> Engine:
        for _ in range(rounds):
            (found,) = self.collector.collect().engines
            self._now.append(self._now[-1] + PERIOD_SECONDS)
        return found

    @property
    def asked(self) -> Counter[str]:
        return Counter(path for _, path in self.site.requests)


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """Yield a server of a build, with these arguments; configured without a process if there are none."""
    build, argv, idle = request.param
    host, now = EngineHost(tmp_path), [1000.0]
    llama = LlamaServer(lambda: now[-1], build, idle)
    with engine_site(llama.answers()) as site:
        configured = [] if argv else [EngineAddress("llama.cpp", "chat", Address("127.0.0.1", site.port))]
        if argv:
            host.add(500, argv)
            host.listen(500, site.port)
        yield Watched(
            site, llama, close_at_end(Collector(host.roots, True, configured, None, host.net, lambda: now[-1])), now
        )


def of(*cases: tuple[int, tuple[str, ...], float]) -> pytest.MarkDecorator:
    names = [f"b{build}-{'found' if argv else 'configured'}-{idle:g}s" for build, argv, idle in cases]
    return pytest.mark.parametrize("watched", cases, indirect=True, ids=names)


@of(
    (7500, SLEEPY, IDLE_SECONDS),
    (9760, SLEEPY, IDLE_SECONDS),
    (9760, ("llama", "serve", "--sleep-idle-seconds=12"), IDLE_SECONDS),
    (9760, ("llama-server", "--sleep_idle_seconds", "12", "--metrics"), IDLE_SECONDS),
    (10700, SLEEPY, IDLE_SECONDS),
    (9760, (), IDLE_SECONDS),
    (10700, (), IDLE_SECONDS),
)
def test_idle_server_falls_asleep_and_stays_so_for_ten_minutes(watched: Watched) -> None:
    found = watched.watch(ROUNDS)

    assert watched.llama.is_sleeping
    assert watched.llama.wakes == []
    assert (found.sleeping, found.weights_bytes, found.kv_cache_bytes) == (True, 0, 0)
    assert found.notes == (ASLEEP,)
    assert found.model == "tiny.gguf"  # from before
    assert watched.asked["/props"] == ROUNDS
    assert watched.asked["/metrics"] <= IDLE_SECONDS / PERIOD_SECONDS + 1
    assert watched.asked["/models"] == 1


@of((IK_BUILD, SLEEPY, IDLE_SECONDS), (IK_BUILD, (), IDLE_SECONDS))
def test_fork_whose_props_wake_it_is_asked_for_its_health(watched: Watched) -> None:
    """ik_llama.cpp, ikawrakow/ik_llama.cpp#2383."""
    found = watched.watch(ROUNDS)

    assert watched.llama.wakes == []
    assert (found.sleeping, found.weights_bytes, found.kv_cache_bytes, found.notes) == (True, 0, 0, (ASLEEP,))
    assert watched.asked["/health"] == ROUNDS
    assert watched.asked["/props"] <= IDLE_SECONDS / PERIOD_SECONDS + 1


@of((7500, SLEEPY, 150), (9760, SLEEPY, 150), (10700, SLEEPY, 150))
def test_server_with_a_long_idle_time_falls_asleep_as_well(watched: Watched) -> None:
    """Requests that are sent once a minute must not keep it awake either."""
    assert watched.watch(ROUNDS).sleeping is True
    assert watched.llama.wakes == []
    assert watched.asked["/models"] == (1 if watched.llama.build == 7500 else 3)


@of((9760, SLEEPY, IDLE_SECONDS), (9760, (), IDLE_SECONDS))
def test_server_that_is_used_again_is_shown_again_and_sleeps_again(watched: Watched) -> None:
    watched.watch(5)
    watched.llama.use()
    found = watched.watch(1)
    assert (found.sleeping, found.weights_bytes) == (False, 4912898304)
    assert watched.watch(4).sleeping is True
    assert watched.llama.wakes == ["/completion"]


@of((9760, SLEEPY, IDLE_SECONDS))
def test_metrics_that_keep_a_server_awake_are_not_asked(watched: Watched) -> None:
    found = watched.watch(2)
    assert watched.asked["/metrics"] == 0
    assert (found.requests_running, found.weights_bytes) == (Absent.NOT_AVAILABLE, 4912898304)
    assert found.notes == (KEPT_AWAKE, ASSUMED_CELLS)


@of((9760, (), 0))
def test_metrics_are_not_asked_without_a_command_line(watched: Watched) -> None:
    assert MAYBE_KEPT_AWAKE in watched.watch(2).notes
    assert watched.asked["/metrics"] == 0


@of(
    (7000, (), 0),  # no server sleeps
    (9760, ("llama-server",), 0),
    (9760, ("llama-server", "--sleep-idle-seconds", "-1"), 0),
    (10700, SLEEPY, IDLE_SECONDS),
    (10700, (), IDLE_SECONDS),
)
def test_metrics_that_are_harmless_are_asked(watched: Watched) -> None:
    assert watched.watch(2).requests_running == 1
    assert watched.asked["/metrics"] == 2


@of((1, (), IDLE_SECONDS), (7000, SLEEPY, 0))
def test_number_of_a_shallow_clone_is_no_build(watched: Watched) -> None:
    """Its /props lacks the state of sleep as well: nothing proves that it does not sleep.

    Nor does an old number beside the option: no llama-server of that build starts with it.
    """
    watched.watch(2)
    assert watched.asked["/metrics"] == 0


def test_loading_server_is_asked_for_its_state_only(tmp_path: Path) -> None:
    """It answers 503 until its model is loaded."""
    host = EngineHost(tmp_path)
    host.add(500, SLEEPY)
    paths = ("/health", "/props", "/metrics", "/models")
    loading = {path: lambda handler: handler.reply(503, b"{}") for path in paths}
    with engine_site(loading) as site:
        host.listen(500, site.port)
        close_at_end(Collector(host.roots, True, (), None, host.net)).collect()
    assert {path for _, path in site.requests} == {"/health", "/props"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_engine_gets_the_declared_requests_only(tmp_path: Path, kind: EngineKind) -> None:
    """Every engine, also one that refuses all of them; a request that is never sent has a reason."""
    declared = {path for one in kind.requests if one.asked != "never" for path in one.path.split("|")}
    assert all(one.effect.endswith(".") for one in kind.requests)
    every = {
        **texts.vllm(),
        **texts.sglang(),
        **texts.tgi(),
        **texts.trtllm_serve(),
        **texts.ollama(),
        **texts.llama_cpp(),
    }
    for answers in (every, {}):
        with engine_site(answers) as site:
            one = EngineAddress(kind.name, "one", Address("127.0.0.1", site.port))
            collector = close_at_end(Collector(EngineHost(tmp_path / str(site.port)).roots, False, (one,), None))
            collector.collect()
        sent = {path for _, path in site.requests}
        assert {method for method, _ in site.requests} == {"GET"}
        assert sent
        assert sent <= declared
