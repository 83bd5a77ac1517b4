"""The collector of model servers: a folder like /proc, and real HTTP servers on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from memwatch.core.collectors.base import Host
from memwatch.core.collectors.engines import (
    PORT_UNKNOWN,
    SEARCH_TURNS,
    SERVER_OFF,
    Collector,
    EngineAddress,
    EngineAddresses,
    Options,
)
from memwatch.core.engines import llama_cpp
from memwatch.core.engines.command import DRAFT_CACHE
from memwatch.core.engines.exchange import MAX_ANSWER_BYTES
from memwatch.core.engines.records import Address, Engine, ModelQuery, ModelSizes, ServedBy
from memwatch.core.engines.server import BESIDE, MAX_BESIDE
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.model import Absent, Quality
from memwatch.planning.served import parse_options
from support import engine_texts as texts
from support.budget import within
from support.engine_host import EngineHost
from support.engine_servers import Answer, EngineSite, Handler, engine_process, engine_site
from support.open_things import close_at_end
from support.waiting import wait_until

GIB = 1 << 30
VLLM = ("/venv/bin/python3", "/venv/bin/vllm", "serve", "Qwen/Qwen3-32B")


def sizes(query: ModelQuery) -> ModelSizes:
    """Return sizes as from the files of a model; the cache has 256 KiB a token."""
    cache = query.cache
    tokens = cache.blocks * cache.block_tokens if cache else 0
    return ModelSizes(61 * GIB, tokens << 18, Quality.DERIVED)


@pytest.fixture
def host(tmp_path: Path) -> EngineHost:
    return EngineHost(tmp_path)


@pytest.fixture
def vllm() -> Iterator[EngineSite]:
    with engine_site(texts.vllm()) as site:
        yield site


def collector_of(host: EngineHost, *configured: EngineAddress, discover: bool = True) -> Collector:
    return close_at_end(Collector(host.roots, discover, configured, sizes, host.net))


def timed_collector(host: EngineHost, now: list[float]) -> Collector:
    """Return a collector whose clock shows the last of these seconds."""
    return close_at_end(Collector(host.roots, True, (), sizes, host.net, lambda: now[-1]))


def ask(host: EngineHost) -> Engine:
    (engine,) = collector_of(host).collect().engines
    return engine


def test_server_is_found_by_its_process_and_asked_on_loopback(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.add(510, ("VLLM::EngineCore",), parent=500)
    host.add(511, ("VLLM::Worker_TP0",), parent=510)
    host.add(600, ("bash",))
    host.listen(500, vllm.port)
    engine = ask(host)
    assert (engine.id, engine.title, engine.url) == (f"vllm-{vllm.port}", "vLLM", f"http://127.0.0.1:{vllm.port}")
    assert (engine.pid, engine.pids, engine.user) == (500, (500, 510, 511), "ana")
    assert (engine.model, engine.version, engine.requests_running) == ("Qwen/Qwen3-32B", "0.11.0", 3)
    assert {method for method, _ in vllm.requests} == {"GET"}


def test_sizes_follow_from_the_files_of_the_model(host: EngineHost) -> None:
    host.add(500, ("vllm", "serve", "/models/qwen"))
    with engine_site(texts.vllm(root="/models/qwen", blocks="9830")) as site:
        host.listen(500, site.port)
        engine = ask(host)
    cache = 9830 * 16 << 18
    assert (engine.weights_bytes, engine.kv_cache_bytes) == (61 * GIB, cache)
    assert engine.kv_cache_used_bytes == int(cache * 0.12)
    assert engine.quality is Quality.DERIVED


def test_query_names_the_model_and_the_process_that_serves_it(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM, start=77)
    host.listen(500, vllm.port)
    asked: list[ModelQuery] = []

    def refuse(query: ModelQuery) -> ModelSizes:
        asked.append(query)
        return ModelSizes(note="The files of its model (/models/\x1b[2J\u202e) are not readable here.")

    (engine,) = close_at_end(Collector(host.roots, True, (), refuse, host.net)).collect().engines
    by = ServedBy(500, 77, str(host.proc), str(host.root))
    assert [(one.name, one.by) for one in asked] == [("Qwen/Qwen3-32B", by)]
    assert engine.weights_bytes is Absent.NOT_AVAILABLE
    assert engine.notes == ("The files of its model (/models/\\u001b[2J\\u202e) are not readable here.",)


def test_server_that_reports_another_cache_each_time_gets_one_reading_a_minute(host: EngineHost) -> None:
    blocks, asked, now = count(1000), [], [1000.0]

    def size(query: ModelQuery) -> ModelSizes:
        asked.append(query)
        return sizes(query)

    def metrics(handler: Handler) -> None:
        handler.reply(200, texts.vllm_metrics(blocks=str(next(blocks))))

    host.add(500, VLLM)
    with engine_site(texts.vllm() | {"/metrics": metrics}) as site:
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), size, host.net, lambda: now[-1]))
        found: list[Engine] = []
        for seconds in (0.0, 5.0, 61.0):
            now.append(1000.0 + seconds)
            found += collector.collect().engines
    assert [one.cache and one.cache.blocks for one in asked] == [1000, 1002]
    assert found[1].weights_bytes is Absent.NOT_AVAILABLE
    assert "The files of its model are read once a minute." in found[1].notes


def test_reason_of_a_refusal_stays_the_same(host: EngineHost) -> None:
    """This kind has only paths that are asked once a minute."""
    with engine_site({"/v1/models": lambda handler: handler.reply(401, b"")}) as site:
        address = EngineAddress("openai", "lab", Address("127.0.0.1", site.port))
        times = count(step=31.0)  # after that time a silent server is asked again
        collector = close_at_end(Collector(host.roots, False, (address,), sizes, host.net, lambda: next(times)))
        notes = {collector.collect().engines[0].notes for _ in range(3)}
    assert notes == {("It wants an API key: name it under [[engines]] with its token.",)}


def test_server_too_busy_for_rare_questions_keeps_its_figures(host: EngineHost) -> None:
    """SGLang answers /server_info between two steps of its scheduler."""
    answers = texts.sglang() | {"/server_info": hangs}
    host.add(500, ("python3", "-m", "sglang.launch_server"))
    with engine_site(answers) as site:
        host.listen(500, site.port)
        collector = collector_of(host)
        (first,) = collector.collect().engines
        (second,) = collector.collect().engines
    assert isinstance(first.requests_running, int)
    assert second.requests_running == first.requests_running
    assert [path for _, path in site.requests].count("/server_info") == 1


def test_tokens_per_second_are_those_between_two_rounds(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port)
    now = [1000.0]
    collector = timed_collector(host, now)
    (first,) = collector.collect().engines
    vllm.answers["/metrics"] = texts.vllm_metrics(generated=1_048_576 + 400)
    now.append(1002.0)
    (second,) = collector.collect().engines
    assert first.tokens_per_second is Absent.NOT_AVAILABLE
    assert second.tokens_per_second == pytest.approx(200.0)


def test_restart_of_a_server_gives_no_rate(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port)
    now = [1000.0]
    collector = timed_collector(host, now)
    collector.collect()
    vllm.answers["/metrics"] = texts.vllm_metrics(generated=10, prompt=5)
    now.append(1002.0)
    (second,) = collector.collect().engines
    assert second.tokens_per_second is Absent.NOT_AVAILABLE
    assert second.generation_tokens_total == 10


def test_version_and_models_are_asked_once_a_minute(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port)
    collector = collector_of(host)
    for _ in range(3):
        collector.collect()
    paths = [path for _, path in vllm.requests]
    assert (paths.count("/metrics"), paths.count("/version"), paths.count("/v1/models")) == (3, 1, 1)


def test_ollama_is_asked_for_loaded_models_only(host: EngineHost) -> None:
    host.add(500, ("/usr/bin/ollama", "serve"))
    host.add(501, ("/usr/lib/ollama/llama-server", "--model", "/m/sha256-1", "-c", "8192"), parent=500)
    with engine_site(texts.ollama(("qwen3:8b", 6 * GIB, 6 * GIB))) as site:
        host.listen(500, site.port)
        host.listen(501, 1024)  # its runner, at a lower port
        engine = ask(host)
    assert (engine.kind, engine.model, engine.pids) == ("ollama", "qwen3:8b", (500, 501))
    assert set(site.requests) == {("GET", "/api/ps"), ("GET", "/api/version")}


def test_options_in_a_file_are_used(host: EngineHost, vllm: EngineSite) -> None:
    """The file has the port, which tells the socket of the API from the others, and the GPUs of the model."""
    text = f"port: {vllm.port}\ntensor-parallel-size: 4\n"
    host.add(500, ("vllm", "serve", "Qwen/Qwen3-32B", "--config", "config.yaml"))
    host.listen(500, 1)  # at a lower port, of its engine core
    host.listen(500, vllm.port)
    asked: list[ModelQuery] = []

    def size(query: ModelQuery) -> ModelSizes:
        asked.append(query)
        return ModelSizes(options=parse_options(text.encode())) if query.is_options else sizes(query)

    collector = close_at_end(Collector(host.roots, True, (), size, host.net))
    wait_until(lambda: any(one.requests_running == 3 for one in collector.collect().engines))
    (engine,) = collector.collect().engines

    assert engine.url == f"http://127.0.0.1:{vllm.port}"
    assert [query.cache.parallel for query in asked if query.cache] == [4]
    assert [query.name for query in asked if query.is_options] == ["config.yaml"]


LLAMA = ("/opt/llama-server", "--port", "9")


def llama_sizes(variables: tuple[str, ...] | None, asked: list[ModelQuery]) -> Callable[[ModelQuery], ModelSizes]:
    """Return a reader of models. `variables`: those of the environment, None if it may not be read."""

    def size(query: ModelQuery) -> ModelSizes:
        asked.append(query)
        if query.variables:
            return ModelSizes(note="no") if variables is None else ModelSizes(options=variables)
        assert query.cache is not None
        q8 = query.cache.key_dtype == query.cache.value_dtype == "q8_0"
        quality = Quality.ESTIMATED if query.cache.is_assumed else Quality.DERIVED
        return ModelSizes(GIB, query.cache.tokens << (9 if q8 else 10), quality)

    return size


@pytest.mark.parametrize(
    ("variables", "kv_cache", "quality", "is_noted"),
    [
        (("LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_CACHE_TYPE_V=q8_0"), 4096 << 9, Quality.DERIVED, False),
        ((), 4096 << 10, Quality.DERIVED, False),
        (None, 4096 << 10, Quality.ESTIMATED, True),
    ],
    ids=["set by variables", "not set", "unknown"],
)
def test_cache_of_llama_cpp_follows_variables_or_is_an_estimate(
    host: EngineHost, variables: tuple[str, ...] | None, kv_cache: int, quality: Quality, is_noted: bool
) -> None:
    host.add(500, LLAMA)
    asked: list[ModelQuery] = []
    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), llama_sizes(variables, asked), host.net))
        wait_until(lambda: collector.collect().engines[0].quality is quality)
        for _ in range(3):
            (engine,) = collector.collect().engines
    assert (engine.kv_cache_bytes, engine.quality) == (kv_cache, quality)
    assert (llama_cpp.ASSUMED_CELLS in engine.notes) == is_noted
    assert sum(bool(query.variables) for query in asked) == 1
    assert {name for query in asked for name in query.variables} == set(llama_cpp.VARIABLES)


def test_draft_model_of_llama_cpp_has_the_size_of_its_file(host: EngineHost) -> None:
    """Its cache is not asked for: it differs between versions, and is in the rest."""
    host.add(500, (*LLAMA, "--spec-draft-model", "/models/draft.gguf"))
    asked: list[ModelQuery] = []

    def size(query: ModelQuery) -> ModelSizes:
        asked.append(query)
        return ModelSizes(GIB >> 4) if query.name == "/models/draft.gguf" else ModelSizes(GIB, GIB >> 3)

    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), size, host.net))
        for _ in range(3):
            (engine,) = collector.collect().engines
    assert engine.draft_weights_bytes == GIB >> 4
    assert engine.parts == {
        "weights_bytes": engine.weights_bytes,
        "draft_weights_bytes": GIB >> 4,
        "kv_cache_bytes": GIB >> 3,
    }
    (draft,) = (query for query in asked if query.name == "/models/draft.gguf")
    assert (draft.cache, draft.by) == (None, ServedBy(500, 77, str(host.proc), str(host.root)))


def test_projector_and_adapters_of_llama_cpp_are_in_its_weights(host: EngineHost) -> None:
    """LLama-GUI#374, unsloth#5849 and llama.cpp#19153: they were counted in the rest."""
    adapters = [f"/models/{at}.gguf" for at in range(MAX_BESIDE + 1)]
    host.add(500, (*LLAMA, "--mmproj", "/models/mmproj.gguf", "--lora", ",".join(adapters)))
    sizes = {"/models/mmproj.gguf": GIB >> 2, adapters[0]: GIB >> 5}

    def size(query: ModelQuery) -> ModelSizes:
        found = sizes.get(query.name, Absent.NOT_AVAILABLE)
        return ModelSizes(GIB, GIB >> 3) if query.cache else ModelSizes(found)

    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), size, host.net))
        (before,) = close_at_end(Collector(host.roots, True, (), None, host.net)).collect().engines
        for _ in range(3):
            (engine,) = collector.collect().engines
    assert isinstance(engine.weights_bytes, int)
    assert isinstance(before.weights_bytes, int)
    assert engine.weights_bytes - before.weights_bytes == (GIB >> 2) + (GIB >> 5)
    assert engine.quality is Quality.DERIVED
    assert BESIDE.format(count=MAX_BESIDE, total=MAX_BESIDE + 2) in engine.notes


def test_unreadable_draft_model_is_named(host: EngineHost) -> None:
    host.add(500, (*LLAMA, "-md", "/models/draft.gguf"))

    def size(query: ModelQuery) -> ModelSizes:
        return ModelSizes(note="not here") if query.name == "/models/draft.gguf" else ModelSizes(GIB, GIB >> 3)

    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        (engine,) = close_at_end(Collector(host.roots, True, (), size, host.net)).collect().engines
    assert engine.draft_weights_bytes is Absent.NOT_AVAILABLE
    assert {"not here", DRAFT_CACHE} <= set(engine.notes)


def test_variables_that_are_read_late_replace_an_estimate_at_once(host: EngineHost) -> None:
    """The reader is busy with other models when the server is found. Nothing waits for it."""
    host.add(500, LLAMA)
    is_free, asked = threading.Event(), list[ModelQuery]()
    size = llama_sizes(("LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_CACHE_TYPE_V=q8_0"), asked)

    def late(query: ModelQuery) -> ModelSizes:
        if query.variables:
            is_free.wait()
        return size(query)

    with engine_site(texts.llama_cpp()) as site:
        host.listen(500, site.port)
        collector = close_at_end(Collector(host.roots, True, (), late, host.net))
        (first,) = collector.collect().engines
        is_free.set()
        wait_until(lambda: collector.collect().engines[0].kv_cache_bytes == 4096 << 9)
    assert (first.requests_running, first.kv_cache_bytes) == (1, Absent.NOT_AVAILABLE)
    assert llama_cpp.ASSUMED_CELLS in first.notes


def test_unreadable_file_of_options_is_asked_for_once_a_minute(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, (*VLLM, "--config", "none.yaml"))
    host.listen(500, vllm.port)
    asked: list[str] = []

    def size(query: ModelQuery) -> ModelSizes:
        if query.is_options:
            asked.append(query.name)
        return ModelSizes(note="The files of its model (none.yaml) are not readable here.")

    collector = close_at_end(Collector(host.roots, True, (), size, host.net))
    for _ in range(6):
        (engine,) = collector.collect().engines

    assert (engine.requests_running, asked) == (3, ["none.yaml"])


def test_lm_studio_without_a_desktop_is_found_with_its_workers(host: EngineHost) -> None:
    """The processes of lmstudio-ai/lms#502."""
    home = "/home/ana/.lmstudio"
    host.add(500, ("llmster",))
    host.add(501, (f"{home}/.internal/utils/node", f"{home}/llmster/0.0.6-1/.bundle/lib/llmworker.js"), parent=500)
    with engine_site(texts.lm_studio("qwen3-8b")) as site:
        host.listen(500, site.port)
        engine = ask(host)
    assert (engine.kind, engine.model, engine.pids) == ("lm-studio", "qwen3-8b", (500, 501))
    assert (engine.weights_bytes, engine.context_tokens) == (5 * GIB, 8192)
    assert site.requests == [("GET", "/api/v1/models")]


def test_lm_studio_is_asked_at_the_port_of_its_server(host: EngineHost) -> None:
    """Any port may be set. Another is open for its commands while the server is off (bug-tracker#1158)."""
    host.add(500, ("/opt/LM Studio/lm-studio",))
    host.listen(500, 16141)
    collector = collector_of(host)
    (off,) = collector.collect().engines
    assert (off.url, off.notes) == (Absent.NOT_AVAILABLE, (SERVER_OFF,))
    with engine_site(texts.lm_studio("qwen3-8b")) as site:
        host.listen(500, site.port)
        for _ in range(SEARCH_TURNS):
            (on,) = collector.collect().engines
    assert (on.url, on.model) == (f"http://127.0.0.1:{site.port}", "qwen3-8b")


@pytest.mark.parametrize(
    "argv", [("python3", "-m", "dynamo.vllm", "--model", "m"), ("/ovms/bin/ovms", "--port", "9000")]
)
def test_port_for_another_protocol_is_not_asked(host: EngineHost, vllm: EngineSite, argv: tuple[str, ...]) -> None:
    """Workers of Dynamo, and OpenVINO Model Server with gRPC alone. A configured address is asked."""
    host.add(500, argv)
    host.listen(500, vllm.port)
    found = ask(host)
    assert (found.url, found.notes) == (Absent.NOT_AVAILABLE, (PORT_UNKNOWN,))
    assert vllm.requests == []


@pytest.mark.parametrize(
    ("module", "port", "is_asked"),
    [("vllm", 0, True), ("sglang", 0, True), ("vllm", -1, False), ("trtllm", 0, False)],
)
def test_worker_of_dynamo_is_asked_at_the_port_of_its_environment(
    host: EngineHost, vllm: EngineSite, module: str, port: int, is_asked: bool
) -> None:
    """Its other sockets are those of other protocols. A port of -1 turns it off."""
    host.add(500, ("python3", "-m", f"dynamo.{module}", "--model", "m"))
    host.listen(500, 1041)
    host.listen(500, vllm.port)
    read = llama_sizes((f"DYN_SYSTEM_PORT={port or vllm.port}",), [])
    collector = close_at_end(Collector(host.roots, True, (), read, host.net))
    (found,) = collector.collect().engines
    assert (found.url, bool(vllm.requests)) == (
        (f"http://127.0.0.1:{vllm.port}", True) if is_asked else (Absent.NOT_AVAILABLE, False)
    )


def test_openvino_is_asked_at_its_port_for_http(host: EngineHost) -> None:
    with engine_site(texts.openvino()) as site:
        host.add(500, ("/ovms/bin/ovms", "--port", "9000", f"--rest_port={site.port}", "--metrics_enable"))
        host.listen(500, site.port)
        found = ask(host)
    assert (found.id, found.title) == (f"openvino-{site.port}", "OpenVINO Model Server")
    assert (found.requests_running, found.weights_bytes) == (6, Absent.NOT_AVAILABLE)
    assert not isinstance(found.remainder_bytes, int)
    assert {path for _, path in site.requests} == {"/metrics"}


def test_lmdeploy_is_asked_for_its_metrics(host: EngineHost) -> None:
    with engine_site(texts.lmdeploy()) as site:
        host.add(500, ("python3", "-m", "lmdeploy", "serve", "api_server", "m", "--server-port", str(site.port)))
        host.listen(500, site.port)
        found = ask(host)
    assert (found.model, found.kv_cache_ratio) == ("m", 0.97)
    assert (found.requests_running, found.requests_waiting, found.generation_tokens_total) == (3, 5, 9000)


def test_socket_of_a_started_process_is_asked_if_the_launcher_has_none(host: EngineHost) -> None:
    host.add(500, ("text-generation-launcher", "--model-id", "m"))
    host.add(501, ("text-generation-router",), parent=500)
    with engine_site(texts.tgi()) as site:
        host.listen(501, site.port)
        engine = ask(host)
    assert (engine.kind, engine.pid, engine.requests_running) == ("tgi", 500, 6)


def test_models_of_a_llama_cpp_router_are_engines_of_their_own(host: EngineHost) -> None:
    host.add(500, ("llama-server", "--models-dir", "/m"))
    host.add(501, ("llama-server", "-m", "/m/a.gguf", "--port", "41000"), parent=500)
    found = collector_of(host).collect().engines
    assert [one.pid for one in found] == [500, 501]


def test_server_in_another_network_is_not_asked(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port, "0.0.0.0", own_net=True)
    engine = ask(host)
    assert (engine.url, engine.weights_bytes) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert engine.notes == (
        "It listens in the network of a container. Name its address under [[engines]] to ask it.",
    )
    assert vllm.requests == []


def test_server_on_another_address_is_not_asked(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port, "192.0.2.7")
    assert "192.0.2.7 only" in ask(host).notes[0]
    assert vllm.requests == []


def test_server_without_a_socket_is_listed_and_found_later(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    collector = collector_of(host)
    (before,) = collector.collect().engines
    assert (before.id, before.notes) == ("vllm-500", ("It does not listen on a TCP port yet.",))
    host.listen(500, vllm.port)
    for _ in range(3):
        (after,) = collector.collect().engines
    assert after.requests_running == 3


def test_port_of_the_command_line_counts_without_access_to_descriptors(host: EngineHost, vllm: EngineSite) -> None:
    folder = host.add(500, (*VLLM, "--port", str(vllm.port)))
    host.listen(500, vllm.port, held=False)
    host.listen(500, 22, uid=0, held=False)
    (folder / "fd").rmdir()
    assert ask(host).requests_running == 3


def test_socket_of_another_user_at_the_port_is_not_the_servers(host: EngineHost, vllm: EngineSite) -> None:
    folder = host.add(500, (*VLLM, "--port", str(vllm.port)))
    host.listen(500, vllm.port, uid=1001, held=False)
    (folder / "fd").rmdir()
    assert ask(host).notes == ("It does not listen on a TCP port yet.",)
    assert vllm.requests == []


def test_server_that_ended_is_gone(host: EngineHost, vllm: EngineSite) -> None:
    folder = host.add(500, VLLM)
    host.listen(500, vllm.port)
    collector = collector_of(host)
    assert len(collector.collect().engines) == 1
    folder.rename(host.proc / "gone")
    assert collector.collect().engines == ()


def test_process_id_that_was_reused_is_no_engine(host: EngineHost, vllm: EngineSite) -> None:
    folder = host.add(500, VLLM)
    host.listen(500, vllm.port)
    collector = collector_of(host)
    collector.collect()
    folder.rename(host.proc / "gone")
    host.add(500, ("sleep", "9"), start=99)
    assert collector.collect().engines == ()


def test_configured_server_is_asked_with_its_token(host: EngineHost, vllm: EngineSite) -> None:
    one = EngineAddress("vllm", "chat", Address("127.0.0.1", vllm.port, token="s3cret"))
    (engine,) = collector_of(host, one, discover=False).collect().engines
    assert (engine.id, engine.pid, engine.requests_running) == ("chat", Absent.NOT_SUPPORTED, 3)
    assert {headers["Authorization"] for headers in vllm.headers} == {"Bearer s3cret"}


def test_found_server_gets_no_token_unless_it_is_configured(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port)
    collector_of(host, EngineAddress("vllm", "other", Address("127.0.0.1", 1, token="s3cret"))).collect()
    assert all("Authorization" not in headers for headers in vllm.headers)


def test_found_server_that_is_configured_is_listed_once(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, vllm.port)
    one = EngineAddress("vllm", "chat", Address("127.0.0.1", vllm.port, token="s3cret"))
    (engine,) = collector_of(host, one).collect().engines
    assert engine.pid == 500
    assert vllm.headers[0]["Authorization"] == "Bearer s3cret"


def test_configured_address_is_that_of_the_one_server_in_a_container(host: EngineHost, vllm: EngineSite) -> None:
    host.add(500, VLLM)
    host.listen(500, 8000, "0.0.0.0", own_net=True)
    one = EngineAddress("vllm", "chat", Address("127.0.0.1", vllm.port))
    (engine,) = collector_of(host, one).collect().engines
    assert (engine.pid, engine.pids, engine.requests_running) == (500, (500,), 3)


def test_configured_address_is_not_assigned_to_one_of_two_servers(host: EngineHost, vllm: EngineSite) -> None:
    for pid in (500, 501):
        host.add(pid, VLLM)
        host.listen(pid, 8000, "0.0.0.0", own_net=True)
    one = EngineAddress("vllm", "chat", Address("127.0.0.1", vllm.port))
    found = collector_of(host, one).collect().engines
    assert [(engine.pid, engine.requests_running) for engine in found] == [
        (500, Absent.NOT_AVAILABLE),
        (501, Absent.NOT_AVAILABLE),
        (Absent.NOT_SUPPORTED, 3),
    ]


def test_nothing_is_asked_with_discovery_off(host: EngineHost) -> None:
    roots = Host(host.roots, (Options(discover=False), EngineAddresses()))
    with pytest.raises(SourceUnavailable, match="discovery is off"):
        Collector.create(roots)


def html(handler: Handler) -> None:
    handler.reply(200, b"<html><title>It works!</title></html>")


def redirect(handler: Handler) -> None:
    handler.reply(302, b"", Location="/elsewhere")


def wants_key(handler: Handler) -> None:
    handler.reply(401, b"{}")


def huge(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(10_000_000_000))
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(bytes(100_000))


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(10_000):
        handler.wfile.write(bytes(100_000))


def slow(handler: Handler) -> None:
    """Send a byte after the other until the client has closed the connection."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"\x00\x01\x02 hello\r\n\r\n")


def hangs(handler: Handler) -> None:
    """Answer nothing until the client has closed the connection."""
    handler.rfile.read(1)


@pytest.mark.parametrize(
    ("behave", "note"),
    [
        (redirect, "a redirect, which is not followed"),
        (wants_key, "It wants an API key"),
        (huge, f"larger than {MAX_ANSWER_BYTES} bytes"),
        (endless, f"larger than {MAX_ANSWER_BYTES} bytes"),
        (slow, "no complete answer within 2 s"),
        (no_http, "the answer is not HTTP"),
        (hangs, "no complete answer within 2 s"),
    ],
)
def test_bad_server_has_no_figures_and_a_reason(
    host: EngineHost, behave: Callable[[Handler], None], note: str
) -> None:
    host.add(500, VLLM)
    answers: dict[str, Answer] = dict.fromkeys(("/metrics", "/version", "/v1/models"), behave)
    with engine_site(answers) as site:
        host.listen(500, site.port)
        engine = ask(host)
    assert note in engine.notes[-1]
    assert isinstance(engine.requests_running, Absent)
    assert ("GET", "/elsewhere") not in site.requests


def test_server_that_prints_a_web_page_has_no_figures(host: EngineHost) -> None:
    host.add(500, VLLM)
    with engine_site(dict.fromkeys(("/metrics", "/version", "/v1/models"), html)) as site:
        host.listen(500, site.port)
        engine = ask(host)
    assert engine.model == "Qwen/Qwen3-32B"  # of its command line
    assert isinstance(engine.kv_cache_ratio, Absent)


def test_silent_server_is_left_alone_for_a_while(host: EngineHost) -> None:
    host.add(500, VLLM)
    with engine_site({"/metrics": no_http}) as site:
        host.listen(500, site.port)
        collector = collector_of(host)
        for _ in range(3):
            collector.collect()
        assert len(site.requests) == 1


@pytest.mark.measure
def test_round_with_two_engines_takes_at_most_a_millisecond_of_cpu(host: EngineHost) -> None:
    """The least of 200 rounds: other programs on the cores empty the caches of the processor."""
    host.add(500, VLLM)
    host.add(501, ("llama-server", "-m", "/models/tiny.gguf"))
    with engine_process("vllm") as one, engine_process("llama_cpp") as two:
        host.listen(500, one)
        host.listen(501, two)
        collector = collector_of(host)
        collector.collect()
        taken = []
        for _ in range(200):
            before = time.thread_time()
            assert len(collector.collect().engines) == 2
            taken.append(time.thread_time() - before)
    within("CPU time of a round with two engines", min(taken), 0.001, "s")
