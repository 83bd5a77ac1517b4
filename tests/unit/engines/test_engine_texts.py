"""Figures that are read from the text of each engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.engines import llama_cpp, lm_studio, ollama, openai, sglang, tensorrt_llm, vllm
from memwatch.core.engines.command import DRAFT_CACHE, Command, may_start_engine, options_of
from memwatch.core.engines.kinds import KINDS, EngineKind, find_kind
from memwatch.core.engines.records import Cache, Counters, Engine, EngineReading, ModelSizes
from memwatch.core.engines.requests import Answers
from memwatch.core.engines.server import CONVERTED, Rates, build_engine, compute_rates
from memwatch.core.engines.text import Exposition, bytes_of, count_of, label, name_of, ratio_of
from memwatch.core.model import Absent, Quality
from memwatch.planning.served import parse_options
from support import engine_texts as texts
from support.engine_fields import asked

GIB = 1 << 30
SERVE = Command(("/venv/bin/python3", "/venv/bin/vllm", "serve", "Qwen/Qwen3-32B", "-tp", "2"))


def test_vllm_reports_load_and_blocks_of_its_cache() -> None:
    found = vllm.parse(Answers(texts.vllm(), SERVE))
    assert (found.version, found.model, found.model_path) == ("0.11.0", "Qwen/Qwen3-32B", "Qwen/Qwen3-32B")
    assert (found.requests_running, found.requests_waiting, found.kv_cache_ratio) == (3, 0, 0.12)
    assert found.counters == Counters(52_000, 1_048_576, 8.0, 40.0)
    assert found.cache == Cache("blocks", 19660, 16, 0, 1, "auto", "auto", 2, 1)
    assert (found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    assert (found.sleeping, found.gpu_fraction, found.context_tokens) == (False, 0.9, 40960)


NO_DRAFT, UNKNOWN = Absent.NOT_SUPPORTED, Absent.NOT_AVAILABLE


@pytest.mark.parametrize(
    ("options", "environment", "path", "weights", "note"),
    [
        (("-md", "/m/draft.gguf"), (), "/m/draft.gguf", UNKNOWN, DRAFT_CACHE),
        (("--model-draft=/m/draft.gguf",), (), "/m/draft.gguf", UNKNOWN, DRAFT_CACHE),
        (
            ("--spec-draft-model", "d.gguf", "--spec-type", "draft-simple"),
            (),
            "d.gguf",
            UNKNOWN,
            DRAFT_CACHE,
        ),
        ((), ("LLAMA_ARG_MODEL_DRAFT=/m/a.gguf",), "/m/a.gguf", UNKNOWN, DRAFT_CACHE),
        (("-md", "b.gguf"), ("LLAMA_ARG_SPEC_DRAFT_MODEL=a.gguf",), "b.gguf", UNKNOWN, DRAFT_CACHE),
        (("-hfd", "ggml-org/Qwen3-0.6B-GGUF"), (), "", UNKNOWN, llama_cpp.UNKNOWN_DRAFT),
        ((), ("LLAMA_ARG_SPEC_DRAFT_HF_REPO=a/b",), "", UNKNOWN, llama_cpp.UNKNOWN_DRAFT),
        (("--spec-type", "draft-mtp"), (), "", NO_DRAFT, None),
        (("--draft-max", "16"), (), "", NO_DRAFT, None),
    ],
)
def test_draft_model_of_llama_cpp_is_named_by_its_options(
    options: tuple[str, ...], environment: tuple[str, ...], path: str, weights: Absent, note: str | None
) -> None:
    command = Command(("llama-server", *options), (), options_of(llama_cpp.VARIABLES, environment))
    found = llama_cpp.parse(Answers(texts.llama_cpp(), command))
    assert (found.draft_path, found.draft_weights_bytes) == (path, weights)
    assert [one for one in found.notes if "draft" in one] == [note] * bool(note)


@pytest.mark.parametrize(
    ("options", "environment", "paths"),
    [
        (("--mmproj", "/m/mmproj.gguf"), (), ("/m/mmproj.gguf",)),
        (("-mm", "p.gguf", "--lora", "a.gguf", "--lora", "b.gguf"), (), ("p.gguf", "a.gguf", "b.gguf")),
        (("--lora", "a.gguf,b.gguf"), (), ("a.gguf", "b.gguf")),
        (("--lora-scaled", "a.gguf:0.5,b.gguf:-1"), (), ("a.gguf", "b.gguf")),
        (("--lora-scaled", "a.gguf", "0.5"), (), ("a.gguf",)),
        (("--lora", "a.gguf", "--lora", "a.gguf"), (), ("a.gguf",)),
        ((), ("LLAMA_ARG_MMPROJ=/m/p.gguf",), ("/m/p.gguf",)),
        (("--mmproj", "p.gguf", "--no-mmproj"), (), ()),
        ((), (), ()),
    ],
)
def test_projector_and_adapters_of_llama_cpp_are_beside_its_model(
    options: tuple[str, ...], environment: tuple[str, ...], paths: tuple[str, ...]
) -> None:
    command = Command(("llama-server", *options), (), options_of(llama_cpp.VARIABLES, environment))
    assert llama_cpp.parse(Answers(texts.llama_cpp(), command)).beside_paths == paths


@pytest.mark.parametrize(
    ("options", "is_noted"), [(("-hf", "ggml-org/gemma-3-4b-it-GGUF"), True), (("--mmproj", "p.gguf"), False)]
)
def test_projector_that_the_server_chose_is_named(options: tuple[str, ...], is_noted: bool) -> None:
    answers = texts.llama_cpp(modalities={"vision": True, "audio": False})
    found = llama_cpp.parse(Answers(answers, Command(("llama-server", *options))))
    assert (llama_cpp.UNKNOWN_PROJECTOR in found.notes) == is_noted


def test_sleeping_llama_cpp_holds_no_draft_model() -> None:
    asleep = {**texts.llama_cpp(), "/props": b'{"is_sleeping": true, "build_info": "b10700"}'}
    found = llama_cpp.parse(Answers(asleep, Command(("llama-server", "-md", "d.gguf", "--mmproj", "p.gguf"))))
    assert (found.weights_bytes, found.draft_weights_bytes, found.draft_path) == (0, 0, "")
    assert found.beside_paths == ()
    assert llama_cpp.parse(Answers(asleep)).draft_weights_bytes is NO_DRAFT


def test_vllm_with_an_absolute_cache_reports_its_bytes() -> None:
    found = vllm.parse(Answers(texts.vllm(cache_bytes=str(20 * GIB)), SERVE))
    assert (found.kv_cache_bytes, found.cache) == (40 * GIB, None)  # on each of two GPUs


def test_vllm_of_an_old_version_has_the_old_name_of_the_cache() -> None:
    text = texts.vllm_metrics().replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
    assert vllm.parse(Answers({"/metrics": text})).kv_cache_ratio == 0.12


def test_vllm_with_two_replicas_sums_their_requests_and_caches() -> None:
    two = texts.vllm_metrics() + texts.vllm_metrics(used=0.5).replace(b'engine="0"', b'engine="1"')
    found = vllm.parse(Answers({"/metrics": two}))
    assert found.requests_running == 6
    assert found.kv_cache_ratio == 0.5
    assert found.kv_cache_mean_ratio == pytest.approx(0.31)
    assert found.cache is not None
    assert (found.cache.replicas, found.cache.blocks) == (2, 2 * 19660)


@pytest.mark.parametrize(
    ("offloaded", "weights", "note"), [(1, Absent.NOT_AVAILABLE, vllm.OFFLOADED), (0, 0, vllm.DISCARDED)]
)
def test_sleeping_vllm_holds_no_cache(offloaded: int, weights: object, note: str) -> None:
    found = vllm.parse(Answers(texts.vllm(awake=0, offloaded=offloaded)))
    assert (found.sleeping, found.kv_cache_bytes, found.weights_bytes, found.notes) == (True, 0, weights, (note,))


def test_sglang_reports_gib_of_each_gpu() -> None:
    found = sglang.parse(Answers({**texts.sglang(tp=2), sglang.INFO: texts.sglang(tp=2)["/server_info"]}))
    assert found.weights_bytes == int(15.28 * 2 * GIB)
    assert found.kv_cache_bytes == int(57.53 * 2 * GIB)
    assert found.quality is Quality.DERIVED
    assert (found.requests_running, found.requests_waiting) == (2, 1)  # ranks report the same
    assert (found.model, found.version, found.quantization) == ("meta-llama/Llama-3.1-8B-Instruct", "0.5.5", "fp8")


def test_sglang_without_metrics_says_how_to_get_them() -> None:
    found = sglang.parse(Answers({sglang.INFO: texts.sglang()["/server_info"]}))
    assert found.requests_running is Absent.NOT_AVAILABLE
    assert found.notes == (sglang.NO_METRICS,)
    assert found.weights_bytes == int(15.28 * GIB)


@pytest.mark.parametrize(
    ("argv", "cells"),
    [
        (("llama-server", "-m", "x"), (4096, 1)),
        (("llama-server", "-np", "4"), (4096, 4)),
        (("llama-server", "-np", "4", "-kvu"), (4096, 1)),
    ],
)
def test_slots_of_llama_cpp_share_or_divide_its_cache(argv: tuple[str, ...], cells: tuple[int, int]) -> None:
    found = llama_cpp.parse(Answers(texts.llama_cpp(slots=4), Command(argv)))
    assert found.cache is not None
    assert (found.cache.tokens, found.cache.sequences) == cells


def test_llama_cpp_reports_weights_and_load() -> None:
    command = Command(("/usr/bin/llama-server", "--cache-type-k=q8_0", "-ctv", "q4_0"))
    found = llama_cpp.parse(Answers(texts.llama_cpp(), command))
    assert (found.weights_bytes, found.requests_running, found.requests_waiting) == (4912898304, 1, 4)
    assert (found.version, found.model, found.model_path) == ("b8000-0123456", "tiny.gguf", "/models/tiny.gguf")
    assert found.quantization == "Q4_K_M"
    assert found.cache == Cache("cells", tokens=4096, key_dtype="q8_0", value_dtype="q4_0")
    assert found.kv_cache_ratio is Absent.NOT_SUPPORTED


SMALL = Cache("cells", tokens=4096, key_dtype="f16", value_dtype="f16")
DIVIDED = replace(SMALL, sequences=4)
Q8 = {"key_dtype": "q8_0", "value_dtype": "q8_0"}
TYPES = ("LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_CACHE_TYPE_V=q8_0")


@pytest.mark.parametrize(
    ("slots", "options", "environment", "cache"),
    [
        pytest.param(1, (), TYPES, replace(SMALL, **Q8), id="types by variables"),
        pytest.param(1, ("-ctk", "f16", "-ctv", "f16"), TYPES, SMALL, id="the command line comes first"),
        pytest.param(4, (), ("LLAMA_ARG_N_PARALLEL=4",), DIVIDED, id="slots by a variable"),
        pytest.param(
            4, (), ("LLAMA_ARG_N_PARALLEL=4", "LLAMA_ARG_CTX_SIZE=16384"), DIVIDED, id="slots and context"
        ),
        pytest.param(4, ("-np", "4"), ("LLAMA_ARG_KV_UNIFIED=true",), SMALL, id="shared by a variable"),
        pytest.param(4, ("-np", "4"), ("LLAMA_ARG_KV_SPLIT=1",), SMALL, id="the same of 2025"),
        pytest.param(4, ("-np", "4"), ("LLAMA_ARG_KV_UNIFIED=off",), DIVIDED, id="not shared"),
        pytest.param(
            4, ("-np", "4", "-no-kvu"), ("LLAMA_ARG_KV_UNIFIED=1",), DIVIDED, id="not shared by the command line"
        ),
        pytest.param(4, ("-np", "4", "-kvu"), ("LLAMA_ARG_NO_KV_UNIFIED=1",), SMALL, id="shared all the same"),
        pytest.param(1, (), ("LLAMA_ARG_SWA_FULL=1",), replace(SMALL, ignores_windows=True), id="full windows"),
        pytest.param(1, ("--swa-full",), (), replace(SMALL, ignores_windows=True), id="full windows by an option"),
        pytest.param(1, (), (), SMALL, id="no variable"),
        pytest.param(4, ("-np", "-1"), (), SMALL, id="slots by default"),
        pytest.param(1, (), None, replace(SMALL, is_assumed=True), id="unknown environment"),
        pytest.param(1, ("-ctk", "q8_0", "-ctv", "q8_0"), None, replace(SMALL, **Q8), id="unknown, types told"),
        pytest.param(
            4, ("-np", "4", "-ctk", "q8_0", "-ctv", "q8_0"), None, replace(DIVIDED, **Q8, is_assumed=True),
            id="unknown, types told, not whether it is shared",
        ),
        pytest.param(
            4, ("-np", "4", "-c", "16384", "-ctk", "q8_0", "-ctv", "q8_0"), None, replace(DIVIDED, **Q8),
            id="unknown, all told",
        ),
    ],
)  # fmt: skip
def test_variables_of_llama_cpp_decide_on_its_cache(
    slots: int, options: tuple[str, ...], environment: tuple[str, ...] | None, cache: Cache
) -> None:
    """Facts of tools/server/README.md: variables, and the options that they set."""
    given = None if environment is None else options_of(llama_cpp.VARIABLES, environment)
    command = Command(("llama-server", *options), from_environment=given)
    found = llama_cpp.parse(Answers(texts.llama_cpp(slots=slots), command))
    assert found.cache == cache
    assert (llama_cpp.ASSUMED_CELLS in found.notes) == cache.is_assumed


def test_cache_of_several_slots_is_unknown_without_a_command_line() -> None:
    found = llama_cpp.parse(Answers(texts.llama_cpp(slots=4)))
    assert (found.cache, found.notes) == (None, (llama_cpp.UNKNOWN_CELLS,))


def test_sleeping_llama_cpp_holds_nothing() -> None:
    found = llama_cpp.parse(Answers(texts.llama_cpp(is_sleeping=True)))
    assert (found.sleeping, found.weights_bytes, found.kv_cache_bytes) == (True, 0, 0)


def test_ollama_lists_its_model_and_the_cache_of_its_runner() -> None:
    runner = Command(("/usr/lib/ollama/llama-server", "--model", "/m/sha256-1", "-c", "16384", "-np", "4"))
    server = Command(("ollama", "serve"), from_environment=())
    found = ollama.parse(Answers(texts.ollama(("qwen3:8b", 6 * GIB, 6 * GIB)), server, runner))
    assert (found.model, found.quantization, found.model_path) == ("qwen3:8b", "Q4_K_M", "/m/sha256-1")
    assert found.cache == Cache("cells", tokens=4096, sequences=4, key_dtype="f16", value_dtype="f16")
    assert found.notes == ("Ollama plans 6.0 GiB for qwen3:8b, weights and cache together.",)
    assert found.requests_running is Absent.NOT_SUPPORTED


OWN = ("/usr/bin/ollama", "runner", "--model", "/m/sha256-1")
LLAMA = ("/usr/lib/ollama/llama-server", "--model", "/m/sha256-1")
EARLY = ("/tmp/ollama1234/runners/cuda_v12/ollama_llama_server", "--model", "/m/sha256-1")
OF_OLLAMA = ("OLLAMA_KV_CACHE_TYPE=q8_0", "OLLAMA_NUM_PARALLEL=4", "PATH=/bin")
INHERITED = ("LLAMA_ARG_CACHE_TYPE_K=q8_0", "LLAMA_ARG_SWA_FULL=1", "OLLAMA_KV_CACHE_TYPE=q4_0")


@pytest.mark.parametrize(
    ("runner", "environment", "cells", "note"),
    [
        ((*OWN, "--ollama-engine", "--port", "1"), OF_OLLAMA, (8192, 4, "q8_0", "q8_0", False), ollama.MAYBE_CELLS),
        ((*OWN, "--ollama-engine", "--port", "1"), None, (8192, 1, "f16", "f16", False), ollama.ASSUMED_CELLS),
        ((*OWN, "--ctx-size", "16384", "--parallel", "2"), OF_OLLAMA, (8192, 2, "f16", "f16", False), ""),
        ((*OWN, "--ctx-size", "8192", "--kv-cache-type", "q8_0"), None, (8192, 1, "q8_0", "q8_0", False), ""),
        ((*EARLY, "--ctx-size", "8192", "--parallel", "4"), None, (2048, 4, "f16", "f16", False), ""),
        ((*LLAMA, "-c", "8192", "-np", "1"), INHERITED, (8192, 1, "q8_0", "f16", True), ""),
        ((*LLAMA, "-c", "8192", "-np", "1"), None, (8192, 1, "f16", "f16", False), ollama.ASSUMED_CELLS),
        ((*LLAMA, "-c", "8192", "-ctk", "q8_0", "-ctv", "q8_0"), None, (8192, 1, "q8_0", "q8_0", False), ""),
    ],
)  # fmt: skip
def test_variables_of_ollama_decide_on_the_cache_of_its_runner(
    runner: tuple[str, ...],
    environment: tuple[str, ...] | None,
    cells: tuple[int, int, str, str, bool],
    note: str,
) -> None:
    """Issues #11497 and #9246, PRs #14120 and #18265 of ollama/ollama. /api/ps has the context of one sequence."""
    options = None if environment is None else options_of(ollama.VARIABLES, environment)
    server = Command(("ollama", "serve"), from_environment=options)
    answers = Answers(texts.ollama(("qwen3:8b", 6 * GIB, 6 * GIB), context=8192), server, Command(runner))
    found = ollama.parse(answers)
    tokens, sequences, key, value, is_full = cells
    assert found.cache == Cache(
        "cells",
        tokens=tokens,
        sequences=sequences,
        key_dtype=key,
        value_dtype=value,
        is_assumed=bool(note),
        ignores_windows=is_full,
    )
    assert found.notes[1:] == ((note,) if note else ())


def test_names_of_many_models_of_triton_are_counted() -> None:
    """triton-inference-server/server#5392: 27 models."""
    lines = [f'nv_inference_request_success{{model="classifier_{at:02}",version="1"}} 3\n' for at in range(27)]
    found = tensorrt_llm.parse_triton(Answers({"/metrics": "".join(lines).encode()}))
    assert str(found.model).endswith("classifier_07 and 19 more")


@pytest.mark.parametrize(
    ("options", "number_bytes", "is_known"),
    [
        (("--quantization", "bitsandbytes", "--load-format", "bitsandbytes"), 2.0, False),  # vllm#15042
        (("-q", "fp8"), 1.0, True),  # the files have this format already
        (("--dtype", "bfloat16"), 2.0, True),
        ((), 4.0, False),
        (("--dtype", "float32"), 4.0, True),
        ((), 0.0, True),
    ],
)
def test_weights_that_are_converted_as_they_are_loaded_are_not_those_of_the_files(
    options: tuple[str, ...], number_bytes: float, is_known: bool
) -> None:
    reading = vllm.parse(Answers(texts.vllm(), Command(("vllm", "serve", "google/gemma-3-4b-it", *options))))
    blank = Engine("vllm-8000", "vllm", "vLLM", "http://127.0.0.1:8000", 1)
    found = build_engine(blank, reading, Rates(), ModelSizes(8 * GIB, GIB, number_bytes=number_bytes))
    assert found.weights_bytes == (8 * GIB if is_known else UNKNOWN)
    assert (CONVERTED in found.notes) is not is_known


@pytest.mark.parametrize(
    ("kind", "argv", "converts_from"),
    [
        (openai.parse_tgi, ("text-generation-launcher", "--model-id", "m", "--quantize", "eetq"), 2.0),
        (openai.parse_tgi, ("text-generation-launcher", "--model-id", "m"), 4.0),
        (openai.parse, ("text-embeddings-router", "--model-id", "m"), 4.0),
        (openai.parse, ("text-embeddings-router", "--model-id", "m", "--dtype", "float32"), None),
        (openai.parse, ("mistralrs", "serve", "-m", "m", "--isq", "4"), 2.0),
        (openai.parse, ("mistralrs", "serve", "-m", "m"), None),
    ],
)
def test_options_of_other_engines_convert_weights(
    kind: Callable[[Answers], EngineReading], argv: tuple[str, ...], converts_from: float | None
) -> None:
    assert kind(Answers({}, Command(argv))).converts_from == converts_from


def test_name_that_is_too_long_says_so() -> None:
    assert (name_of("x" * 200), name_of("x" * 201)) == ("x" * 200, "x" * 199 + "…")


@pytest.mark.parametrize(
    ("options", "draft"),
    [
        (("--speculative-config", '{"model": "a/eagle3", "method": "eagle3"}'), "a/eagle3"),
        (('--speculative-config={"method": "ngram", "num_speculative_tokens": 5}',), ""),
        (('--speculative-config={"method": "mtp", "model": "m"}',), ""),
        (("--speculative-config.model", "a/draft"), "a/draft"),
        (("--speculative_model", "a/draft"), "a/draft"),
        (("--speculative-model", "[ngram]"), ""),
        (("--speculative-config", "{"), ""),
        ((), ""),
    ],
)
def test_draft_model_of_vllm_is_named_by_its_options(options: tuple[str, ...], draft: str) -> None:
    found = vllm.parse(Answers(texts.vllm(), Command(("vllm", "serve", "m", *options))))
    assert (found.draft_path, found.draft_weights_bytes) == (draft, UNKNOWN if draft else NO_DRAFT)
    assert (DRAFT_CACHE in found.notes) == bool(draft)


@pytest.mark.parametrize(
    ("told", "options", "draft", "note"),
    [
        ({"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "a/e"}, (), "a/e", DRAFT_CACHE),
        ({"speculative_algorithm": "EAGLE", "speculative_draft_model_path": None}, (), "", sglang.SAME_FILES),
        ({"speculative_algorithm": "NGRAM"}, (), "", None),
        ({"speculative_algorithm": None}, (), "", None),
        ({}, ("--speculative-algorithm", "EAGLE"), "", sglang.SAME_FILES),
        ({}, ("--speculative-algorithm", "eagle3", "--speculative-draft-model-path", "a/e"), "a/e", DRAFT_CACHE),
    ],
)
def test_draft_model_of_sglang_is_no_part_of_its_weights(
    told: dict[str, Any], options: tuple[str, ...], draft: str, note: str | None
) -> None:
    """zai-org/GLM-4.5#3: without a path it loads the same files twice."""
    command = Command(("python", "-m", "sglang.launch_server", *options))
    found = sglang.parse(Answers(asked(texts.sglang(**told)), command))
    assert (found.draft_path, found.draft_weights_bytes) == (draft, UNKNOWN if draft else NO_DRAFT)
    assert [one for one in found.notes if "draft" in one] == ([note] if note else [])


def test_draft_model_of_a_sleeping_vllm_is_as_unknown_as_its_model() -> None:
    command = Command(("vllm", "serve", "m", "--speculative-model", "a/draft"))
    found = vllm.parse(Answers(texts.vllm(awake=0, offloaded=1), command))
    assert (found.weights_bytes, found.draft_weights_bytes, found.draft_path) == (UNKNOWN, UNKNOWN, "")


def test_triton_with_vllm_reports_tokens() -> None:
    """Its labels are those of Triton. It has neither the requests nor the KV cache of vLLM."""
    found = tensorrt_llm.parse_triton(Answers(texts.triton_of_vllm()))
    assert (found.model, found.rate) == ("vllm_model", UNKNOWN)
    assert found.counters == Counters(10, 16, 0.03, 1)
    assert found.notes == (tensorrt_llm.VLLM_BACKEND,)


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        (("llama-server", "-hf", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"), "gemma-3-1b-it-GGUF:Q4_K_M"),
        (("llama-server", "-hf", "a/b-GGUF", "-hff", "c/b-Q4_0.gguf"), "b-Q4_0.gguf"),
        (("llama-server", "-mu", "https://example.org/m/a.gguf"), "a.gguf"),
        (("llama-server", "-m", "/m/c.gguf", "-hf", "a/b-GGUF"), "c.gguf"),
    ],
)
def test_model_of_the_hub_is_named_while_llama_cpp_loads_it(argv: tuple[str, ...], model: str) -> None:
    found = llama_cpp.parse(Answers({}, Command(argv)))
    assert (found.model, found.model_path) == (model, "/m/c.gguf" if "-m" in argv else "")


def test_ollama_without_a_model_holds_nothing() -> None:
    found = ollama.parse(Answers(texts.ollama()))
    assert (found.weights_bytes, found.kv_cache_bytes, found.sleeping) == (0, 0, True)


def test_ollama_with_two_models_names_both_and_their_plans() -> None:
    found = ollama.parse(Answers(texts.ollama(("a:1", 4 * GIB, 0), ("b:2", 2 * GIB, GIB))))
    assert found.model == "a:1, b:2"
    assert found.notes[1] == "Ollama plans 2.0 GiB for b:2, weights and cache together, 1.0 GiB of it on GPUs."
    assert found.weights_bytes is Absent.NOT_AVAILABLE


def test_tgi_reports_the_tokens_of_its_cache() -> None:
    found = openai.parse_tgi(Answers(texts.tgi()))
    assert found.cache == Cache("blocks", blocks=131072, block_tokens=1)
    assert (found.requests_running, found.requests_waiting, found.counters.generation_tokens) == (6, 2, 8000)


def test_trtllm_serve_reports_blocks_and_no_tokens() -> None:
    found = tensorrt_llm.parse_serve(Answers(texts.trtllm_serve()))
    assert (found.kv_cache_ratio, found.requests_running, found.rate) == (0.5, 7, Absent.NOT_SUPPORTED)
    assert found.cache == Cache("blocks", blocks=1000, block_tokens=32)


def test_triton_reports_blocks_by_label() -> None:
    found = tensorrt_llm.parse_triton(Answers(texts.triton()))
    assert (found.kv_cache_ratio, found.requests_running, found.requests_waiting) == (0.25, 4, 1)
    assert found.cache == Cache("blocks", blocks=6239, block_tokens=64)


def test_other_servers_report_their_model_only() -> None:
    found = openai.parse(Answers(texts.openai()))
    assert found.model == "mlx-community/Qwen3-4B-4bit"
    assert found.kv_cache_bytes is Absent.NOT_SUPPORTED


def test_openvino_counts_requests_of_graphs_and_models() -> None:
    found = openai.parse_ovms(Answers(texts.openvino()))
    assert (found.model, found.requests_running) == ("OpenVINO/Qwen3-8B-int4-ov, bge-m3, resnet", 6)
    assert (found.kv_cache_ratio, found.weights_bytes) == (Absent.NOT_SUPPORTED, Absent.NOT_AVAILABLE)
    assert found.notes == (openai.OVMS_NO_SIZES,)


def test_openvino_without_metrics_names_their_option() -> None:
    command = Command(("ovms", "--rest_port", "8000", "--model_name", "qwen"))
    found = openai.parse_ovms(Answers({}, command))
    assert (found.model, found.requests_running) == ("qwen", Absent.NOT_AVAILABLE)
    assert openai.OVMS_NO_METRICS in found.notes


def test_lm_studio_reports_its_loaded_models() -> None:
    found = lm_studio.parse(Answers({lm_studio.MODELS: texts.lm_studio("qwen3-8b")["/api/v1/models"]}))
    assert (found.model, found.quantization, found.context_tokens) == ("qwen3-8b", "Q4_K_M", 8192)
    assert (found.weights_bytes, found.kv_cache_bytes, found.sleeping) == (5 * GIB, Absent.NOT_SUPPORTED, False)
    assert (found.quality, found.notes) == (Quality.DERIVED, (lm_studio.NOTHING_MORE,))


def test_lm_studio_with_two_models_has_the_weights_of_both() -> None:
    body = texts.lm_studio("qwen3-8b", "gpt-oss-20b")["/api/v1/models"]
    found = lm_studio.parse(Answers({lm_studio.MODELS: body}))
    assert (found.model, found.weights_bytes) == ("qwen3-8b, gpt-oss-20b", 10 * GIB)
    assert (found.quantization, found.context_tokens) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)


def test_lm_studio_without_a_loaded_model_has_no_weights() -> None:
    found = lm_studio.parse(Answers({lm_studio.MODELS: texts.lm_studio()["/api/v1/models"]}))
    assert (found.model, found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_AVAILABLE, 0, 0)
    assert (found.sleeping, found.notes) == (True, (lm_studio.NOTHING_LOADED,))


def test_lm_studio_of_an_old_version_reports_no_sizes() -> None:
    """/api/v0/models of 0.3: all downloaded models, with their state."""
    loaded = {"id": "a", "state": "loaded", "quantization": "4bit", "loaded_context_length": 4096}
    body = texts.to_json(object="list", data=[loaded, {"id": "b", "state": "not-loaded", "quantization": "8bit"}])
    found = lm_studio.parse(Answers({lm_studio.MODELS: body}))
    assert (found.model, found.quantization, found.context_tokens) == ("a", "4bit", 4096)
    assert (found.weights_bytes, found.sleeping) == (Absent.NOT_AVAILABLE, False)


@pytest.mark.parametrize("body", [b"{}", b'{"models": [{"key": "a"}]}', b'{"data": [{"id": "a"}]}', b"<html>"])
def test_lm_studio_without_a_state_is_not_said_to_be_empty(body: bytes) -> None:
    found = lm_studio.parse(Answers({lm_studio.MODELS: body}))
    assert (found.model, found.weights_bytes, found.sleeping) == (Absent.NOT_AVAILABLE,) * 3


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("model: Qwen/Qwen3-32B\nport: 6379\n", ("--model", "Qwen/Qwen3-32B", "--port", "6379")),
        ("tensor-parallel-size: 2  # two GPUs\n", ("--tensor-parallel-size", "2")),
        ("gpu_memory_utilization: 0.8\n", ("--gpu-memory-utilization", "0.8")),
        ("enable_attention_dp: true\n", ("--enable-attention-dp",)),
        ("port: '81'\nport: \"82\"\n", ("--port", "81", "--port", "82")),
        ("enable-attention-dp: false\nmodel: [a]\nmodel: {b: c}\nmodel: |\n", ()),
        ("api-key: secret\nhost: 0.0.0.0\n", ()),
        ("vllm:\n  port: 81\n- port: 82\n#port: 83\nport:84\n", ()),
        ("\0\xff port: x", ()),
    ],
)
def test_options_in_a_file_are_read_from_plain_lines(text: str, arguments: tuple[str, ...]) -> None:
    assert parse_options(text.encode("latin-1")) == arguments


def test_command_line_comes_before_the_file_of_options() -> None:
    file = parse_options(b"model: b\ntensor-parallel-size: 2\nport: 81\n")
    command = Command(("vllm", "serve", "--config", "c.yaml", "--port", "80"), file)

    assert (command.number("--port"), command.number("--tensor-parallel-size", "-tp")) == (80, 2)
    found = vllm.parse(Answers(texts.vllm(root=""), command))
    assert (found.cache and found.cache.parallel, found.model_path) == (2, "b")


@pytest.mark.parametrize(
    "command",
    [
        Command(("vllm", "serve", "m", "--tensor_parallel_size", "4", "--gpu_memory_utilization=0.8")),
        Command(("vllm", "serve", "m", "-tp=4"), parse_options(b"gpu-memory-utilization: 0.8\n")),
        Command(("vllm", "serve", "m"), parse_options(b"gpu_memory_utilization: 0.8\ntensor_parallel_size: 4\n")),
    ],
)
def test_options_of_vllm_have_dashes_or_underscores(command: Command) -> None:
    """The fraction of a server that does not report it is that of its options."""
    metrics = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="9"} 1.0\n'
    found = vllm.parse(Answers({"/metrics": metrics}, command))
    assert (found.gpu_fraction, found.cache and found.cache.parallel) == (0.8, 4)


def test_underscores_of_values_and_of_short_options_are_theirs() -> None:
    command = Command(("llama-server", "--alias", "a_b", "--ctx_size=4096", "-c_x", "1"))
    assert (command.option("--alias"), command.number("--ctx-size", "-c")) == ("a_b", 4096)
    assert command.has("-c_x")
    assert not command.has("-c-x")


def test_file_of_options_decides_on_attention_dp() -> None:
    argv = ("trtllm-serve", "m", "--tp_size", "8", "--extra_llm_api_options", "o.yaml")
    flags = (b"", b"port: 1\n", b"enable_attention_dp: true\n")

    found = [tensorrt_llm.has_cache_per_rank(Command(argv, parse_options(text))) for text in flags]
    assert found == [None, False, True]


def test_helpers_of_a_desktop_are_no_servers() -> None:
    argv = ("/tmp/.mount_lmstuda4m8BB/lm-studio", "--type=renderer")
    assert find_kind(Command(argv)) is None


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (("/venv/bin/python", "/venv/bin/vllm", "serve", "m"), "vllm"),
        (("python3.12", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), "vllm"),
        (("python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"), "vllm"),
        (("python", "-m", "sglang.launch_server", "--model-path", "m"), "sglang"),
        (("/opt/llama.cpp/llama-server", "-m", "x.gguf"), "llama.cpp"),
        (("/home/ana/.local/bin/llama", "serve", "-m", "x.gguf"), "llama.cpp"),
        (("/usr/local/bin/ollama", "serve"), "ollama"),
        # lmstudio-ai/lms#502, lmstudio-bug-tracker#1068 and #588.
        (("llmster",), "lm-studio"),
        (("/home/ana/.lmstudio/llmster/0.0.6-1/llmster",), "lm-studio"),
        (("/tmp/.mount_lmstuda4m8BB/lm-studio", "--run-as-service"), "lm-studio"),
        (("/opt/LM Studio/lm-studio",), "lm-studio"),
        (("text-generation-launcher", "--model-id", "m"), "tgi"),
        (("/usr/bin/python3", "/usr/local/bin/trtllm-serve", "m"), "tensorrt-llm"),
        (("python3", "-m", "tensorrt_llm.commands.serve", "m"), "tensorrt-llm"),
        (("/venv/bin/python3", "/venv/bin/mlx_lm", "server", "--model", "m"), "openai"),
        (("python3", "-m", "mlx_vlm.server", "--model", "m"), "openai"),
        (("tritonserver", "--model-repository=/m"), "triton"),
        (("python", "-m", "llama_cpp.server", "--model", "x.gguf"), "openai"),
        (("python3", "/opt/koboldcpp/koboldcpp.py", "--model", "x.gguf"), "openai"),
        (("./koboldcpp-linux-x64-nocuda", "--model", "x.gguf"), "openai"),
        (("./Qwen3-8B-Q4_K_M.llamafile", "--server"), "openai"),
        (("/usr/local/bin/llamafile-0.9.3", "-m", "x.gguf"), "openai"),
        (("mistralrs", "serve", "-p", "1234", "-m", "Qwen/Qwen3-4B"), "openai"),
        (("python3", "-m", "atom.entrypoints.openai_server", "--model", "m"), "openai"),  # ROCm/ATOM#1873
        (("lmdeploy", "serve", "api_server", "m"), "openai"),
        (("python3", "-m", "lmdeploy", "serve", "api_server", "m"), "openai"),
        (("sglang-omni", "serve", "--model-path", "m"), "openai"),  # sglang-omni#67
        (("vllm-omni", "serve", "m"), "vllm"),
        (("python3", "-m", "dynamo.vllm", "--model", "m"), "vllm"),  # ai-dynamo/dynamo#4441
        (("python3", "-m", "dynamo.sglang", "--model-path", "m"), "sglang"),
        (("python3", "-m", "dynamo.trtllm", "--model-path", "m"), "tensorrt-llm"),  # ai-dynamo/dynamo#6469
        # docker/model-runner#226 and its start script, mudler/LocalAI#1729, sybil-solutions/vllm-studio#168,
        # xorbitsai/inference#4676, PaddlePaddle/FastDeploy#4085, alibaba/rtp-llm#297.
        (("/opt/nim/llm/.venv/bin/python3", "-m", "nim_llm_sdk.entrypoints.openai.api_server"), "openai"),
        (("python3", "-m", "vllm_nvext.entrypoints.openai.api_server", "--max-model-len", "16000"), "openai"),
        (("./local-ai",), "openai"),
        (("/local-ai", "run", "gemma"), "openai"),
        (("local-ai", "--debug"), "openai"),
        (("/venv/bin/python", "/opt/tabbyAPI/main.py", "--port", "5000"), "openai"),
        (("/env/bin/python", "/env/bin/xinference-local", "--port", "9998"), "openai"),
        (("python3", "/usr/local/bin/fastdeploy", "serve", "--model=m"), "openai"),
        (("python", "-m", "fastdeploy.entrypoints.openai.api_server", "--model", "m"), "openai"),
        (("rtp-llm", "serve", "m", "--start_port", "26000"), "openai"),
        # text-embeddings-inference#880, infinity#517, AutoGPT#7091, gpustack#1570.
        (("text-embeddings-router", "--model-id", "m", "--port", "80"), "openai"),
        (("/venv/bin/python", "/venv/bin/infinity_emb", "v2", "--model-id", "m"), "openai"),
        (("/home/ana/.ape-1.10", "./mistral-7b.llamafile", "--server"), "openai"),
        (("/third_party/bin/llama-box/llama-box", "--port", "40131", "--model", "m.gguf"), "openai"),
        (("/venv/bin/python", "/venv/bin/max", "serve", "--model", "google/gemma-3-27b-it"), "openai"),
        (("python", "-m", "lightllm.server.api_server", "--model_dir", "m"), "openai"),
        (("/server", "-m", "/models/7B/ggml-model-q4_0.gguf", "--port", "8000"), "llama.cpp"),
        (("trtserver", "--strict-model-config", "false", "--model-store", "/models"), "triton"),
        (("/ovms/bin/ovms", "--rest_port", "8000", "--model_name", "m"), "openvino"),
        (("/app/bin/com.docker.llama-server", "--model", "x.gguf", "--host", "inference-0.sock"), "llama.cpp"),
        # Forms of earlier and later versions, and further servers, by their documentation.
        (("python", "-m", "vllm.entrypoints.api_server", "--model", "m"), "vllm"),
        (("python", "vllm/entrypoints/openai/api_server.py", "--model", "m"), "vllm"),
        (("python", "-m", "vllm.scripts", "serve", "m"), "vllm"),
        (("python", "-m", "vllm", "serve", "m"), "vllm"),
        (("python", "-m", "vllm_tgis_adapter", "--model", "m"), "vllm"),
        (("python", "-m", "vllm.entrypoints.grpc_server", "--model", "m"), "vllm"),
        (("python", "-m", "ipex_llm.vllm.xpu.entrypoints.openai.api_server", "--model", "m"), "vllm"),
        (("python", "-OO", "-u", "-W", "ignore", "-X", "x", "-m", vllm.API_SERVER, "--model", "m"), "vllm"),
        (("python", "-m", "sglang_router.launch_server", "--model-path", "m", "--dp-size", "4"), "sglang"),
        (("python", "-m", "sglang.srt.entrypoints.http_server", "--model-path", "m"), "sglang"),
        (("./server", "--hf-repo", "ggml-org/models", "--hf-file", "tinyllamas/a.gguf"), "llama.cpp"),
        (("/app/server", "-mu", "https://example.org/a.gguf"), "llama.cpp"),
        (("llama-server-cuda", "-m", "a.gguf"), "llama.cpp"),
        (("ollama", "start"), "ollama"),
        (("./ollama-linux-amd64", "serve"), "ollama"),
        (("text-generation-router-llamacpp", "m"), "tgi"),
        (("text-generation-backends-trtllm", "--port", "80"), "tgi"),
        (("trtllm-serve", "mm_embedding_serve", "m"), "tensorrt-llm"),
        (("trtllm-serve", "disaggregated_mpi_worker", "-c", "x.yaml"), "tensorrt-llm"),
        (("python", "-m", "huggingfaceserver", "--model_id=m"), "openai"),
        (("./local-ai-v3.5.0-linux-amd64", "run"), "openai"),
        (("./koboldcpp_cu12", "--model", "x.gguf"), "openai"),
        (("llamafiler", "-m", "x.gguf"), "openai"),
        (("python", "-m", "lmdeploy.serve.openai.api_server", "m"), "openai"),
        (("python", "-m", "mlc_llm.serve.server", "--model", "m"), "openai"),
        (("python", "-m", "mlc_chat.rest", "--model", "m"), "openai"),
        (("python", "server_vllm.py", "--model", "meetkai/functionary-small-v2.4"), "openai"),
        (("/venv/bin/python", "/venv/bin/exo", "--verbose"), "openai"),
        (("/venv/bin/python", "/venv/bin/transformers", "serve"), "openai"),
        (("openllm", "serve", "llama3.2:1b"), "openai"),
        (("openllm", "start", "facebook/opt-1.3b"), "openai"),
        (("xinference-worker", "-e", "http://127.0.0.1:9997"), "openai"),
        (("python", "-m", "fastchat.serve.vllm_worker", "--model-path", "m"), "openai"),
        (("ktransformers", "--model_path", "m", "--port", "10002"), "openai"),
        (("python", "ktransformers/server/main.py", "--model_path", "m"), "openai"),
        (("dynamo-run", "in=http", "out=vllm", "m"), "openai"),
        (("dynamo", "run", "in=http", "out=sglang", "m"), "openai"),
        (("infinity_emb", "--model-name-or-path", "m", "--port", "7997"), "openai"),
        (("flm", "serve", "llama3.2:1b"), "openai"),
        (("nexa", "serve"), "openai"),
        (("python", "-m", "max.entrypoints.pipelines", "serve", "--model-path=m"), "openai"),
        (("python", "-m", "mii.entrypoints.openai_api_server", "--model", "m"), "openai"),
    ],
)
def test_command_line_names_the_engine(argv: tuple[str, ...], kind: str) -> None:
    found = find_kind(Command(argv))
    assert found is not None
    assert found.name == kind
    assert may_start_engine("\0".join(argv).encode())


@pytest.mark.parametrize("name", sorted(openai.MODULES | openai.SCRIPTS | openai.SERVE | openai.NIM_MODULES))
def test_every_name_of_an_engine_is_looked_at(name: str) -> None:
    assert may_start_engine(f"python3\0-m\0{name}\0serve\0".encode())


@pytest.mark.parametrize(
    "argv",
    [
        ("exo", "compute", "instance", "list"),
        ("exo.py",),
        ("mlc_llm", "compile", "m"),
        ("mlc_llm", "chat", "m"),
        ("python", "-m", "mlc_llm", "convert_weight", "m"),
        ("ollama", "run", "llama3"),
        ("python", "main.py"),
        ("server", "--map", "x.gguf"),
    ],
)
def test_client_or_program_of_the_same_name_is_no_engine(argv: tuple[str, ...]) -> None:
    assert find_kind(Command(argv)) is None


@pytest.mark.parametrize("folder", ["tabbyAPI", "TabbyAPI", "TabbyApi", "tabbyapi"])
def test_folder_of_tabby_api_in_any_case_is_looked_at(folder: str) -> None:
    argv = ("python", f"/home/u/{folder}/main.py")
    assert find_kind(Command(argv)) is not None
    assert may_start_engine("\0".join(argv).encode())


@pytest.mark.parametrize("word", ["exon", "flexo", "novms", "climax\0serve", "annexa\0serve", "ovmsx"])
def test_longer_word_is_no_name_of_an_engine(word: str) -> None:
    assert not may_start_engine(f"/usr/bin/{word}\0".encode())


def test_other_command_lines_are_not_looked_at() -> None:
    assert not may_start_engine(b"/usr/bin/cc\0-O2\0-c\0main.c\0")
    assert not may_start_engine(b"")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("bash", "-c", "vllm serve m"),
        ("sudo", "vllm", "serve", "m"),
        ("vim", "vllm", "serve"),
        ("ollama", "run", "llama3"),
        ("vllm", "bench", "serve"),
        ("python3", "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        ("llama", "cli", "-m", "x.gguf"),
        ("llama", "bench", "serve"),
        ("python", "train.py", "--model", "vllm"),
        ("tail", "-f", "llama-server"),
        ("less", "Qwen3-8B.llamafile"),
        ("local-ai", "models", "install", "gemma"),
        ("python3", "main.py"),
        ("fastdeploy", "bench", "serve"),
        ("max", "generate", "--model", "m"),
        ("infinity_emb", "help"),
        ("vllm-router", "--port", "8001"),
        ("python", "-m", "sglang_router.launch_router", "--worker-urls", "http://127.0.0.1:30001"),
        ("trtllm-serve", "disaggregated", "-c", "x.yaml"),
        ("lmdeploy", "serve", "proxy"),
        ("dynamo-run", "in=text", "out=vllm", "m"),
        ("local-ai", "federated"),
        ("transformers", "env"),
        ("./server", "--data", "x.gguf"),
    ],
)
def test_other_programs_are_no_engine(argv: tuple[str, ...]) -> None:
    assert find_kind(Command(argv)) is None


def test_list_of_several_models_names_none_as_loaded() -> None:
    body = b'{"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}'
    found = openai.parse(Answers({"/v1/models": body}))
    started = openai.parse(Answers({"/v1/models": body}, Command(("mlx_lm.server", "--model", "b"))))
    assert (found.model, found.notes[0]) == (Absent.NOT_AVAILABLE, openai.NOT_LOADED.format(count=3))
    assert started.model == "b"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>404</body></html>",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"data": 1, "models": [3], "internal_states": [{"memory_usage": {"weight": 1e400}}]}',
        b'{"data": [{"id": "x", "meta": {"size": -5}}], "total_slots": -1}',
        b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running -3\nvllm:generation_tokens_total +Inf\n",
        b"vllm:kv_cache_usage_perc 7\nsglang:token_usage 1e300\ntgi_batch_max_total_tokens 1e300\n",
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="99999999999999999999"} 1\n',
        b"llamacpp:requests_processing 1e300\n",
    ],
    ids=(
        "empty",
        "html",
        "binary",
        "nested",
        "wrong types",
        "negative",
        "nan",
        "impossible",
        "huge blocks",
        "count",
    ),
)
def test_unusable_answer_gives_no_figure(kind: EngineKind, body: bytes) -> None:
    found = kind.parse(Answers({one.path: body for one in kind.requests}))
    for name in ("kv_cache_ratio", "weights_bytes", "kv_cache_bytes", "requests_running", "context_tokens"):
        value = getattr(found, name)
        assert isinstance(value, Absent) or value == 0, name


def test_answers_of_another_engine_are_not_mixed_up() -> None:
    found = vllm.parse(Answers({"/metrics": texts.sglang()["/metrics"]}))
    assert found.requests_running is Absent.NOT_AVAILABLE
    assert found.counters == Counters()


def test_sample_with_a_longer_name_is_not_taken() -> None:
    text = Exposition(b'a_total_created{x="1"} 5\na_total{x="b\\"}c"} 3 1700000000\na_totality 9\n')
    assert text.one("a_total") == 3
    assert label(b'{y="2",x="1"', "x") == "1"


def test_rates_are_differences_of_two_reads() -> None:
    found = compute_rates(Counters(100, 1000, 2.0, 10), Counters(200, 1205, 3.0, 15), 5.0)
    assert found == Rates(41.0, 20.0, 0.2)


def test_counters_that_fall_give_no_rate() -> None:
    found = compute_rates(Counters(100, 1000, 2.0, 10), Counters(5, 10, 0.1, 1), 5.0)
    assert found == Rates()


def test_idle_engine_has_a_rate_of_zero_and_no_time_to_first_token() -> None:
    same = Counters(100, 1000, 2.0, 10)
    assert compute_rates(same, same, 5.0) == Rates(0.0, 0.0, Absent.NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ((), 1),
        (("-tp", "4"), 4),
        (("-pp", "3"), 3),
        (("--tensor-parallel-size", "4", "--pipeline-parallel-size", "3"), 12),
        (("-tp=2", "-pp=2"), 4),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_absolute_cache_of_vllm_is_that_of_all_gpus(options: tuple[str, ...], gpus: int, replicas: int) -> None:
    """It is given for each GPU: tensor parallel × pipeline stages × replicas."""
    metrics = texts.vllm_metrics(cache_bytes=str(5 * GIB))
    others = [metrics.replace(b'engine="0"', b'engine="%d"' % number) for number in range(1, replicas)]
    command = Command(("/venv/bin/vllm", "serve", "Qwen/Qwen3-32B", *options))

    found = vllm.parse(Answers({"/metrics": b"".join([metrics, *others])}, command))

    assert found.kv_cache_bytes == 5 * GIB * gpus * replicas


@pytest.mark.parametrize(
    ("argv", "is_sglang"),
    [
        (("/venv/bin/python3", "/venv/bin/sglang", "serve", "--model-path", "x"), True),
        (("/venv/bin/python3", "/venv/bin/sglang", "generate", "--model-path", "x"), False),
        (("python3", "-m", "sglang.launch_server", "--model-path", "x"), True),
        (("python3", "-m", "sglang.bench_serving"), False),
    ],
)
def test_sglang_is_its_server_and_no_other_command(argv: tuple[str, ...], is_sglang: bool) -> None:
    assert sglang.matches(Command(argv)) is is_sglang


@pytest.mark.parametrize(("seconds", "rate"), [(0.25, Absent.NOT_AVAILABLE), (0.5, 200.0), (2.0, 50.0)])
def test_rate_needs_half_a_second(seconds: float, rate: float | Absent) -> None:
    """Over less, the time between two reads is not known well enough."""
    found = compute_rates(Counters(0.0, 100.0), Counters(0.0, 200.0), seconds)

    assert found.generation == rate


@pytest.mark.parametrize(("listed", "model"), [(True, "Qwen/Qwen3-32B"), (False, "started/model")])
def test_vllm_has_the_name_of_its_model_list_before_that_of_its_command(listed: bool, model: str) -> None:
    answers = texts.vllm()
    if not listed:
        del answers["/v1/models"]

    found = vllm.parse(Answers(answers, Command(("/venv/bin/vllm", "serve", "started/model"))))

    assert found.model == model


@pytest.mark.parametrize("blocks", ["None", "0"])
def test_vllm_without_blocks_has_no_cache(blocks: str) -> None:
    """Its cache is not made yet."""
    assert vllm.parse(Answers(texts.vllm(blocks=blocks), SERVE)).cache is None


def test_llama_cpp_reports_the_context_of_its_slots() -> None:
    assert llama_cpp.parse(Answers(texts.llama_cpp())).context_tokens == 4096


@pytest.mark.parametrize(
    ("parse", "value", "found"),
    [
        (bytes_of, 2.0**50, 2**50),
        (bytes_of, 2.0**50 + 1, Absent.INCONSISTENT),
        (bytes_of, 0.0, 0),
        (bytes_of, -1.0, Absent.INCONSISTENT),
        (count_of, 1e15, 10**15),
        (count_of, 1e15 + 1, Absent.INCONSISTENT),
        (count_of, 0.0, 0),
        (count_of, -1.0, Absent.INCONSISTENT),
        (ratio_of, 1.0, 1.0),
        (ratio_of, 1.0001, Absent.INCONSISTENT),
        (ratio_of, 0.0, 0.0),
        (ratio_of, -0.0001, Absent.INCONSISTENT),
    ],
)
def test_impossible_figure_is_inconsistent(
    parse: Callable[[float | None], object], value: float, found: object
) -> None:
    """Above MAX_BYTES, 1 PiB, and MAX_COUNT the engine is broken. Sums with such a figure would be wrong, too."""
    assert parse(value) == found
    assert parse(None) is Absent.NOT_AVAILABLE
